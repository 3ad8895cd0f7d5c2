/* Segments coalesce: while credit is scarce, data of one part is appended to the last segment, so frames grow with
 * the wait; while credit is plenty every piece leaves at once. */
#include "server/upload.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/forward.h"
#include "server/multipart.h"

typedef struct segment {
	struct segment *next;
	const char *part;             /* a part begins with this segment: its name; else NULL */
	char file[ENGINE_FILE_BYTES]; /* file name of a named part if the engine gets it; else "" */
	buffer data;
} segment;

typedef struct upload {
	const upload_form *form; /* NULL: octets */
	multipart parser;
	const upload_field *current;  /* the part being read */
	char file[ENGINE_FILE_BYTES]; /* name of a named part */
	unsigned seen, late;          /* bit i: field i has come; it came after the first streamed part */
	char values[UPLOAD_MAX_FIELDS][UPLOAD_FIELD_BYTES];
	size_t value_bytes[UPLOAD_MAX_FIELDS];
	segment *first, *last;
	size_t waiting; /* bytes in segments */
	bool complete;  /* the last segment is the last of all */
	bool end_sent;
} upload;

/* --- to the engine ------------------------------------------------------------------------ */

static void upload_flush(request *r)
{
	upload *u = r->state;
	/* r->call is read again each turn: sending may end it. */
	while (u->first && r->call && engine_call_credit(r->call) > 0) {
		segment *s = u->first;
		bool last = u->complete && !s->next;
		u->first = s->next;
		if (!u->first)
			u->last = NULL;
		u->waiting -= s->data.used;
		u->end_sent |= last;
		engine_call_data(r->call, s->part, s->file[0] ? s->file : NULL, s->data.data, s->data.used, last);
		buffer_fini(&s->data);
		free(s);
	}
	if (u->waiting < UPLOAD_WINDOW)
		request_unpause(r);
	else
		request_pause(r);
}

static void upload_append(request *r, const char *part, const char *data, size_t bytes)
{
	upload *u = r->state;
	segment *s = u->last;
	if (!s || part || s->data.used + bytes > UPLOAD_WINDOW) {
		s = calloc(1, sizeof *s);
		if (!s) {
			reply_out_of_memory(r);
			return;
		}
		s->part = part;
		if (part)
			memcpy(s->file, u->file, sizeof s->file);
		if (u->last)
			u->last->next = s;
		else
			u->first = s;
		u->last = s;
	}
	buffer_append(&s->data, data, bytes);
	u->waiting += bytes;
	if (s->data.failed)
		reply_out_of_memory(r);
}

static void upload_on_credit(void *context)
{
	upload_flush(context);
}

static void upload_on_end(void *context, const frame *f)
{
	request *r = context;
	upload *u = r->state;
	if (forward_failed(r, f))
		return;
	if (u->end_sent)
		reply_copy(r, 200, "application/json", f->json, f->json_bytes);
	else
		reply_refuse(r, 500, "engine_error", NULL, "the engine answered before it had everything");
}

static const engine_events upload_events = {.event = forward_ignore, .credit = upload_on_credit, .end = upload_on_end};

/* --- the form --------------------------------------------------------------------------------- */

/* The field's number, or -1. */
static int upload_find(const upload *u, const char *name)
{
	for (int i = 0; u->form->fields[i].name; i++)
		if (strcmp(u->form->fields[i].name, name) == 0)
			return i;
	return -1;
}

const char *upload_value(const request *r, const char *name)
{
	const upload *u = r->state;
	const int i = upload_find(u, name);
	return i >= 0 && u->seen & 1u << i ? u->values[i] : NULL;
}

bool upload_is_late(const request *r, const char *name)
{
	const upload *u = r->state;
	const int i = upload_find(u, name);
	return i >= 0 && u->late & 1u << i;
}

/* A name that needs no escapes in JSON. */
static bool upload_file_valid(const char *name)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	size_t n = strlen(name);
	return n > 0 && n < ENGINE_FILE_BYTES - 1 && strspn(name, allowed) == n;
}

