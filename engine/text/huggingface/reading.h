/* reading.h - strict reading of the parts of a tokenizer.json: what is not known is refused by its path, never ignored.
 *
 * A path such as "pre_tokenizer.pretokenizers[1]" names a part in messages, and is the param of errors. */
#ifndef ENGINE_TEXT_HUGGINGFACE_READING_H
#define ENGINE_TEXT_HUGGINGFACE_READING_H

#include <jansson.h>
#include <stdbool.h>

#include "engine/base/error.h"

enum { READING_PATH_BYTES = 96 };

/* STATUS_UNSUPPORTED: "PATH" and a printf-style rest. */
status reading_refuse(error *err, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* STATUS_INVALID, the same way. */
status reading_blame(error *err, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The "type" of a part. */
status reading_type(const json_t *part, const char *path, const char **out, error *err);
/* Refuse keys that are not in the NULL-terminated list. */
status reading_keys(const json_t *part, const char *path, const char *const *known, error *err);
/* A member; missing or null: `fallback`. */
status reading_bool(const json_t *part, const char *path, const char *key, bool fallback, bool *out, error *err);
status reading_string(const json_t *part, const char *path, const char *key, const char *fallback, const char **out,
                      error *err);

/* Hand over the members of a part's list, in which a "Sequence" is replaced by its own members (in `list`), in order.
 * NULL and null: none. */
typedef status (*reading_each)(void *context, const json_t *part, const char *type, const char *path, error *err);
status reading_sequence(const json_t *part, const char *path, const char *list, reading_each each, void *context,
                        error *err);

#endif
