/* outputs.c - every output is fetched as it lies and spread over the tokens by the host. A transposing
 * op would save the host's work and cost one more kernel per backend; explanation is not
 * the hot path. */
#include "engine/explain/outputs.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"

struct outputs {
	backend *backend;
	const plan *plan;
	int64_t length, heads, count; /* count: layers × rounds × 2 */
	value *values;                /* [layers][rounds][2] */
	float *staging;               /* [length][heads] */
};

int64_t outputs_token_floats(const model *m)
{
	const model_dims *d = model_dimensions(m);
	const explainer *e = model_explainer(m);
	return e ? d->layers * e->n_rounds * 2 * d->heads : 0;
}

status outputs_new(outputs **out, const model *m, const plan *p, int64_t length)
{
	static const char *const parts[] = {"score", "log_normalizer"};
	const explainer *e = model_explainer(m);
	const model_dims *d = model_dimensions(m);
	*out = NULL;
	outputs *o = memory_new(1, sizeof *o);
	if (!o)
		return STATUS_NOMEM;
	*o = (outputs){.backend = model_backend(m), .plan = p, .length = length, .heads = d->heads};
	o->count = d->layers * e->n_rounds * 2;
	o->values = memory_new((size_t)o->count, sizeof *o->values);
	o->staging = memory_new((size_t)length, (size_t)d->heads * sizeof *o->staging);
	if (!o->values || !o->staging) {
		outputs_free(o);
		return STATUS_NOMEM;
	}
	for (int64_t i = 0; i < o->count; i++) {
		char name[128];
		snprintf(name, sizeof name, "layers.%lld.%s.%s", (long long)(i / 2 / e->n_rounds),
		         e->rounds[i / 2 % e->n_rounds], parts[i % 2]);
		o->values[i] = graph_find(plan_graph(p), name);
		assert(o->values[i] != VALUE_NONE);
	}
	*out = o;
	return STATUS_OK;
}

void outputs_free(outputs *o)
{
	if (!o)
		return;
	free(o->values);
	free(o->staging);
	free(o);
}

status outputs_read(outputs *o, int64_t first, int64_t count, float *scores)
{
	size_t token_bytes = (size_t)o->heads * sizeof(float);
	assert(count <= o->length);
	for (int64_t i = 0; i < o->count; i++) {
		const float *device = (const float *)plan_data(o->plan, o->values[i]) + first * o->heads;
		TRY(o->backend->download(o->backend, o->staging, device, (size_t)count * token_bytes));
		for (int64_t t = 0; t < count; t++)
			memcpy(scores + (t * o->count + i) * o->heads, o->staging + t * o->heads, token_bytes);
	}
	return STATUS_OK;
}
