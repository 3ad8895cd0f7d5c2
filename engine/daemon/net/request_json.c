#include "engine/daemon/net/request_json.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/reserve.h"
#include "proto/json_memory.h"

typedef struct parsing {
	uv_work_t work;
	stream *stream;
	request_json_done *done;
	json_t *request;
	bool out_of_memory;
	size_t bytes;
	char text[];
} parsing;

/* Any thread. */
static json_t *parse(const char *text, size_t bytes, bool *out_of_memory)
{
	reserve_forget();
	json_t *request = json_memory_parse(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	*out_of_memory = !request && json_memory_failed();
	return request;
}

static void pool_parse(uv_work_t *work)
{
	parsing *p = work->data;
	p->request = parse(p->text, p->bytes, &p->out_of_memory);
}

static void parsed(uv_work_t *work, int cancelled)
{
	parsing *p = work->data;
	(void)cancelled; /* cannot be cancelled */
	p->done(p->stream, p->request, p->out_of_memory);
	free(p);
}

void request_json_parse(stream *s, const char *text, size_t bytes, request_json_done *done)
{
	s->large = bytes >= STREAM_LARGE;
	s->digest = digest_bytes(text, bytes);
	if (!s->large) {
		bool out_of_memory;
		json_t *request = parse(text, bytes, &out_of_memory);
		done(s, request, out_of_memory);
		return;
	}
	parsing *p = malloc(sizeof *p + bytes);
	if (p) {
		*p = (parsing){.work.data = p, .stream = s, .done = done, .bytes = bytes};
		memcpy(p->text, text, bytes);
		if (uv_queue_work(s->net->loop, &p->work, pool_parse, parsed) == 0)
			return;
	}
	free(p);
	done(s, NULL, true);
}
