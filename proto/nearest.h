/* nearest.h - "did you mean": the known word that a mistyped one is closest to. */
#ifndef PROTO_NEAREST_H
#define PROTO_NEAREST_H

#include <stddef.h>

enum { NEAREST_BYTES = 64 };

typedef struct nearest {
	const char *word; /* borrowed */
	char best[NEAREST_BYTES];
	size_t distance; /* of the best */
} nearest;

nearest nearest_of(const char *word);
/* Offer a known word, which is copied. Words of NEAREST_BYTES and more are passed over. */
void nearest_offer(nearest *n, const char *known);
/* The closest word offered, or NULL when none is close: one edit in four characters, or a known word that begins with
 * the mistyped one. */
const char *nearest_found(const nearest *n);

#endif
