/* Number of places of a sentence that Cirilla blanks: `n_blank` [n], from the numbers `normal` [n] that it draws for
 * sentences of `words` [n] words. */
#include "tests/golden/golden.h"
#include "engine/train/blanks.h"

#define DRAWN "normal"
#define WORDS "words"

enum { MAX_WORDS = 1 << 20 };

static bool recognises(const golden *g)
{
	return golden_find(g, DRAWN) && golden_find(g, WORDS);
}

static status evaluate(golden *g, error *err)
{
	extent e;
	const float *drawn;
	const int32_t *words;
	float *out;
	TRY(golden_rank(g, DRAWN, 1, &e, err));
	TRY(golden_floats(g, DRAWN, e, &drawn, err));
	TRY(golden_integers(g, WORDS, e, 1, MAX_WORDS, &words, err));
	TRY(golden_result(g, e, &out, err, "n_blank"));
	for (int64_t i = 0; i < e.dim[0]; i++)
		out[i] = (float)blanks_count(drawn[i]);
	return STATUS_OK;
}

const golden_reader golden_reader_cirilla_blanks = {
    .source = "counts of Cirilla's blanks",
    .recognises = recognises,
    .evaluate = evaluate,
};
