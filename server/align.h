/* align.h - which tokens two texts have in common, in the same order: a longest common subsequence. */
#ifndef SERVER_ALIGN_H
#define SERVER_ALIGN_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

/* Of two arrays of an explanation's tokens: partner[i] becomes the index in `second` of the token that is the same as
 * the first's token i, or SIZE_MAX. Same: of the same text; without text, such as one byte of several, of the same id.
 * Texts that differ in more than 512 tokens between their equal beginnings and ends have only those in common.
 * False when out of memory. */
bool align_tokens(const json_t *first, const json_t *second, size_t *partner);

#endif
