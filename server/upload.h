/* upload.h - a request's body on its way to the engine, piece by piece.
 *
 * client ──▶ form parts ──▶ segments waiting for credit ──▶ DATA frames
 *
 * When the engine grants no credit the segments fill up to UPLOAD_WINDOW bytes, then the client is read no further.
 * Small fields ("purpose") stay here; streamed ones (files) go to the engine. The REQUEST is made when the
 * first streamed part begins, so what it needs of the small fields must stand before it; what only must be right
 * is checked at the end: nothing is final before the last frame, which is sent when the whole form is valid. */
#ifndef SERVER_UPLOAD_H
#define SERVER_UPLOAD_H

#include "server/request.h"

enum { UPLOAD_MAX_FIELDS = 8, UPLOAD_FIELD_BYTES = 256, UPLOAD_WINDOW = 256 << 10 };

typedef struct upload_field {
	const char *name;
	bool streamed;
	bool required;
	bool early; /* stands before the first streamed part */
	bool named; /* streamed: any number of files, each with a name that the engine gets too */
} upload_field;

typedef struct upload_form {
	upload_field fields[UPLOAD_MAX_FIELDS + 1]; /* ends with a NULL name */
	/* Parameters of the REQUEST. NULL after a reply_refuse. file_name: as the client calls it, "" when it does not.
	 */
	json_t *(*params)(request *r, const char *file_name);
	/* The form is complete: is it right? False after a reply_refuse. NULL: always. */
	bool (*check)(request *r);
} upload_form;

/* For handlers of BODY_FORM and BODY_OCTETS: begin, then the row's engine_method gets the parts and its RESULT is the
 * answer. */
void upload_form_begin(request *r, const upload_form *form);
/* The whole body is one part of that name. params is stolen. */
void upload_octets_begin(request *r, const char *part, json_t *params);
/* A small field's value, or NULL when it has not come (yet). */
const char *upload_value(const request *r, const char *name);

#endif
