/* upload.h - forward a request's body to the engine, piece by piece.
 *
 *    client ──▶ form parts ──▶ segments waiting for credit ──▶ DATA frames
 *
 * Without credit from the engine, the segments fill up to UPLOAD_WINDOW bytes; then the client is no longer read. Small
 * fields ("purpose") are kept here; streamed ones (files) are forwarded. The REQUEST is sent when the first streamed
 * part begins, so small fields that it needs must come before it. Other fields are checked at the end. Nothing is final
 * before the last frame, which is sent when the whole form is valid. */
#ifndef SERVER_UPLOAD_H
#define SERVER_UPLOAD_H

#include "server/request.h"

enum { UPLOAD_MAX_FIELDS = 8, UPLOAD_FIELD_BYTES = 256, UPLOAD_WINDOW = 256 << 10 };

typedef struct upload_field {
	const char *name;
	bool streamed;
	bool required;
	bool early; /* must come before the first streamed part */
	bool named; /* streamed: any number of files; the engine gets their names too */
} upload_field;

typedef struct upload_form {
	upload_field fields[UPLOAD_MAX_FIELDS + 1]; /* ends with a NULL name */
	/* Parameters of the REQUEST. NULL after a reply_refuse. file_name: the client's name for it, or "". */
	json_t *(*params)(request *r, const char *file_name);
	/* Check the complete form. False after a reply_refuse. NULL: no check. */
	bool (*check)(request *r);
} upload_form;

/* For handlers of BODY_FORM and BODY_OCTETS: begin; the row's engine_method then gets the parts, and its RESULT is the
 * answer. */
void upload_form_begin(request *r, const upload_form *form);
/* Forward the whole body as one part of that name. params is taken over. */
void upload_octets_begin(request *r, const char *part, json_t *params);
/* Return a small field's value, or NULL while it has not arrived. Borrowed from the request. */
const char *upload_value(const request *r, const char *name);
/* True if the field came after the first streamed part, and so after the REQUEST. */
bool upload_is_late(const request *r, const char *name);

#endif
