/* error.h - a status with a message and the name of the offending field.
 *
 * Functions whose failures a user must understand take an `error *` (NULL is legal: the caller only wants the status).
 * The first failure wins: setting an error that is already set keeps the earlier, more specific words. STATUS_OK sets
 * nothing. `param` names the offending field ("additive.config.n_heads"); it is empty when no field is to blame.
 * Messages hold no absolute path and no user text beyond a short quoted value. Both are well-formed UTF-8, wherever
 * they were cut. */
#ifndef ENGINE_BASE_ERROR_H
#define ENGINE_BASE_ERROR_H

#include <stdarg.h>

#include "engine/base/status.h"

typedef struct error {
	status status;
	char param[128];
	char message[384];
} error;

#define ERROR_INIT                                                                                                     \
	{                                                                                                              \
		STATUS_OK, "", ""                                                                                      \
	}

/* Record `s` with a printf-style message; `param` may be NULL. Returns `s`, so that callers can write `return
 * error_set(err, STATUS_INVALID, "n_heads", "must be …")`. */
status error_set(error *err, status s, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
status error_set_list(error *err, status s, const char *param, const char *format, va_list arguments)
    __attribute__((format(printf, 4, 0)));

/* Set err to `s` with the status's own text if it is not set yet, for failures whose cause set no message. STATUS_OK
 * changes nothing. Returns `s`. */
status error_settle(error *err, status s);

/* STATUS_NOMEM, "out of memory for …". */
status error_no_memory(error *err, const char *purpose);

/* Put "prefix." before a param that is set ("n_heads" -> "config.n_heads"). */
void error_prefix(error *err, const char *prefix);

/* The message, or the status's text when none was recorded. An error that was never set reads "internal error", not
 * "success". */
const char *error_message(const error *err);

#endif
