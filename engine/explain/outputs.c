/* outputs.c - downloads each output as it is and distributes it over the tokens on the host. A transposing op would
 * save that work and cost another kernel per backend; explanation is not the hot path. */
#include "engine/explain/outputs.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/explain/explain.h"

typedef struct output {
	value value;
	int64_t row;                   /* floats of a token in the output, or in one head of a matrix */
	int64_t at, width;             /* offset and floats in the log */
	int64_t heads;                 /* heads of a matrix; 0: not a matrix */
	int64_t rows, before, skipped; /* rows of a head; rows and columns before those of the tokens */
} output;

struct outputs {
	backend *backend;
	const plan *plan;
	int64_t length, floats; /* floats: per token in the log */
	int count;
	output *items;
	float *staging; /* [length][the longest row] */
};

static output outputs_find(const plan *p, attention_place place, int64_t layer, const log_part *part, int64_t at)
{
	static const char *const places[] = {"layers.%lld.%s", "source.layers.%lld.%s", "cross.%lld.%s"};
	char name[128];
	const graph *g = plan_graph(p);
	snprintf(name, sizeof name, places[place], (long long)layer, part->name);
	value v = graph_find(g, name);
	assert(v != VALUE_NONE);
	const shape s = graph_value(g, v)->shape;
	const port_role read = place == ATTENTION_OF_SOURCE ? PORT_SOURCE : PORT_TOKENS;
	output o = {.value = v, .at = at, .width = part->width, .heads = part->heads, .skipped = part->skipped};
	if (part->heads) {
		assert(s.rank == 4 && s.dim[1] == part->heads);
		o.row = s.dim[3];
		o.rows = s.dim[2];
		o.before = o.rows - shape_last(graph_value(g, port_find(g, read))->shape);
	} else {
		o.row = s.rank == 4 ? shape_count(s) / s.dim[0] : shape_last(s);
		assert(o.width <= o.row);
	}
	return o;
}

status outputs_new(outputs **out, const model *m, const plan *p, attention_place place, bool keys, int64_t length)
{
	explain_logs logs;
	int64_t longest = 0;
	*out = NULL;
	explain_logs_init(&logs, model_architecture(m), model_config(m), NULL, 1, 1);
	const explain_log *log = &logs.at[place];
	outputs *o = memory_new(1, sizeof *o);
	if (!o)
		return STATUS_NOMEM;
	*o = (outputs){
	    .backend = model_backend(m), .plan = p, .length = length, .floats = keys ? log->key_floats : log->floats};
	o->items = memory_new((size_t)log->layers * EXPLAINER_MAX_PARTS + 1, sizeof *o->items);
	for (int64_t l = 0; l < log->layers && o->items; l++) {
		log_part parts[EXPLAINER_MAX_PARTS];
		int64_t at = keys ? log->key_at[l] : log->at[l];
		int n = log->layer[l].explainer->parts(log->layer[l].options, parts);
		for (int i = 0; i < n; i++) {
			if (parts[i].of_source != keys)
				continue;
			output found = o->items[o->count++] = outputs_find(p, place, l, &parts[i], at);
			longest = found.row > longest ? found.row : longest;
			at += parts[i].width;
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

int64_t outputs_floats(const outputs *o)
{
	return o->floats;
}

static status fetch(const outputs *o, const float *device, int64_t floats)
{
	return o->backend->download(o->backend, o->staging, device, (size_t)floats * sizeof *device);
}

/* Download `count` tokens, each a row of the output. */
static status outputs_read_rows(const outputs *o, const output *x, int64_t first, int64_t count, float *log)
{
	const float *device = plan_data(o->plan, x->value);
	TRY(fetch(o, device + first * x->row, count * x->row));
	for (int64_t t = 0; t < count; t++)
		memcpy(log + t * o->floats + x->at, o->staging + t * x->row, (size_t)x->width * sizeof *log);
	return STATUS_OK;
}

static status read_matrix(const outputs *o, const output *x, int64_t first, int64_t count, float *log)
{
	const float *device = plan_data(o->plan, x->value);
	const int64_t width = x->width / x->heads, available = x->row - x->skipped,
	              n = available < width ? available : width;
	for (int64_t h = 0; h < x->heads; h++) {
		TRY(fetch(o, device + (h * x->rows + x->before + first) * x->row, count * x->row));
		for (int64_t t = 0; t < count; t++) {
			float *to = log + t * o->floats + x->at + h * width;
			memcpy(to, o->staging + t * x->row + x->skipped, (size_t)n * sizeof *to);
			memset(to + n, 0, (size_t)(width - n) * sizeof *to);
		}
	}
	return STATUS_OK;
}

status outputs_read(outputs *o, int64_t first, int64_t count, float *log)
{
	assert(count <= o->length);
	for (int i = 0; i < o->count; i++) {
		const output *x = &o->items[i];
		TRY((x->heads ? read_matrix : outputs_read_rows)(o, x, first, count, log));
	}
	return STATUS_OK;
}
