/* response_format.h - the format that a request asks for: JSON, or what a JSON Schema describes. It is in a chat's and
 * a completion's "response_format" and in a response's "text.format". */
#ifndef ENGINE_DAEMON_GENERATION_RESPONSE_FORMAT_H
#define ENGINE_DAEMON_GENERATION_RESPONSE_FORMAT_H

#include "engine/daemon/catalog/catalog.h"

typedef struct response_format {
	bool constrains;        /* else any text is right */
	const json_t *schema;   /* borrowed from the request; NULL: any object */
	const char *param;      /* how errors call the schema */
	constraint *constraint; /* shared; NULL before response_format_compile */
} response_format;

/* Loop thread. STATUS_INVALID: a schema is missing, or there is one beside another type. */
status response_format_read(response_format *out, const json_t *params, error *err);
/* Pool thread: make the constraint, or take one that the model keeps. Errors as of json_grammar_new, their param within
 * the request. */
status response_format_compile(response_format *f, model_entry *m, error *err);
void response_format_fini(response_format *f);

#endif
