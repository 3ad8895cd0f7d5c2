/* nearest.h - "did you mean": the known word closest to a mistyped one. */
#ifndef PROTO_NEAREST_H
#define PROTO_NEAREST_H

#include <stddef.h>

enum { NEAREST_BYTES = 64 };

typedef struct nearest {
	const char *word; /* borrowed */
	char best[NEAREST_BYTES];
	size_t distance; /* distance of the closest word so far */
} nearest;

/* The edits between the first n bytes of `a` and m bytes of `b`; n and m are less than NEAREST_BYTES. */
size_t nearest_distance(const char *a, size_t n, const char *b, size_t m);

nearest nearest_of(const char *word);
/* Offer a known word, which is copied. Words of NEAREST_BYTES and more are ignored. */
void nearest_offer(nearest *n, const char *known);
/* The closest word offered, or NULL if none is close. Close means one edit per four characters, or a known word that
 * begins with the mistyped one. */
const char *nearest_found(const nearest *n);

#endif
