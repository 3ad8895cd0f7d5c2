/* response_format.h - the requested format of generated text: JSON, a JSON Schema, a regular expression, a grammar or
 * listed texts; or that of an answer which may call functions. A chat or completion has it as "response_format", a
 * response as "text.format", and each of them as "structured_outputs". */
#ifndef ENGINE_DAEMON_GENERATION_RESPONSE_FORMAT_H
#define ENGINE_DAEMON_GENERATION_RESPONSE_FORMAT_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/text/grammar/call_grammar.h"

typedef struct response_format {
	bool constrains;                          /* false: any text is valid */
	const char *kind;                         /* "json", "regex", "choice", "grammar" or "calls" */
	const json_t *value;                      /* borrowed from the request; NULL: any JSON object */
	const char *field, *member;               /* names in errors: of the format, and of `value` in it */
	call_rules calls;                         /* without the stops (tool_calls.h); tools NULL: another kind */
	const char *stops[CALL_SEARCH_TEXTS - 1]; /* [calls.n_stops] borrowed */
	constraint *constraint;                   /* shared; NULL before response_format_compile */
} response_format;

/* Loop thread. STATUS_INVALID: a schema is missing, or given with another type; two formats are given, or none in
 * "structured_outputs". */
status response_format_read(response_format *out, const json_t *params, error *err);
/* Pool thread: compile the constraint, or take one that the model keeps for device `at` of the fleet. Errors as for
 * json_grammar_new, with the param within the request. */
status response_format_compile(response_format *f, model_entry *m, int at, error *err);
void response_format_fini(response_format *f);

#endif
