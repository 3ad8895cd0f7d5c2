/* Some tokens of a block are predicted by a model that reads both directions (Devlin et al. 2019). Of these 80 % are
 * shown as the mask token, 10 % as a random token and 10 % unchanged; the label is the token itself. Shorter blocks are
 * padded, and padding is masked.
 *
 *   perplexity   e to the mean loss over the predicted tokens
 *   accuracy     share of them that had the largest logit, the first of equals
 *
 * Selection: of the n tokens of a record that represent text, excluding special ones and prompts, max(1, round(f n))
 * are predicted, f = mask_fraction. Every selection is equally likely: from left to right, a token is selected with
 * probability (still to select) / (still to see) (Knuth, "Seminumerical algorithms", 3.4.2, algorithm S). With
 * whole_words n counts words, and all tokens of a word are selected together. A word begins where dataset_begins_word
 * is true, and after a token that cannot be selected. The random words are a function of the order's seed, the epoch
 * and the place in it; an evaluation always uses the same. */
#include <math.h>

#include "engine/base/philox.h"
#include "engine/train/objective.h"

enum {
	SHOWN_PERCENT = 10,  /* unchanged */
	RANDOM_PERCENT = 10, /* as a random token */
	RANDOM_TRIES = 64
};

static status fill_mask_check_data(const dataset *d, const model_dims *dims, const train_options *o, error *err)
{
	(void)o;
	return example_check_mask(d, dims, err);
}

static bool fill_mask_has_text(const example *x, int32_t id)
{
	return id != example_mask(x->data, x->dims) && dataset_token_bytes(x->data, id) > 0;
}

static bool can_be_asked(const example *x, int64_t i)
{
	const text_record *r = x->record;
	return fill_mask_has_text(x, r->ids[i]) && !(r->not_predicted && r->not_predicted[i]);
}

/* True if token i, which can be selected, begins one of the items to select from. */
static bool fill_mask_begins(const example *x, int64_t i)
{
	const int32_t *ids = x->record->ids;
	return !x->options->whole_words || i == 0 || !can_be_asked(x, i - 1) ||
	       dataset_begins_word(x->data, ids[i - 1], ids[i]);
}

static philox_block fill_mask_draw(const example *x, int64_t i, uint32_t try)
{
	return philox(x->seed, PHILOX_STREAM_MASK + try, (uint32_t)x->epoch, (uint64_t)(x->place * x->length + i));
}

/* Return a random token that represents text; the token itself if all attempts fail. */
static int32_t random_token(const example *x, int64_t i, uint32_t word)
{
	for (uint32_t try = 1; try <= RANDOM_TRIES; try++) {
		int32_t id = (int32_t)philox_below(word, dataset_vocab(x->data));
		if (fill_mask_has_text(x, id))
			return id;
		word = fill_mask_draw(x, i, try).word[0];
	}
	return x->record->ids[i];
}

/* Return what is shown in place of token i, which is predicted. */
static int32_t fill_mask_show(const example *x, int64_t i, const philox_block *random)
{
	int64_t percent = philox_below(random->word[1], 100);
	if (percent < SHOWN_PERCENT)
		return x->record->ids[i];
	return percent < SHOWN_PERCENT + RANDOM_PERCENT ? random_token(x, i, random->word[2])
	                                                : (int32_t)example_mask(x->data, x->dims);
}

static void fill_mask_make_example(const example *x, void *const *values)
{
	int32_t *ids = values[0], *labels = values[2];
	int64_t count = x->record ? x->record->count : 0, unseen = 0;
	example_tokens(x, ids, values[1]);
	for (int64_t i = 0; i < x->length; i++)
		labels[i] = -1;
	for (int64_t i = 0; i < count; i++)
		unseen += can_be_asked(x, i) && fill_mask_begins(x, i);
	int64_t left = llround(x->options->mask_fraction * (double)unseen);
	left = left > 0 ? left : 1;
	bool taken = false;
	for (int64_t i = 0; i < count; i++) {
		if (!can_be_asked(x, i))
			continue;
		const philox_block random = fill_mask_draw(x, i, 0);
		if (fill_mask_begins(x, i)) {
			taken = philox_below(random.word[0], unseen--) < left;
			left -= taken;
		}
		if (!taken)
			continue;
		labels[i] = x->record->ids[i];
		ids[i] = fill_mask_show(x, i, &random);
	}
}

const objective objective_fill_mask = {
    .name = "fill_mask",
    .model = "transformer",
    .options = (const char *const[]){"mask_fraction", "whole_words", NULL},
    .form = &form_masked,
    .uneven = true,
    .masks = true,
    .records = RECORD_BLOCK,
    .skips_excluded = true,
    .ports = {PORT_TOKENS, PORT_MASK, PORT_LABELS},
    .n_ports = 3,
    .check = fill_mask_check_data,
    .example = fill_mask_make_example,
    .metrics = {"perplexity", "accuracy"},
    .measure = objective_measure_hits,
    .hits = true,
    .tally_bytes = objective_hits_bytes,
    .tally = objective_tally_hits,
};
