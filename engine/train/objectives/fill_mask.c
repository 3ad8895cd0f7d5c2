/* Some tokens of a block are asked for, of a model that sees those on both sides (Devlin et al. 2019). Of these 80 %
 * are shown as the mask token, 10 % as a random token and 10 % as they are; the label is the token itself. Shorter
 * blocks are filled up with padding, which is masked.
 *
 *   perplexity   e to the mean loss over the tokens that are asked for
 *   accuracy     the share of them that had the largest logit, the first one of equals
 *
 * Which ones: of the n tokens of a record that stand for text, special ones and prompts apart, max(1, round(f n)) with
 * f = mask_fraction, every choice being equally likely: going from left to right, a token is taken with probability
 * (still to be taken) / (still to be seen) (Knuth, "Seminumerical algorithms", 3.4.2, algorithm S). With whole_words n
 * counts words, and all tokens of a word are asked for; one begins where dataset_begins_word says so, and behind a
 * token that cannot be asked for. The random words are a function of the seed of the order, the epoch and the place in
 * it, which is the same in every evaluation. */
#include <math.h>

#include "engine/base/philox.h"
#include "engine/train/objective.h"

enum {
	SHOWN_PERCENT = 10,  /* as they are, */
	RANDOM_PERCENT = 10, /* and as another token */
	RANDOM_TRIES = 64
};

static status check(const dataset *d, const model_dims *dims, const train_options *o, error *err)
{
	(void)o;
	return example_check_mask(d, dims, err);
}

static bool is_text(const example *x, int32_t id)
{
	return id != example_mask(x->data, x->dims) && dataset_token_bytes(x->data, id) > 0;
}

static bool can_be_asked(const example *x, int64_t i)
{
	const text_record *r = x->record;
	return is_text(x, r->ids[i]) && !(r->not_predicted && r->not_predicted[i]);
}

/* Does token i, which can be asked for, begin one of the things that are chosen from? */
static bool begins(const example *x, int64_t i)
{
	const int32_t *ids = x->record->ids;
	return !x->options->whole_words || i == 0 || !can_be_asked(x, i - 1) ||
	       dataset_begins_word(x->data, ids[i - 1], ids[i]);
}

static philox_block draw(const example *x, int64_t i, uint32_t try)
{
	return philox(x->seed, PHILOX_STREAM_MASK + try, (uint32_t)x->epoch, (uint64_t)(x->place * x->length + i));
}

/* Any token that stands for text; the token itself if the tries find none. */
static int32_t random_token(const example *x, int64_t i, uint32_t word)
{
	for (uint32_t try = 1; try <= RANDOM_TRIES; try++) {
		int32_t id = (int32_t)philox_below(word, dataset_vocab(x->data));
		if (is_text(x, id))
			return id;
		word = draw(x, i, try).word[0];
	}
	return x->record->ids[i];
}

/* What is shown of token i, which is asked for. */
static int32_t show(const example *x, int64_t i, const philox_block *random)
{
	int64_t percent = philox_below(random->word[1], 100);
	if (percent < SHOWN_PERCENT)
		return x->record->ids[i];
	return percent < SHOWN_PERCENT + RANDOM_PERCENT ? random_token(x, i, random->word[2])
	                                                : (int32_t)example_mask(x->data, x->dims);
}

static void make_example(const example *x, void *const *values)
{
	int32_t *ids = values[0], *labels = values[2];
	int64_t count = x->record ? x->record->count : 0, unseen = 0;
	example_tokens(x, ids, values[1]);
	for (int64_t i = 0; i < x->length; i++)
		labels[i] = -1;
	for (int64_t i = 0; i < count; i++)
		unseen += can_be_asked(x, i) && begins(x, i);
	int64_t left = llround(x->options->mask_fraction * (double)unseen);
	left = left > 0 ? left : 1;
	bool taken = false;
	for (int64_t i = 0; i < count; i++) {
		if (!can_be_asked(x, i))
			continue;
		const philox_block random = draw(x, i, 0);
		if (begins(x, i)) {
			taken = philox_below(random.word[0], unseen--) < left;
			left -= taken;
		}
		if (!taken)
			continue;
		labels[i] = x->record->ids[i];
		ids[i] = show(x, i, &random);
	}
}

const objective objective_fill_mask = {
    .name = "fill_mask",
    .options = (const char *const[]){"mask_fraction", "whole_words", NULL},
    .head = HEAD_VOCABULARY,
    .uneven = true,
    .masks = true,
    .records = RECORD_BLOCK,
    .not_predicted = true,
    .ports = {PORT_TOKENS, PORT_MASK, PORT_LABELS},
    .n_ports = 3,
    .check = check,
    .example = make_example,
    .metrics = {"perplexity", "accuracy"},
    .measure = objective_measure_hits,
    .hits = true,
    .tally_bytes = objective_hits_bytes,
    .tally = objective_tally_hits,
};
