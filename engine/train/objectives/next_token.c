/* Each token of a block predicts the next one; the last predicts nothing, as in the reference recipe. A token that the
 * record excludes has the label -1: it is not predicted, and its row of the vocabulary product has no gradient. The
 * loss of a step is the mean over all other tokens, also if its micro-batches have different numbers of them. Shorter
 * blocks are padded at their end, where causal models cannot see it.
 *
 *   bits_per_byte   losses of all predicted tokens, divided by the bytes of these tokens
 *   perplexity      e to the mean loss
 *   accuracy        share of the predicted tokens that had the largest logit, the first of equals */
#include <math.h>

#include "engine/train/objective.h"

/* True if position i of a record has a label: the token after it. */
static bool is_asked(const text_record *r, int64_t i)
{
	return i + 1 < r->count && !(r->not_predicted && r->not_predicted[i + 1]);
}

static void next_token_make_example(const example *x, void *const *values)
{
	const text_record *r = x->record;
	int32_t *labels = values[1];
	example_tokens(x, values[0], NULL);
	for (int64_t i = 0; i < x->length; i++)
		labels[i] = r && is_asked(r, i) ? r->ids[i + 1] : -1;
}

typedef struct token_tally {
	int64_t bytes; /* for the text that was predicted */
	int64_t hits;
} token_tally;

static size_t next_token_tally_bytes(const dataset *d)
{
	(void)d;
	return sizeof(token_tally);
}

static status next_token_tally(evaluation *e, plan *p, int64_t first, int64_t rows)
{
	token_tally *t = e->tally;
	text_record *r = &e->record;
	int64_t hits;
	TRY(objective_count_hits(e, p, &hits));
	t->hits += hits;
	for (int64_t b = 0; b < rows; b++) {
		TRY(dataset_record(e->data, 0, 0, first + b * e->stride, r, NULL));
		for (int64_t i = 0; i < r->count; i++)
			t->bytes += is_asked(r, i) ? dataset_token_bytes(e->data, r->ids[i + 1]) : 0;
	}
	return STATUS_OK;
}

static void next_token_measure(const evaluation *e, double *metrics)
{
	const token_tally *t = e->tally;
	metrics[0] = e->nats / log(2) / (double)t->bytes;
	metrics[1] = exp(e->nats / e->labels);
	metrics[2] = (double)t->hits / e->labels;
}

/* True if the frequencies of bytes alone predict as well. */
static bool at_chance(const train_progress *p)
{
	return train_metric(p, "bits_per_byte") >= p->byte_entropy;
}

const objective objective_next_token = {
    .name = "next_token",
    .model = "additive2",
    .form = &form_causal,
    .records = RECORD_BLOCK,
    .skips_excluded = true,
    .ports = {PORT_TOKENS, PORT_LABELS},
    .n_ports = 2,
    .example = next_token_make_example,
    .metrics = {"bits_per_byte", "perplexity", "accuracy"},
    .measure = next_token_measure,
    .at_chance = at_chance,
    .hits = true,
    .tally_bytes = next_token_tally_bytes,
    .tally = next_token_tally,
};
