/* charsmap.h - SentencePiece's compiled normalization rules: texts and their replacements.
 *
 * A table is the size in bytes of a double array of little-endian units, the array, and the replacements, each ended by
 * a NUL. A unit holds a label, a flag that a text ends at it, and the base of its children, to which the next byte is
 * added (exclusive or). Reads never leave the table, whatever its units contain. Immutable; the table is borrowed. */
#ifndef ENGINE_TEXT_CHARSMAP_H
#define ENGINE_TEXT_CHARSMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed: no rules. */
typedef struct charsmap {
	const unsigned char *units;
	uint32_t n_units;
	const char *replacements;
	size_t replacements_bytes;
} charsmap;

/* False: the table is damaged. */
bool charsmap_read(charsmap *out, const unsigned char *table, size_t bytes);

/* A rule that matches the beginning of `text`: its length, 0 for none, and its replacement. */
typedef struct charsmap_match {
	size_t length, bytes;
	const char *made;
} charsmap_match;

/* The longest match, as in SentencePiece, or the shortest. */
charsmap_match charsmap_longest(const charsmap *m, const char *text, size_t bytes);
charsmap_match charsmap_shortest(const charsmap *m, const char *text, size_t bytes);
/* True if ASCII letters at the end of every text are unchanged, and no space is replaced together with characters
 * before it. May be false even so. */
bool charsmap_keeps_letters(const charsmap *m);

#endif
