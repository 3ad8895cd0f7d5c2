#include "engine/daemon/requests/background.h"

#include <stdlib.h>
#include <uv.h>

#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"

typedef struct answer {
	uv_work_t request;
	stream *stream;
	background_work work;
	char *text;
	error error;
} answer;

static void pool_make(uv_work_t *request)
{
	answer *a = request->data;
	reserve_forget();
	json_t *object = a->work.make(a->work.context, &a->error);
	a->text = json_text_reserve(object, PROTO_JSON);
	json_decref(object);
	if (!a->text)
		error_set(&a->error, STATUS_NOMEM, NULL, "out of memory");
}

static void background_made(uv_work_t *request, int cancelled)
{
	answer *a = request->data;
	(void)cancelled; /* cannot be cancelled */
	if (a->text)
		stream_result_text(a->stream, a->text);
	else
		stream_error(a->stream, &a->error, NULL);
	a->work.release(a->work.context);
	free(a);
}

void background_answer(stream *s, const background_work *work)
{
	answer *a = memory_new(1, sizeof *a);
	if (a) {
		*a = (answer){.request.data = a, .stream = s, .work = *work};
		if (uv_queue_work(s->net->loop, &a->request, pool_make, background_made) == 0)
			return;
	}
	free(a);
	work->release(work->context);
	stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
}

static void pool_drop(uv_work_t *request)
{
	json_decref(request->data);
}

static void dropped(uv_work_t *request, int cancelled)
{
	(void)cancelled;
	free(request);
}

void background_drop(uv_loop_t *loop, json_t *document)
{
	uv_work_t *request = document ? memory_new(1, sizeof *request) : NULL;
	if (request) {
		request->data = document;
		if (uv_queue_work(loop, request, pool_drop, dropped) == 0)
			return;
	}
	free(request);
	json_decref(document);
}
