/* The batch is gathered in host memory and written as a whole. Positions are 0…length-1
 * in every row and written once. */
#include "engine/train/pass.h"

#include <assert.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/model/feed.h"

struct pass {
	plan *plan;
	int64_t batch, length;
	value loss, count;
	int32_t *host_ids, *host_labels; /* [batch, length] */
};

status pass_new(pass **out, const model *m, const forward_spec *spec, float *gradients, error *err)
{
	*out = NULL;
	int64_t cells;
	if (!memory_product(spec->batch, spec->length, &cells))
		return error_set(err, STATUS_INVALID, "batch_size", "batch_size times sequence_length is too large");
	pass *p = memory_new(1, sizeof *p);
	if (!p)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	p->batch = spec->batch;
	p->length = spec->length;
	p->host_ids = memory_new((size_t)cells, sizeof *p->host_ids);
	p->host_labels = memory_new((size_t)cells, sizeof *p->host_labels);
	status s = STATUS_NOMEM;
	if (p->host_ids && p->host_labels)
		s = model_plan(&p->plan, m, spec, gradients, NULL, err);
	if (s == STATUS_OK) {
		const graph *g = plan_graph(p->plan);
		p->loss = port_find(g, PORT_LOSS);
		p->count = port_find(g, PORT_COUNT);
		s = feed_positions(p->plan, model_dimensions(m), POSITION_ERROR, 0);
	}
	if (s != STATUS_OK) {
		pass_free(p);
		return error_set(err, s, NULL, "a batch of %lld sequences of %lld tokens: %s", (long long)spec->batch,
		                 (long long)spec->length, status_text(s));
	}
	*out = p;
	return STATUS_OK;
}

void pass_free(pass *p)
{
	if (!p)
		return;
	plan_free(p->plan);
	free(p->host_ids);
	free(p->host_labels);
	free(p);
}

plan *pass_plan(const pass *p)
{
	return p->plan;
}

status pass_load(pass *p, const dataset *d, uint64_t shuffle, int64_t first, int64_t count)
{
	assert(count >= 0 && count <= p->batch && dataset_length(d) == p->length);
	int64_t blocks = dataset_blocks(d);
	for (int64_t b = 0; b < p->batch; b++) {
		int32_t *ids = p->host_ids + b * p->length, *labels = p->host_labels + b * p->length;
		if (b < count) {
			dataset_block(d, shuffle, (first + b) / blocks, (first + b) % blocks, ids, labels);
			continue;
		}
		memset(ids, 0, (size_t)p->length * sizeof *ids);
		memset(labels, -1, (size_t)p->length * sizeof *labels);
	}
	TRY(feed_write(p->plan, PORT_TOKENS, p->host_ids));
	return feed_write(p->plan, PORT_LABELS, p->host_labels);
}

status pass_seed(pass *p, uint64_t seed, uint32_t step)
{
	const uint32_t words[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), step, 0};
	return feed_write(p->plan, PORT_RANDOM, words);
}

const float *pass_loss(const pass *p)
{
	return plan_data(p->plan, p->loss);
}

status pass_result(pass *p, double *loss, double *count)
{
	float l, c;
	TRY(plan_read(p->plan, p->loss, &l));
	TRY(plan_read(p->plan, p->count, &c));
	*loss = l;
	*count = c;
	return STATUS_OK;
}
