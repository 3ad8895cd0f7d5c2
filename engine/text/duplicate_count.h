/* duplicate_count.h - count the texts that are equal to an earlier one, in bounded memory.
 *
 * The texts are given by hashes. A table has those that have occurred, with the repetitions of each. When it is full,
 * it drops half of them, by a bit of the hash. From then on it takes only hashes with the same bit: a half,
 * then a quarter. All copies of a text have the same hash, so they are kept or dropped together. The count is then an
 * estimate: the repetitions of the hashes that are kept × 2, 4, …. */
#ifndef ENGINE_TEXT_DUPLICATE_COUNT_H
#define ENGINE_TEXT_DUPLICATE_COUNT_H

#include <stdbool.h>

#include "engine/base/digest.h"
#include "engine/base/error.h"

typedef struct duplicate_count duplicate_count;

/* limit: the number of different hashes that are kept, a power of two. The table takes up to 48 bytes for each, and
 * twice that while it is rebuilt. */
status duplicate_count_new(duplicate_count **out, int64_t limit, error *err);
status duplicate_count_add(duplicate_count *d, digest_wide hash, error *err);
/* *estimated: hashes have been dropped. */
int64_t duplicate_count_value(const duplicate_count *d, bool *estimated);
void duplicate_count_free(duplicate_count *d); /* NULL is legal */

#endif
