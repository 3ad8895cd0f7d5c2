/* The parts of a form are found by libmicrohttpd's post processor. The boundary is checked here first: the processor
 * trusts it, and old versions read out of bounds for a lone quote.
 *
 * Segments coalesce: while credit is scarce, data of one part is appended to the last segment, so frames grow with
 * the wait; while credit is plenty every piece leaves at once. */
#include "server/upload.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/forward.h"

enum { UPLOAD_PROCESSOR_BYTES = 32 << 10, UPLOAD_MAX_BOUNDARY = 70 };

typedef struct segment {
	struct segment *next;
	const char *part;             /* a part begins with this segment: its name; else NULL */
	char file[ENGINE_FILE_BYTES]; /* of such a part the file's name, where the engine gets it; or "" */
	buffer data;
} segment;

typedef struct upload {
	const upload_form *form; /* NULL: octets */
	struct MHD_PostProcessor *parser;
	const upload_field *current;  /* the part being read */
	bool untouched;               /* none of its bytes have come yet */
	char file[ENGINE_FILE_BYTES]; /* name of a named part */
	unsigned seen;                /* bit i: field i has come */
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
	/* r->call is read anew each turn: sending may end it. */
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

const char *upload_value(const request *r, const char *name)
{
	const upload *u = r->state;
	for (int i = 0; u->form->fields[i].name; i++)
		if (strcmp(u->form->fields[i].name, name) == 0)
			return u->seen & 1u << i ? u->values[i] : NULL;
	return NULL;
}

/* A name that needs no escapes in JSON. */
static bool upload_file_valid(const char *name)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	size_t n = strlen(name);
	return n > 0 && n < ENGINE_FILE_BYTES - 1 && strspn(name, allowed) == n;
}

/* A part begins: is it one we know, and may it come now? */
static bool upload_begin_part(request *r, const char *name, const char *file_name)
{
	upload *u = r->state;
	const upload_field *found = u->form->fields;
	while (found->name && strcmp(found->name, name) != 0)
		found++;
	unsigned bit = 1u << (found - u->form->fields);
	if (!found->name) {
		reply_refuse(r, 400, "unknown_parameter", name, "unknown form field '%s'", name);
		return false;
	}
	if (u->seen & bit && !found->named) {
		reply_refuse(r, 400, "invalid_value", name, "form field '%s' was given twice", name);
		return false;
	}
	if (found->early && r->call) {
		reply_refuse(r, 400, "invalid_value", name, "form field '%s' must stand before the files", name);
		return false;
	}
	u->current = found;
	u->untouched = true;
	u->seen |= bit;
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

static enum MHD_Result upload_on_piece(void *context, enum MHD_ValueKind kind, const char *name, const char *file_name,
                                       const char *type, const char *encoding, const char *data, uint64_t offset,
                                       size_t bytes)
{
	(void)kind;
	(void)type;
	(void)encoding;
	request *r = context;
	upload *u = r->state;
	if (r->status)
		return MHD_NO;
	if (!name) {
		reply_refuse(r, 400, "invalid_form", NULL, "a part of the form has no name");
		return MHD_NO;
	}
	/* The processor may announce a part with an empty piece first; its offset is then 0 twice. */
	bool announced = u->current && u->untouched && strcmp(u->current->name, name) == 0 &&
	                 (!u->current->named || strcmp(u->file, uri_base_name(file_name ? file_name : "")) == 0);
	if (offset == 0 && !announced && !upload_begin_part(r, name, file_name))
		return MHD_NO;
	if (bytes == 0)
		return MHD_YES;
	u->untouched = false;
	if (!u->current->streamed)
		return upload_keep_value(r, data, bytes) ? MHD_YES : MHD_NO;
	upload_append(r, NULL, data, bytes);
	return r->status ? MHD_NO : MHD_YES;
}

static void upload_take_form(request *r, const char *data, size_t bytes)
{
	upload *u = r->state;
	enum MHD_Result parsed = MHD_post_process(u->parser, data, bytes);
	if (r->status)
		return;
	if (parsed != MHD_YES)
		reply_refuse(r, 400, "invalid_form", NULL, "the form is malformed");
	else
		upload_flush(r);
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
	upload *u = r->state;
	enum MHD_Result whole = MHD_destroy_post_processor(u->parser);
	u->parser = NULL;
	if (whole != MHD_YES) {
		reply_refuse(r, 400, "invalid_form", NULL, "the form ends too early");
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

/* RFC 2046: up to 70 of these characters, between quotes or not. The processor takes no boundary of one. */
static bool upload_boundary_valid(const char *content_type)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'()+_,-./:=?";
	const char *boundary = content_type ? strstr(content_type, "boundary=") : NULL;
	if (!boundary)
		return false;
	boundary += strlen("boundary=");
	bool quoted = *boundary == '"';
	boundary += quoted;
	size_t bytes = strspn(boundary, allowed);
	const char *end = boundary + bytes;
	return bytes >= 2 && bytes <= UPLOAD_MAX_BOUNDARY && (quoted ? strcmp(end, "\"") == 0 : *end == '\0');
}

/* --- life ----------------------------------------------------------------------------------------- */

static void upload_release(request *r)
{
	upload *u = r->state;
	if (u->parser)
		MHD_destroy_post_processor(u->parser);
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
	if (!upload_boundary_valid(request_header_value(r, MHD_HTTP_HEADER_CONTENT_TYPE))) {
		reply_refuse(r, 400, "invalid_form", NULL, "the form's boundary is missing or malformed");
		return;
	}
	upload *u = upload_new(r);
	if (!u)
		return;
	u->form = form;
	u->parser = MHD_create_post_processor(r->connection, UPLOAD_PROCESSOR_BYTES, upload_on_piece, r);
	r->take = upload_take_form;
	r->taken = upload_taken_form;
	if (!u->parser)
		reply_out_of_memory(r); /* the boundary is valid */
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
