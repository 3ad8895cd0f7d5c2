/* charsmap.h - SentencePiece's compiled rules of normalisation: texts, and what each is replaced by.
 *
 * A table is the size in bytes of a double array of little-endian units, the array, and the replacements, each ended by
 * a NUL. A unit holds a label, whether a text ends at it, and the place of its children, to which the next byte is
 * added (exclusive or). Nothing outside the table is read whatever its units say. Immutable; the table is borrowed. */
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

/* A text with a rule, of which `text` is a beginning: its length, 0: none; and what it becomes. */
typedef struct charsmap_match {
	size_t length, bytes;
	const char *made;
} charsmap_match;

/* The longest, as SentencePiece wants it, or the shortest. */
charsmap_match charsmap_longest(const charsmap *m, const char *text, size_t bytes);
charsmap_match charsmap_shortest(const charsmap *m, const char *text, size_t bytes);
/* Are ASCII letters left as they are at the end of every text, and is no space replaced together with what is before
 * it? Never true when not. */
bool charsmap_keeps_letters(const charsmap *m);

#endif
