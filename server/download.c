/* At most DOWNLOAD_WINDOW frames wait for a slow client; they are granted again when the client has read them all. */
#include "server/download.h"

#include <stdlib.h>
#include <string.h>

#include "proto/json_memory.h"
#include "server/forward.h"

enum { DOWNLOAD_WINDOW = 2 };

typedef struct download {
	uint64_t left;      /* bytes still to come; or REPLY_SIZE_UNKNOWN */
	uint32_t ungranted; /* frames received and not granted again */
	const char *type;   /* content type of the answer; NULL: the engine's */
} download;

/* A type such as "text/plain; charset=utf-8", or NULL for anything stranger. */
static const char *download_type(const json_t *event)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/+-.; =_";
	const char *type = json_string_value(json_object_get(event, "content_type"));
	return type && type[0] && strspn(type, allowed) == strlen(type) ? type : NULL;
}

/* RFC 6266: the name in ASCII for every client, and as it is for those that read filename*. */
static void download_disposition(buffer *out, const char *name)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	buffer_string(out, "attachment");
	if (!name || !name[0])
		return;
	bool whole = true;
	buffer_string(out, "; filename=\"");
	for (const char *c = name; *c; c++) {
		bool quotable = *c >= ' ' && *c <= '~' && !strchr("\"\\%", *c);
		if ((*c & 0xc0) != 0x80) /* one for each character */
			buffer_append(out, quotable ? c : "_", 1);
		whole &= quotable;
	}
	buffer_string(out, "\"");
	if (whole)
		return;
	buffer_string(out, "; filename*=UTF-8''");
	for (const char *c = name; *c; c++) {
		if (strchr(plain, *c))
			buffer_append(out, c, 1);
		else
			buffer_format(out, "%%%02X", (unsigned char)*c);
	}
}

static void download_begin(request *r, const json_t *event)
{
	buffer disposition = {0};
	download *d = r->state;
	const json_t *bytes = json_object_get(event, "bytes");
	const char *type = d->type ? d->type : download_type(event);
	const char *name = json_string_value(json_object_get(event, "filename"));
	if (json_is_integer(bytes) && json_integer_value(bytes) >= 0)
		d->left = (uint64_t)json_integer_value(bytes);
	/* An attachment is never shown as a page of this origin. Data of a known type need not be one. */
	download_disposition(&disposition, name);
	buffer_append(&disposition, "", 1);
	if (name || !d->type)
		reply_header(r, "Content-Disposition", disposition.failed ? "attachment" : disposition.data);
	buffer_fini(&disposition);
	reply_begin(r, type ? type : "application/octet-stream", d->left, false);
}

static void download_event(void *context, const frame *f)
{
	request *r = context;
	download *d = r->state;
	d->ungranted++;
	if (!r->streaming) {
		json_t *event = f->type == FRAME_EVENT ? json_memory_parse(f->json, f->json_bytes, 0, NULL) : NULL;
		if (json_memory_failed()) {
			reply_out_of_memory(r);
			return;
		}
		download_begin(r, event);
		json_decref(event);
	}
	if (f->type != FRAME_DATA)
		return;
	if (d->left != REPLY_SIZE_UNKNOWN) {
		if (f->payload_bytes > d->left) {
			reply_refuse(r, 500, "engine_error", NULL, "the engine sent more than it announced");
			return;
		}
		d->left -= f->payload_bytes;
	}
	reply_write(r, f->payload, f->payload_bytes);
}

static void download_end(void *context, const frame *f)
{
	request *r = context;
	download *d = r->state;
	if (forward_failed(r, f))
		return;
	if (!r->streaming && d->type) {
		reply_copy(r, 200, "application/json", f->json, f->json_bytes);
		return;
	}
	if (!r->streaming)
		download_begin(r, NULL);
	reply_end(r, d->left == 0 || d->left == REPLY_SIZE_UNKNOWN);
}

static void download_drained(request *r)
{
	download *d = r->state;
	if (r->call && d->ungranted > 0) {
		uint32_t ungranted = d->ungranted;
		d->ungranted = 0;
		engine_call_grant(r->call, ungranted);
	}
}

static void download_release(request *r)
{
	free(r->state);
}

void download_call(request *r, json_t *params, const char *type)
{
	static const engine_events events = {.event = download_event, .end = download_end};
	download *d = calloc(1, sizeof *d);
	if (!d) {
		json_decref(params);
		reply_out_of_memory(r);
		return;
	}
	*d = (download){.left = REPLY_SIZE_UNKNOWN, .type = type};
	r->state = d;
	r->release = download_release;
	r->drained = download_drained;
	request_call(r, r->route->engine_method, params, DOWNLOAD_WINDOW, false, &events);
}

void download_handle(request *r)
{
	json_t *params = forward_params(r);
	if (params)
		download_call(r, params, NULL);
}
