/* While the pool makes a piece (`making`) the loop sends nothing. A stream that is cancelled then is answered when the
 * pool is done. */
#include "engine/daemon/requests/pieces.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/requests/download.h"

typedef struct pieces {
	uv_work_t work;
	stream *stream;
	pieces_source source;
	char *data; /* the piece being sent */
	size_t bytes, sent;
	int64_t total; /* bytes sent, */
	int64_t all;   /* total size; -1: unknown */
	status result;
	error error;
	bool making, announced;
} pieces;

static void pieces_free(pieces *p)
{
	p->stream->watch = NULL;
	p->source.release(p->source.context);
	free(p->data);
	free(p);
}

static void pieces_fail(pieces *p, status result)
{
	stream *s = p->stream;
	error err = p->error;
	pieces_free(p);
	error_settle(&err, result);
	stream_error(s, &err, NULL);
}

static void pool_make(uv_work_t *work)
{
	pieces *p = work->data;
	reserve_forget();
	p->result = p->source.next(p->source.context, &p->data, &p->bytes, &p->error);
}

static void pieces_piece_made(uv_work_t *work, int cancelled);

static void make_next(pieces *p)
{
	free(p->data);
	p->data = NULL;
	p->bytes = p->sent = 0;
	p->making = uv_queue_work(p->stream->net->loop, &p->work, pool_make, pieces_piece_made) == 0;
	if (!p->making)
		pieces_fail(p, STATUS_NOMEM);
}

/* Answer with the first piece, which is the whole answer. */
static void answer_whole(pieces *p)
{
	stream *s = p->stream;
	char *text = p->data;
	p->data = NULL;
	pieces_free(p);
	stream_result_text(s, text);
}

static void announce(pieces *p)
{
	const pieces_head head = p->source.head(p->source.context);
	json_t *event = json_pack("{s:s, s:s*}", "content_type", head.content_type, "filename", head.filename);
	if (event && head.bytes >= 0 && json_object_set_new(event, "bytes", json_integer(head.bytes)) != 0) {
		json_decref(event);
		event = NULL;
	}
	p->announced = true;
	p->all = head.bytes;
	stream_event(p->stream, event);
}

/* Send as credit allows. The stream may end here. */
static void send_piece(pieces *p)
{
	stream *s = p->stream;
	if (!p->announced && stream_ready(s) > 0)
		announce(p);
	while (p->sent < p->bytes && stream_ready(s) > 0) {
		size_t left = p->bytes - p->sent, n = left < DOWNLOAD_CHUNK ? left : DOWNLOAD_CHUNK;
		char *chunk = malloc(n);
		if (!chunk) {
			pieces_fail(p, STATUS_NOMEM);
			return;
		}
		memcpy(chunk, p->data + p->sent, n);
		stream_data(s, chunk, n);
		p->sent += n;
		p->total += (int64_t)n;
	}
	if (!p->announced || p->sent < p->bytes)
		return;
	if (p->bytes > 0 && p->total != p->all) {
		make_next(p);
		return;
	}
	int64_t total = p->total;
	pieces_free(p);
	stream_result(s, json_pack("{s:I}", "bytes", (json_int_t)total));
}

static void pieces_piece_made(uv_work_t *work, int cancelled)
{
	pieces *p = work->data;
	(void)cancelled; /* cannot be cancelled */
	p->making = false;
	if (p->stream->cancelled)
		pieces_fail(p, STATUS_CANCELLED);
	else if (p->result != STATUS_OK)
		pieces_fail(p, p->result);
	else if (!p->announced && p->bytes <= PIECES_WHOLE && p->source.head(p->source.context).json)
		answer_whole(p);
	else
		send_piece(p);
}

static void pieces_on_credit(stream *s)
{
	pieces *p = s->context;
	if (!p->making)
		send_piece(p);
}

static void pieces_on_cancel(stream *s)
{
	pieces *p = s->context;
	if (!p->making)
		pieces_fail(p, STATUS_CANCELLED);
}

void pieces_send(stream *s, const pieces_source *source)
{
	static const stream_watch watch = {.credit = pieces_on_credit, .cancel = pieces_on_cancel};
	pieces *p = s->cancelled ? NULL : memory_new(1, sizeof *p);
	if (!p) {
		source->release(source->context);
		stream_refuse(s, s->cancelled ? STATUS_CANCELLED : STATUS_NOMEM, NULL, NULL, "%s",
		              s->cancelled ? "cancelled" : "out of memory");
		return;
	}
	*p = (pieces){.stream = s, .source = *source};
	p->work.data = p;
	s->context = p;
	s->watch = &watch;
	make_next(p);
}
