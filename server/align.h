/* align.h - align the tokens of two texts by a longest common subsequence. */
#ifndef SERVER_ALIGN_H
#define SERVER_ALIGN_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

/* Align two arrays of an explanation's tokens: partner[i] becomes the index in `second` of the token equal to token i
 * of `first`, or SIZE_MAX. Tokens are equal if their texts are; tokens without text, such as one byte of several, if
 * their ids are. If texts differ in more than 512 tokens between their equal beginnings and ends, only those are
 * aligned. False when out of memory. */
bool align_tokens(const json_t *first, const json_t *second, size_t *partner);

#endif
