/* blanks.h - blanks in a sentence, for the infilling of text with an encoder-decoder (Cirilla): the encoder reads a
 * sentence in which some words have become blanks, and the target is the whole sentence. A blank stands for one word or
 * more, since blanks side by side are one.
 *
 * Of w words n = min(⌊|x|⌋, 3), at least 1, places are drawn with replacement, each of the words but the last with the
 * same probability (of one word: that one); x is normal with mean 0 and deviation ⌊w / 3⌋. */
#ifndef ENGINE_TRAIN_BLANKS_H
#define ENGINE_TRAIN_BLANKS_H

#include <stdint.h>

enum { BLANKS_MOST = 3, BLANK = -1 };

/* How many places are drawn, from x. */
int64_t blanks_count(double x);
/* out [words]: the numbers of the words in their order, BLANK where words were blanked. Gives the count of these.
 * positions [n]: below words, in any order. words ≥ 1. */
int64_t blanks_apply(int64_t words, const int64_t *positions, int64_t n, int64_t *out);
/* Both with random numbers that are a function of the other arguments alone. */
int64_t blanks_draw(uint64_t seed, int64_t epoch, int64_t place, int64_t words, int64_t *out);

#endif
