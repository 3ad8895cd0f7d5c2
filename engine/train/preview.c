/* preview.c - tokens are drawn on the host from the softmax of the logits over TEMPERATURE. The most likely text would
 * repeat itself, and engine/serve's sampler is above this folder. */
#include "engine/train/preview.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/philox.h"
#include "engine/model/adapter.h"
#include "engine/model/feed.h"
#include "engine/model/lora.h"

static const double temperature = 0.8;

struct preview {
	plan *plan;
	const model *model;
	backend *backend;
	const model_dims *dims;
	float *pool; /* device memory of one slot */
	float *logits;
	double *mass; /* [vocab] */
	int64_t vocab;
	uint64_t seed;
	int32_t end;
	int32_t ids[PREVIEW_PROMPT + PREVIEW_TOKENS];
	int prompt, count, read, limit;
};

static status take_prompt(preview *p, const dataset *valid, error *err)
{
	text_record r = {0};
	status s = dataset_record(valid, 0, 0, 0, &r, err);
	if (s == STATUS_OK) {
		/* The end of a prompt, or the beginning of a text. */
		const bool prompted = dataset_kind(valid) == RECORD_PREFERENCE && r.source > 0;
		const int64_t count = prompted ? r.source : r.count / 2;
		p->prompt = (int)(count < PREVIEW_PROMPT ? count : PREVIEW_PROMPT);
		memcpy(p->ids, r.ids + (prompted ? count - p->prompt : 0), (size_t)p->prompt * sizeof *p->ids);
	}
	p->end = dataset_end(valid);
	text_record_fini(&r);
	return s;
}

/* True for a state adapter. */
static bool has_first_state(const model *m)
{
	return model_base(m) && !model_lora(m);
}

static status preview_make_plan(preview *p, const model *m, error *err)
{
	const forward_spec spec = {.batch = 1,
	                           .length = 1,
	                           .phase = PHASE_STEP,
	                           .slots = 1,
	                           .initial_states = has_first_state(m),
	                           .out.logits = LOGITS_LAST};
	void *pool;
	TRY(p->backend->allocate(p->backend, (size_t)model_state_floats(m) * sizeof(float), &pool));
	p->pool = pool;
	return model_plan(&p->plan, m, &spec, NULL, p->pool, err);
}

status preview_new(preview **out, const model *m, const dataset *valid, uint64_t seed, error *err)
{
	const model_dims *d = model_dimensions(m);
	*out = NULL;
	preview *p = memory_new(1, sizeof *p);
	if (!p)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	p->model = m;
	p->backend = model_backend(m);
	p->dims = d;
	p->vocab = d->outputs;
	p->seed = seed;
	p->logits = memory_new((size_t)d->outputs, sizeof *p->logits);
	p->mass = memory_new((size_t)d->outputs, sizeof *p->mass);
	status s = p->logits && p->mass ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = take_prompt(p, valid, err);
	p->limit = p->prompt + PREVIEW_TOKENS;
	if (d->positions < p->limit)
		p->limit = (int)d->positions;
	if (s == STATUS_OK)
		s = preview_make_plan(p, m, err);
	if (s == STATUS_OK) {
		*out = p;
		return s;
	}
	preview_free(p);
	return error_set(err, s, NULL, "the text of an evaluation: %s", status_text(s));
}

void preview_free(preview *p)
{
	if (!p)
		return;
	plan_free(p->plan);
	p->backend->release(p->backend, p->pool);
	free(p->logits);
	free(p->mass);
	free(p);
}

void preview_begin(preview *p)
{
	p->count = p->prompt;
	p->read = 0;
}

plan *preview_plan(const preview *p)
{
	return p->plan;
}

/* Start from the adapter's present state. */
static status enter_slot(const preview *p)
{
	const int64_t floats = model_state_floats(p->model);
	float *slot = memory_new((size_t)floats, sizeof *slot);
	status s = slot ? adapter_slot(p->model, slot, NULL) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = p->backend->upload(p->backend, p->pool, slot, (size_t)floats * sizeof *slot);
	free(slot);
	return s;
}

status preview_enter(preview *p)
{
	if (p->read == 0 && has_first_state(p->model))
		TRY(enter_slot(p));
	TRY(feed_write(p->plan, PORT_TOKENS, &p->ids[p->read]));
	TRY(feed_positions(p->plan, p->dims, POSITION_ERROR, p->read));
	return feed_step(p->plan, p->read, 1);
}

/* Return the token in whose share of the mass u falls; the end of the text if the logits are not finite. */
static int32_t preview_draw(preview *p)
{
	double most = -INFINITY, sum = 0;
	for (int64_t i = 0; i < p->vocab; i++)
		most = fmax(most, (double)p->logits[i]);
	for (int64_t i = 0; i < p->vocab; i++)
		sum += p->mass[i] = exp(((double)p->logits[i] - most) / temperature);
	if (!isfinite(sum))
		return p->end;
	uint32_t word = philox(p->seed, PHILOX_STREAM_SAMPLE, 0, (uint64_t)p->count).word[0];
	double left = (double)philox_uniform(word) * sum;
	int64_t token = 0;
	for (int64_t i = 0; i < p->vocab && left >= 0; i++) {
		token = p->mass[i] > 0 ? i : token;
		left -= p->mass[i];
	}
	return (int32_t)token;
}

status preview_leave(preview *p, bool *more)
{
	*more = true;
	if (++p->read < p->prompt)
		return STATUS_OK;
	TRY(plan_read(p->plan, port_find(plan_graph(p->plan), PORT_LOGITS), p->logits));
	int32_t token = preview_draw(p);
	*more = token != p->end;
	if (*more && p->count < p->limit)
		p->ids[p->count++] = token;
	*more = *more && p->count < p->limit;
	return STATUS_OK;
}

const int32_t *preview_tokens(const preview *p, int *prompt, int *count)
{
	*prompt = p->prompt;
	*count = p->count;
	return p->ids;
}
