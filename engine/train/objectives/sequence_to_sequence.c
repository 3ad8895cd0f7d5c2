/* A source is encoded, and each token of its target is predicted from the source and the tokens before it (teacher
 * forcing). A decoder reads the start token (model_dims.start) and the target without its last token, which is the
 * tokenizer's end. The labels are the target. Rows are padded: a source's padding is masked. A decoder's is at its end,
 * where causal models cannot see it, and has labels of -1.
 *
 *   perplexity   e to the mean loss over the tokens of the targets
 *   accuracy     share of them that had the largest logit, the first of equals
 *   exact        share of the targets in which every token had */
#include <math.h>
#include <string.h>

#include "engine/train/objective.h"

static status sequence_to_sequence_check(const dataset *d, const model_dims *dims, const train_options *o, error *err)
{
	(void)o;
	return example_check_start(d, dims, err);
}

static void sequence_to_sequence_make_example(const example *x, void *const *values)
{
	const text_record *r = x->record;
	int64_t source = r ? r->source : 0, target = r ? r->count - r->source : 0;
	int32_t *source_ids = values[0], *labels = values[3];
	if (source > 0)
		memcpy(source_ids, r->ids, (size_t)source * sizeof *source_ids);
	if (target > 0)
		memcpy(labels, r->ids + source, (size_t)target * sizeof *labels);
	example_fill_source(x, source, source_ids, values[1]);
	example_shift_labels(x, target, values[2], labels);
}

typedef struct target_tally {
	int64_t hits, exact;
} target_tally;

static size_t sequence_to_sequence_tally_bytes(const dataset *d)
{
	(void)d;
	return sizeof(target_tally);
}

static status sequence_to_sequence_tally(evaluation *e, plan *p, int64_t first, int64_t rows)
{
	target_tally *t = e->tally;
	text_record *r = &e->record;
	int64_t all, length = dataset_length(e->data);
	TRY(objective_count_hits(e, p, &all));
	t->hits += all;
	for (int64_t b = 0; b < rows; b++) {
		int64_t hits = 0;
		TRY(dataset_record(e->data, 0, 0, first + b * e->stride, r, NULL));
		for (int64_t i = 0; i < length; i++)
			hits += e->hits[b * length + i] != 0;
		t->exact += hits == r->count - r->source;
	}
	return STATUS_OK;
}

static void sequence_to_sequence_measure(const evaluation *e, double *metrics)
{
	const target_tally *t = e->tally;
	metrics[0] = exp(e->nats / e->labels);
	metrics[1] = (double)t->hits / e->labels;
	metrics[2] = (double)t->exact / (double)e->records;
}

const objective objective_sequence_to_sequence = {
    .name = "sequence_to_sequence",
    .model = "transformer",
    .options = (const char *const[]){"source_length", NULL},
    .form = &form_encoder_decoder,
    .uneven = true,
    .records = RECORD_PAIR,
    .ports = {PORT_SOURCE, PORT_SOURCE_MASK, PORT_TOKENS, PORT_LABELS},
    .n_ports = 4,
    .check = sequence_to_sequence_check,
    .example = sequence_to_sequence_make_example,
    .metrics = {"perplexity", "accuracy", "exact"},
    .measure = sequence_to_sequence_measure,
    .hits = true,
    .tally_bytes = sequence_to_sequence_tally_bytes,
    .tally = sequence_to_sequence_tally,
};
