/* outputs.c - every output is fetched as it lies and spread over the tokens by the host. A transposing
 * op would save the host's work and cost one more kernel per backend; explanation is not
 * the hot path. */
#include "engine/explain/outputs.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/explain/explain.h"

typedef struct output {
	value value;
	int64_t row;       /* floats of a token in the output */
	int64_t at, width; /* in the log */
} output;

struct outputs {
	backend *backend;
	const plan *plan;
	int64_t length, floats; /* floats: of a token in the log */
	int count;
	output *items;
	float *staging; /* [length][the longest row] */
};

static output find(const plan *p, int64_t layer, const log_part *part, int64_t at)
{
	char name[128];
	const graph *g = plan_graph(p);
	snprintf(name, sizeof name, "layers.%lld.%s", (long long)layer, part->name);
	value v = graph_find(g, name);
	assert(v != VALUE_NONE);
	const shape s = graph_value(g, v)->shape;
	const int64_t row = s.rank == 4 ? shape_count(s) / s.dim[0] : shape_last(s);
	output o = {v, row, at, part->width};
	assert(o.width <= o.row);
	return o;
}

status outputs_new(outputs **out, const model *m, const plan *p, int64_t length)
{
	explain_log log;
	int64_t longest = 0;
	*out = NULL;
	explain_log_init(&log, model_architecture(m), model_config(m), NULL, 0);
	outputs *o = memory_new(1, sizeof *o);
	if (!o)
		return STATUS_NOMEM;
	*o = (outputs){.backend = model_backend(m), .plan = p, .length = length, .floats = log.floats};
	o->items = memory_new((size_t)log.layers * EXPLAINER_MAX_PARTS, sizeof *o->items);
	for (int64_t l = 0; l < log.layers && o->items; l++) {
		log_part parts[EXPLAINER_MAX_PARTS];
		int64_t at = log.at[l];
		int n = log.explainer->parts(log.options[l], parts);
		for (int i = 0; i < n; at += parts[i++].width) {
			output found = o->items[o->count++] = find(p, l, &parts[i], at);
			longest = found.row > longest ? found.row : longest;
		}
	}
	o->staging = memory_new((size_t)length, (size_t)longest * sizeof *o->staging);
	if (!o->items || !o->staging) {
		outputs_free(o);
		return STATUS_NOMEM;
	}
	*out = o;
	return STATUS_OK;
}

void outputs_free(outputs *o)
{
	if (!o)
		return;
	free(o->items);
	free(o->staging);
	free(o);
}

status outputs_read(outputs *o, int64_t first, int64_t count, float *log)
{
	assert(count <= o->length);
	for (int i = 0; i < o->count; i++) {
		const output *x = &o->items[i];
		const float *device = (const float *)plan_data(o->plan, x->value) + first * x->row;
		TRY(o->backend->download(o->backend, o->staging, device, (size_t)(count * x->row) * sizeof *device));
		for (int64_t t = 0; t < count; t++)
			memcpy(log + t * o->floats + x->at, o->staging + t * x->row, (size_t)x->width * sizeof *log);
	}
	return STATUS_OK;
}
