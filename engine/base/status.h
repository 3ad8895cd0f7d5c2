/* status.h - the one list of outcomes that a fallible function can have.
 *
 * Functions return a status and hand results back through `out` parameters, which are defined on failure too. Bad input
 * is a status; an assert means a bug of our own. */
#ifndef ENGINE_BASE_STATUS_H
#define ENGINE_BASE_STATUS_H

typedef enum status {
#define STATUS(name, wire, text, http) STATUS_##name,
#include "engine/base/status.def"
#undef STATUS
	STATUS_COUNT
} status;

/* Stable lower-case name used on the wire and in logs, e.g. "not_found". */
const char *status_name(status s);
/* Short English text. */
const char *status_text(status s);
/* The HTTP status a front end answers with. */
int status_http(status s);

/* The only macro with control flow: return early on failure. */
#define TRY(expr)                              \
	do {                                   \
		status try_status_ = (expr);   \
		if (try_status_ != STATUS_OK)  \
			return try_status_;    \
	} while (0)

#endif
