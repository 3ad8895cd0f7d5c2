#include "engine/daemon/net/local_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/reserve.h"

struct local_request {
	stream_peer peer;
	stream *stream;
	const local_receiver *receiver;
	void *context;
	char *answer; /* JSON of the RESULT or ERROR, from reserve_malloc */
	bool failed;  /* it is an ERROR, or a frame is missing */
};

static void receive(local_request *r, const frame *f, const char *json, const void *payload)
{
	if (f->type == FRAME_EVENT)
		r->receiver->event(r->context, json, f->json_bytes);
	else if (f->type == FRAME_DATA)
		r->receiver->data(r->context, payload, f->payload_bytes);
}

static void local_send(stream_peer *p, const frame *f, char *json, void *payload)
{
	local_request *r = (local_request *)p;
	if (f->type == FRAME_RESULT || f->type == FRAME_ERROR) {
		r->failed |= f->type == FRAME_ERROR;
		r->answer = json;
		json = NULL;
	} else {
		receive(r, f, json, payload);
	}
	reserve_free(json);
	free(payload);
}

static void local_send_copy(stream_peer *p, const frame *f)
{
	local_request *r = (local_request *)p;
	if (f->type == FRAME_ERROR) /* a static text: memory ran out */
		r->failed = true;
	else
		receive(r, f, f->json, NULL);
}

static void local_fail(stream_peer *p)
{
	((local_request *)p)->failed = true;
}

static void local_forget(stream_peer *p, stream *s)
{
	local_request *r = (local_request *)p;
	(void)s;
	r->receiver->end(r->context, r->failed, r->answer);
	reserve_free(r->answer);
	free(r);
}

local_request *local_request_new(net *n, const local_origin *from, const local_receiver *receiver, void *context)
{
	local_request *r = memory_new(1, sizeof *r);
	stream *s = r ? stream_new(n, &r->peer, 0, INT32_MAX) : NULL; /* the receiver stores everything */
	if (!s) {
		free(r);
		return NULL;
	}
	*r = (local_request){.peer = {local_send, local_send_copy, local_fail, local_forget, false},
	                     .stream = s,
	                     .receiver = receiver,
	                     .context = context};
	s->background = true;
	s->large = from->large;
	snprintf(s->access_id, sizeof s->access_id, "%s", from->key);
	snprintf(s->owner, sizeof s->owner, "%s", from->key);
	snprintf(s->request_id, sizeof s->request_id, "%s", from->request_id);
	return r;
}

void local_request_begin(local_request *r, const char *method, json_t *params)
{
	stream *s = r->stream;
	s->params = params;
	s->net->request(s, method);
}

void local_request_cancel(local_request *r)
{
	stream_cancel(r->stream);
}
