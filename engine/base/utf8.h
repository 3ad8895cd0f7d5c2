/* utf8.h - split bytes into characters and malformed sequences.
 *
 * Well-formed sequences are those of the Unicode Standard, table 3-7: no overlong forms, no surrogates, nothing above
 * U+10FFFF. A malformed sequence is measured by its maximal subpart: the longest prefix of a well-formed sequence, at
 * least one byte. Replacing each by one U+FFFD gives the same text as in browsers. */
#ifndef ENGINE_BASE_UTF8_H
#define ENGINE_BASE_UTF8_H

#include <stddef.h>

typedef enum utf8_kind {
	UTF8_WHOLE,   /* a character */
	UTF8_PARTIAL, /* the beginning of a character: more bytes may complete it */
	UTF8_INVALID  /* a maximal subpart that can never become whole */
} utf8_kind;

/* Classify the beginning of n >= 1 bytes; *bytes is its length. */
utf8_kind utf8_next(const unsigned char *p, size_t n, size_t *bytes);

/* Length of the longest well-formed prefix: `bytes` when all of the text is well-formed. */
size_t utf8_valid_prefix(const char *text, size_t bytes);

/* Replace each malformed maximal subpart by one '?', in place. Such parts come from a precision ("%.64s") or a full
 * buffer that cut a character, or from bytes that never were UTF-8. jansson makes no string of such a text. */
void utf8_repair(char *text);

#endif
