/* sample_plan.c - plans of one node, for each power of two of adjustments. */
#include "engine/serve/sample_plan.h"

#include <assert.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/tensor/ops.h"

enum { SMALLEST = 64 }; /* adjustments of the smallest plan that has any */

typedef struct variant {
	struct variant *next;
	int64_t adjusts;
	plan *plan;
	value logits, setting, adjust, maxima; /* maxima: VALUE_NONE if the logits have none */
	sample_adjust *staging;                /* [adjusts] */
} variant;

struct sample_plan {
	backend *backend;
	int64_t rows, vocab;
	sample_place place;
	sample_setting *settings; /* [rows] staging */
	variant *variants;        /* the first has no adjustments */
};

status sample_plan_new(sample_plan **out, backend *b, int64_t rows, int64_t vocab, const sample_place *place,
                       error *err)
{
	*out = NULL;
	sample_plan *p = memory_new(1, sizeof *p);
	if (!p)
		return STATUS_NOMEM;
	*p = (sample_plan){.backend = b, .rows = rows, .vocab = vocab, .place = *place};
	p->settings = memory_new((size_t)rows, sizeof *p->settings);
	status s = p->settings ? sample_plan_prepare(p, 0, err) : STATUS_NOMEM;
	if (s != STATUS_OK) {
		sample_plan_free(p);
		return s;
	}
	*out = p;
	return STATUS_OK;
}

static void variant_free(variant *v)
{
	if (!v)
		return;
	plan_free(v->plan);
	free(v->staging);
	free(v);
}

void sample_plan_free(sample_plan *p)
{
	if (!p)
		return;
	while (p->variants) {
		variant *v = p->variants;
		p->variants = v->next;
		variant_free(v);
	}
	free(p->settings);
	free(p);
}

static shape maxima_shape(const sample_plan *p, int64_t rows)
{
	return SHAPE2(rows, (p->vocab + LINEAR_BLOCK - 1) / LINEAR_BLOCK);
}

static status variant_make(variant *v, const sample_plan *p, error *err)
{
	v->staging = memory_new((size_t)v->adjusts, sizeof *v->staging);
	graph *g = graph_new();
	if (!v->staging || !g) {
		graph_free(g);
		return STATUS_NOMEM;
	}
	v->logits = graph_input(g, "logits", DTYPE_F32, SHAPE2(p->rows, p->vocab));
	v->setting = graph_input(g, "setting", DTYPE_I32, SHAPE2(p->rows, SAMPLE_WORDS));
	v->adjust = graph_input(g, "adjust", DTYPE_I32, SHAPE2(v->adjusts, 3));
	v->maxima = p->place.maxima ? graph_input(g, "maxima", DTYPE_F32, maxima_shape(p, p->rows)) : VALUE_NONE;
	value token = op_sample(g, v->logits, v->setting, v->adjust, v->maxima);
	graph_output(g, token, "token");
	plan_binding bindings[4] = {{v->logits, p->place.logits}, {token, p->place.tokens}};
	int n = 2;
	if (v->maxima != VALUE_NONE)
		bindings[n++] = (plan_binding){v->maxima, p->place.maxima};
	if (v->adjusts == 0)
		bindings[n++] = (plan_binding){v->setting, p->place.settings};
	return plan_new(&v->plan, g, p->backend, bindings, n, err);
}

static variant *variant_for(const sample_plan *p, int64_t adjusts)
{
	variant *best = NULL;
	for (variant *v = p->variants; v; v = v->next)
		if (v->adjusts >= adjusts && (!best || v->adjusts < best->adjusts))
			best = v;
	return best;
}

status sample_plan_prepare(sample_plan *p, int64_t adjusts, error *err)
{
	int64_t requested = adjusts > 0 ? SMALLEST : 0;
	while (requested < adjusts)
		requested *= 2;
	variant *existing = variant_for(p, requested);
	if (existing && existing->adjusts == requested)
		return STATUS_OK;
	variant *v = memory_new(1, sizeof *v);
	if (!v)
		return STATUS_NOMEM;
	v->adjusts = requested;
	status s = variant_make(v, p, err);
	if (s != STATUS_OK) {
		variant_free(v);
		return s;
	}
	if (p->variants) {
		v->next = p->variants->next;
		p->variants->next = v;
	} else {
		p->variants = v;
	}
	return STATUS_OK;
}

static int64_t count_adjusts(const sample_plan *p, const sample_row *rows, int n)
{
	int64_t adjusts = 0;
	for (int i = 0; i < n; i++)
		if (rows[i].settings)
			adjusts += sample_row_adjusts(rows[i].tally->count, rows[i].allowed, p->vocab);
	return adjusts;
}

/* Write the settings of the first n rows, and their adjustments and masks one after the other into `adjusts`. */
static void sample_plan_fill(const sample_plan *p, const sample_row *rows, int n, sample_setting *settings,
                             sample_adjust *adjusts)
{
	const size_t mask = ((size_t)p->vocab + 31) / 32 * sizeof(uint32_t);
	int32_t used = 0;
	memset(settings, 0, (size_t)p->rows * sizeof *settings);
	for (int i = 0; i < n; i++) {
		if (!rows[i].settings)
			continue;
		int32_t count = rows[i].tally->count;
		settings[i] = sampling_setting(rows[i].settings, rows[i].position);
		settings[i].first = used;
		settings[i].count = count;
		if (count > 0)
			memcpy(adjusts + used, rows[i].tally->rows, (size_t)count * sizeof *adjusts);
		used += count;
		if (rows[i].allowed) {
			settings[i].masked = 1;
			memcpy(adjusts + used, rows[i].allowed, mask);
			used += sample_mask_rows(p->vocab);
		}
	}
}

bool sample_plan_settings(const sample_plan *p, const sample_row *rows, int n, sample_setting *settings)
{
	assert(n <= p->rows);
	bool plain = count_adjusts(p, rows, n) == 0;
	sample_plan_fill(p, rows, plain ? n : 0, settings, NULL);
	return plain;
}

status sample_plan_fit(sample_plan *p, int64_t n)
{
	const variant *v = p->variants;
	const plan_shape shapes[] = {
	    {v->logits, SHAPE2(n, p->vocab)}, {v->setting, SHAPE2(n, SAMPLE_WORDS)}, {v->maxima, maxima_shape(p, n)}};
	return plan_reshape(v->plan, shapes, v->maxima == VALUE_NONE ? 2 : 3, NULL);
}

plan *sample_plan_follower(const sample_plan *p)
{
	return p->variants->plan;
}

status sample_plan_run(sample_plan *p, const sample_row *rows, int n)
{
	int64_t adjusts = count_adjusts(p, rows, n);
	assert(n <= p->rows);
	variant *v = variant_for(p, adjusts);
	assert(v);
	sample_plan_fill(p, rows, n, p->settings, v->staging);
	TRY(plan_write(v->plan, v->setting, p->settings));
	if (adjusts > 0)
		TRY(plan_write(v->plan, v->adjust, v->staging));
	return plan_run(v->plan);
}
