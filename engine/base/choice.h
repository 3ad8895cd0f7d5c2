/* choice.h - the error for a word that is not one of a list. */
#ifndef ENGINE_BASE_CHOICE_H
#define ENGINE_BASE_CHOICE_H

#include <stddef.h>

#include "engine/base/error.h"

/* STATUS_INVALID: must be "a", "b" or "c", not "d" (did you mean "b"?). given: NULL if the value is not a string.
 * allowed ends with NULL. */
status choice_refuse(error *err, const char *field, const char *given, const char *const *allowed);
/* Write ' (did you mean "b"?)', or "" if no allowed word is near. size: at least 1. */
void choice_suggest(const char *given, const char *const *allowed, char *out, size_t size);

#endif
