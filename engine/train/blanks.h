/* blanks.h - blanks in a sentence, for the infilling of text with an encoder-decoder (Cirilla): the encoder reads a
 * sentence in which some words have become blanks, and the target is the whole sentence. A blank stands for one word or
 * more, since blanks side by side are one.
 *
 * Of w words n = min(⌊|x|⌋, 3), at least 1, places are drawn with replacement, each of the words but the last with the
 * same probability (of one word: that one); x is normal with mean 0 and deviation ⌊w / 3⌋. */
#ifndef ENGINE_TRAIN_BLANKS_H
#define ENGINE_TRAIN_BLANKS_H

#include <stdbool.h>
#include <stdint.h>

enum { BLANKS_MOST = 3 };

/* The numbers of the words that are hidden, in any order; a number may be there twice. */
typedef struct blanks {
	int64_t words[BLANKS_MOST];
	int64_t n;
} blanks;

/* How many places are drawn, from x. */
int64_t blanks_count(double x);
/* Of a sentence of so many words, at least 1, with random numbers that are a function of the arguments alone. */
blanks blanks_draw(uint64_t seed, int64_t epoch, int64_t place, int64_t words);
bool blanks_hide(const blanks *b, int64_t word);
/* Append a word, or a token of one, to out, which has `count`; in place of a hidden one `blank`, unless out ends with
 * that. Returns the new count. */
int64_t blanks_append(int32_t *out, int64_t count, int32_t id, bool hidden, int32_t blank);

#endif
