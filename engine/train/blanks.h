/* blanks.h - hidden words of a sentence, for text infilling with an encoder-decoder (Cirilla). The encoder reads the
 * sentence with some words replaced by blanks; the target is the whole sentence. Adjacent blanks merge, so a blank
 * replaces one word or more.
 *
 * A sentence of w words gets n = max(1, min(⌊|x|⌋, 3)) places, where x is normal with mean 0 and deviation ⌊w / 3⌋.
 * Places are drawn with replacement, uniformly from all words but the last; a single word is always hidden. */
#ifndef ENGINE_TRAIN_BLANKS_H
#define ENGINE_TRAIN_BLANKS_H

#include <stdbool.h>
#include <stdint.h>

enum { BLANKS_MOST = 3 };

/* Indices of the hidden words, in any order, possibly repeated. */
typedef struct blanks {
	int64_t words[BLANKS_MOST];
	int64_t n;
} blanks;

/* Return the number of places for x. */
int64_t blanks_count(double x);
/* Draw the blanks of a sentence of `words` ≥ 1 words. The result is a function of the arguments alone. */
blanks blanks_draw(uint64_t seed, int64_t epoch, int64_t place, int64_t words);
bool blanks_hide(const blanks *b, int64_t word);
/* Append a word, or one of its tokens, to out, which has `count` entries. For a hidden word append `blank`, unless out
 * ends with it. Return the new count. */
int64_t blanks_append(int32_t *out, int64_t count, int32_t id, bool hidden, int32_t blank);

#endif
