/* utf8.h - telling characters from broken bytes.
 *
 * Well-formed sequences are those of the Unicode Standard, table 3-7: no overlong forms,
 * no surrogates, nothing above U+10FFFF. What is not well-formed is measured by its
 * maximal subpart (the longest prefix of a well-formed sequence, at least one byte), so that
 * replacing each by one U+FFFD gives what every browser gives. */
#ifndef ENGINE_BASE_UTF8_H
#define ENGINE_BASE_UTF8_H

#include <stddef.h>

typedef enum utf8_kind {
	UTF8_WHOLE,   /* a character */
	UTF8_PARTIAL, /* the beginning of one: it may become whole with more bytes */
	UTF8_INVALID  /* a maximal subpart that can never become whole */
} utf8_kind;

/* What the first of n >= 1 bytes begin, and over how many bytes it extends. */
utf8_kind utf8_next(const unsigned char *p, size_t n, size_t *bytes);

/* Length of the longest well-formed prefix: `bytes` when all of the text is well-formed. */
size_t utf8_valid_prefix(const char *text, size_t bytes);

/* Replace each maximal subpart that is not well-formed by one '?', in place: a character that a precision ("%.64s") or
 * the end of a buffer has cut in half, and bytes that never were UTF-8. jansson makes no string of such a text. */
void utf8_repair(char *text);

#endif
