/* word_pattern.h - patterns that cut a text into words: which of them always cut before a space.
 *
 * A pattern is known if each of its alternatives is one that published tokenizers use, in any order. */
#ifndef ENGINE_TEXT_HUGGINGFACE_WORD_PATTERN_H
#define ENGINE_TEXT_HUGGINGFACE_WORD_PATTERN_H

#include <stddef.h>

/* Effect of a pre-tokenizer's step at a place with a letter, a space and a letter. */
typedef enum division {
	DIVISION_UNKNOWN,
	DIVISION_NONE,  /* the text is not divided there, and what is on one side has no part in how the other is */
	DIVISION_BEFORE /* it is divided directly before the space, into what each side alone is divided into */
} division;

/* The division by a pattern in Oniguruma's syntax whose matches, and the text between them, are the words. */
division word_pattern_divides(const char *pattern, size_t bytes);

#endif
