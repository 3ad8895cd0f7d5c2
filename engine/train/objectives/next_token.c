/* Each token of a block predicts the one after it; the last predicts nothing, as in the reference recipe. */
#include <math.h>
#include <string.h>

#include "engine/train/objective.h"

static void example(const dataset *d, const text_record *r, int64_t length, void *const *values)
{
	int32_t *ids = values[0], *labels = values[1];
	if (!r) {
		for (int64_t i = 0; i < length; i++)
			ids[i] = dataset_pad(d);
		memset(labels, -1, (size_t)length * sizeof *labels);
		return;
	}
	memcpy(ids, r->ids, (size_t)length * sizeof *ids);
	memcpy(labels, r->ids + 1, (size_t)(length - 1) * sizeof *labels);
	labels[length - 1] = -1;
}

static void measure(const evaluation *e, double *metrics)
{
	metrics[0] = e->nats / log(2) / (double)dataset_label_bytes(e->data, e->records);
}

const objective objective_next_token = {
    .name = "next_token",
    .head = HEAD_VOCABULARY,
    .records = RECORD_BLOCK,
    .ports = {PORT_TOKENS, PORT_LABELS},
    .n_ports = 2,
    .example = example,
    .metrics = {"bits_per_byte"}, /* over the bytes that were predicted */
    .measure = measure,
};
