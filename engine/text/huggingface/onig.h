/* onig.h - a pattern in Oniguruma's syntax as one in PCRE2's that means the same. */
#ifndef ENGINE_TEXT_HUGGINGFACE_ONIG_H
#define ENGINE_TEXT_HUGGINGFACE_ONIG_H

#include <stddef.h>

#include "engine/base/error.h"

/* *out is malloc'ed. STATUS_UNSUPPORTED names what has no equal. */
status onig_translate(char **out, const char *text, size_t bytes, const char *path, error *err);

#endif
