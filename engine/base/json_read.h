/* json_read.h - parse JSON from memory, and read its members; a failed allocation is STATUS_NOMEM and never reported as malformed text.
 *
 * jansson reports some failed allocations as "invalid token", or with an empty message at line -1. Every reader of a
 * stored or imported document calls these functions instead of json_loadb and json_unpack. */
#ifndef ENGINE_BASE_JSON_READ_H
#define ENGINE_BASE_JSON_READ_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Parse `text` with json_loadb's flags. STATUS_NOMEM if memory ran out, STATUS_INVALID if the text is not JSON; *out is
 * NULL then. `where` may be NULL; after STATUS_NOMEM its text is "out of memory". A failure in jansson's lexer is
 * detected only if jansson allocates with reserve_malloc. */
status json_read(json_t **out, const char *text, size_t bytes, size_t flags, json_error_t *where);

/* Unpack with json_unpack's format, which allocates. STATUS_NOMEM if memory ran out, STATUS_INVALID if a member is
 * missing or has another type. */
status json_read_members(const json_t *json, const char *format, ...);

/* Return the member `key` of an object; `fallback` if it is missing or no integer. */
int64_t json_read_integer(const json_t *object, const char *key, int64_t fallback);
/* Return the member `key` of an object; `fallback` if it is missing or no number. */
double json_read_real(const json_t *object, const char *key, double fallback);

#endif