/* A part begins. False, refused, if its name is unknown or it may not come now. */
static bool upload_begin_part(void *context, const char *name, const char *file_name)
{
	request *r = context;
	upload *u = r->state;
	if (!name) {
		reply_refuse(r, 400, "invalid_form", NULL, "a part of the form has no name");
		return false;
	}
	const upload_field *found = u->form->fields;
	while (found->name && strcmp(found->name, name) != 0)
		found++;
	unsigned bit = 1u << (found - u->form->fields);
	if (!found->name) {
		reply_refuse(r, 400, "unknown_parameter", name, "unknown form field '%s'", name);
		return false;
	}
	if (u->seen & bit && !found->named) {
		reply_refuse(r, 400, "invalid_value", name, "form field '%s' is given twice", name);
		return false;
	}
	if (found->early && r->call) {
		reply_refuse(r, 400, "invalid_value", name, "form field '%s' must come before the files", name);
		return false;
	}
	u->current = found;
	u->seen |= bit;
	u->late |= r->call ? bit : 0;
	snprintf(u->file, sizeof u->file, "%s", found->named ? uri_base_name(file_name ? file_name : "") : "");
	if (found->named && !upload_file_valid(u->file)) {
		reply_refuse(r, 400, "invalid_value", name,
		             "the name of a file in '%s' must be 1 to %d letters, digits, dots, dashes or underscores",
		             name, ENGINE_FILE_BYTES - 1);
		return false;
	}
	if (!found->streamed)
		return true;
	if (!r->call) {
		json_t *params = u->form->params(r, file_name ? file_name : "");
		if (!params && !r->status)
			reply_out_of_memory(r);
		if (!params || !request_call(r, r->route->engine_method, params, 0, true, &upload_events))
			return false;
	}
	upload_append(r, found->name, NULL, 0);
	return r->status == 0;
}

static bool upload_keep_value(request *r, const char *data, size_t bytes)
{
	upload *u = r->state;
	size_t i = (size_t)(u->current - u->form->fields);
	if (u->value_bytes[i] + bytes >= UPLOAD_FIELD_BYTES || memchr(data, '\0', bytes)) {
		reply_refuse(r, 400, "invalid_value", u->current->name, "form field '%s' is not valid",
		             u->current->name);
		return false;
	}
	memcpy(u->values[i] + u->value_bytes[i], data, bytes);
	u->value_bytes[i] += bytes;
	return true;
}

static bool upload_take_piece(void *context, const char *data, size_t bytes)
{
	request *r = context;
	const upload *u = r->state;
	if (!u->current->streamed)
		return upload_keep_value(r, data, bytes);
	upload_append(r, NULL, data, bytes);
	return r->status == 0;
}

static void upload_take_form(request *r, const char *data, size_t bytes)
{
	upload *u = r->state;
	if (multipart_feed(&u->parser, data, bytes))
		upload_flush(r);
	else if (u->parser.wrong)
		reply_refuse(r, 400, "invalid_form", NULL, "%s", u->parser.wrong);
	else if (!r->status)
		reply_out_of_memory(r);
}

static void upload_finish(request *r)
{
	upload *u = r->state;
	u->complete = true;
	if (!u->first) /* everything has left already: an empty frame carries the end */
		upload_append(r, NULL, NULL, 0);
	if (!r->status)
		upload_flush(r);
}

static void upload_taken_form(request *r)
{
	const upload *u = r->state;
	if (!multipart_whole(&u->parser)) {
		reply_refuse(r, 400, "invalid_form", NULL, "the form is incomplete");
		return;
	}
	for (int i = 0; u->form->fields[i].name; i++)
		if (u->form->fields[i].required && !(u->seen & 1u << i)) {
			const char *name = u->form->fields[i].name;
			reply_refuse(r, 400, "missing_parameter", name, "form field '%s' is required", name);
			return;
		}
	if (!u->form->check || u->form->check(r))
		upload_finish(r);
}

/* --- life ----------------------------------------------------------------------------------------- */

static void upload_release(request *r)
{
	upload *u = r->state;
	multipart_fini(&u->parser);
	while (u->first) {
		segment *next = u->first->next;
		buffer_fini(&u->first->data);
		free(u->first);
		u->first = next;
	}
	free(u);
}

static upload *upload_new(request *r)
{
	upload *u = calloc(1, sizeof *u);
	if (!u) {
		reply_out_of_memory(r);
		return NULL;
	}
	r->state = u;
	r->release = upload_release;
	return u;
}

void upload_form_begin(request *r, const upload_form *form)
{
	static const multipart_handler handler = {.part = upload_begin_part, .data = upload_take_piece};
	upload *u = upload_new(r);
	if (!u)
		return;
	u->form = form;
	r->take = upload_take_form;
	r->taken = upload_taken_form;
	if (!multipart_init(&u->parser, request_header_value(r, MHD_HTTP_HEADER_CONTENT_TYPE), &handler, r))
		reply_refuse(r, 400, "invalid_form", NULL, "the form's boundary is missing or malformed");
}

static void upload_take_octets(request *r, const char *data, size_t bytes)
{
	upload_append(r, NULL, data, bytes);
	if (!r->status)
		upload_flush(r);
}

void upload_octets_begin(request *r, const char *part, json_t *params)
{
	r->take = upload_take_octets;
	r->taken = upload_finish;
	if (!upload_new(r))
		json_decref(params);
	else if (request_call(r, r->route->engine_method, params, 0, true, &upload_events))
		upload_append(r, part, NULL, 0);
}
