/* script_counts.h - the characters of a text by their script (Unicode Standard Annex #24, the libunistring library). */
#ifndef ENGINE_TEXT_SCRIPT_COUNTS_H
#define ENGINE_TEXT_SCRIPT_COUNTS_H

#include <stdint.h>

#include "engine/base/error.h"

enum { SCRIPT_COUNTS_MAX = 256 };

typedef struct script_counts {
	int64_t each[SCRIPT_COUNTS_MAX]; /* by the library's number of a script; the last: none */
	int64_t ascii[128];              /* not in `each`: by their codes */
} script_counts;

void script_counts_add(script_counts *c, uint32_t character);
/* The i-th script by its characters, the most frequent first, then by name: "Latin", "Han", "Common" (digits, spaces,
 * punctuation), "Unknown". *characters: their number. NULL past the end. */
const char *script_counts_at(script_counts *c, int i, int64_t *characters);

#endif
