/* Each token of a block predicts the one after it; the last predicts nothing, as in the reference recipe. A token that
 * the record marks as not asked for is predicted by none. Blocks that are shorter are filled up behind their end, where
 * what is causal cannot see it. */
#include <math.h>
#include <string.h>

#include "engine/train/objective.h"

/* Is there a label at position i of a record: the token after it? */
static bool is_asked(const text_record *r, int64_t i)
{
	return i + 1 < r->count && !(r->unasked && r->unasked[i + 1]);
}

static void example(const dataset *d, const text_record *r, int64_t length, void *const *values)
{
	int32_t *ids = values[0], *labels = values[1];
	int64_t count = r ? r->count : 0;
	if (r)
		memcpy(ids, r->ids, (size_t)count * sizeof *ids);
	for (int64_t i = count; i < length; i++)
		ids[i] = dataset_pad(d);
	for (int64_t i = 0; i < length; i++)
		labels[i] = r && is_asked(r, i) ? r->ids[i + 1] : -1;
}

/* The tally: bytes of the text that was predicted. */
static size_t tally_bytes(const dataset *d)
{
	(void)d;
	return sizeof(int64_t);
}

static status tally(evaluation *e, plan *p, int64_t first, int64_t rows)
{
	int64_t *bytes = e->tally;
	text_record *r = &e->record;
	(void)p;
	for (int64_t b = 0; b < rows; b++) {
		TRY(dataset_record(e->data, 0, 0, first + b, r, NULL));
		for (int64_t i = 0; i < r->count; i++)
			*bytes += is_asked(r, i) ? dataset_token_bytes(e->data, r->ids[i + 1]) : 0;
	}
	return STATUS_OK;
}

static void measure(const evaluation *e, double *metrics)
{
	const int64_t *bytes = e->tally;
	metrics[0] = e->nats / log(2) / (double)*bytes;
	metrics[1] = exp(e->nats / e->labels);
}

const objective objective_next_token = {
    .name = "next_token",
    .head = HEAD_VOCABULARY,
    .records = RECORD_BLOCK,
    .ports = {PORT_TOKENS, PORT_LABELS},
    .n_ports = 2,
    .example = example,
    .metrics = {"bits_per_byte", "perplexity"}, /* over the bytes, the tokens that were predicted */
    .measure = measure,
    .tally_bytes = tally_bytes,
    .tally = tally,
};
