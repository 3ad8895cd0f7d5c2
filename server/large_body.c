#include "server/large_body.h"

#include <stdlib.h>

#include "proto/json_memory.h"

struct large_body {
	uv_work_t work;
	server *server;
	buffer text;
	uint64_t reserved;
	const schema *expected;
	json_body body;
	void (*done)(void *context, json_body *body); /* NULL: forgotten */
	void *context;
};

/* Pool thread. */
static void large_body_work(uv_work_t *work)
{
	large_body *b = work->data;
	json_body_read(&b->body, b->text.data, b->text.used, b->expected);
	buffer_fini(&b->text);
}

static void large_body_done(uv_work_t *work, int cancelled)
{
	large_body *b = work->data;
	(void)cancelled; /* nothing cancels it */
	b->server->buffered -= b->reserved;
	json_memory_forget();
	if (b->done)
		b->done(b->context, &b->body);
	json_body_fini(&b->body);
	free(b);
}

large_body *large_body_read(server *s, buffer *text, uint64_t reserved, const schema *expected,
                            void (*done)(void *context, json_body *body), void *context)
{
	large_body *b = malloc(sizeof *b);
	if (!b)
		return NULL;
	*b = (large_body){.work.data = b,
	                  .server = s,
	                  .text = *text,
	                  .reserved = reserved,
	                  .expected = expected,
	                  .done = done,
	                  .context = context};
	if (uv_queue_work(s->loop, &b->work, large_body_work, large_body_done) != 0) {
		free(b);
		return NULL;
	}
	*text = (buffer){0};
	return b;
}

void large_body_forget(large_body *b)
{
	b->done = NULL;
}
