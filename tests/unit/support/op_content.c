/* op_content.c - the content of a case's inputs, by their names. */
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/sample.h"
#include "engine/tensor/panel.h"
#include "tests/unit/support/op_cases.h"
#include "tests/unit/support/random.h"

/* Derive a seed from a name, so that equal names have equal content in every case. */
static uint64_t seed_of(const char *name)
{
	uint64_t hash = 1469598103934665603u; /* FNV-1a */
	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 1099511628211u;
	return hash;
}

static void fill_f32(const char *name, float *x, int64_t count)
{
	double std = strstr(name, "loud") ? 400 : strstr(name, "wide") ? 3 : 1;
	random_normal(x, count, seed_of(name), std);
	for (int64_t i = 0; i < count && strstr(name, "feature"); i++)
		x[i] += x[i] < 0 ? -0.125f : 0.125f;
	for (int64_t i = 0; i < count && strstr(name, "zeros"); i += 3)
		x[i] = i % 2 ? -0.0f : 0.0f;
	for (int64_t i = 0; i < count && strstr(name, "apart"); i++) /* any 11 neighbours differ by 0.2 or more */
		x[i] = 0.2f * (float)(37 * i % 11);
	if (strcmp(name, "hyper") == 0)
		x[0] = 1e-2f, x[1] = 3; /* learning rate, step */
	else if (strcmp(name, "norm2") == 0)
		x[0] = 4;
	else if (strcmp(name, "norm2 nan") == 0)
		memset(x, 0xff, sizeof *x);
	else if (strcmp(name, "v") == 0 || strcmp(name, "v zeros") == 0) /* a second moment is not negative */
		for (int64_t i = 0; i < count; i++)
			x[i] *= x[i];
}

static void fill_bf16(const char *name, uint16_t *x, int64_t count)
{
	float *wide = malloc((size_t)(count + 1) * sizeof *wide);
	if (!wide)
		abort();
	fill_f32(name, wide, count);
	for (int64_t i = 0; i < count; i++)
		x[i] = panel_bf16(wide[i]);
	free(wide);
}

static void fill_panels(const value_info *info, void *panels)
{
	int64_t count = shape_count(info->shape);
	float *weight = malloc((size_t)(count + 1) * sizeof *weight);
	if (!weight)
		abort();
	fill_f32(info->name, weight, count);
	panel_pack(info->type, weight, shape_rows(info->shape), shape_last(info->shape), panels);
	free(weight);
}

static int32_t ragged_start(const op_case *c, int64_t sequence)
{
	return (int32_t)(sequence * sequence * c->arg[1] / (c->arg[0] * c->arg[0]));
}

/* Masks of linear attention: the first or the last third of each sequence is masked, or the entire first sequence. */
static bool fill_mask(const op_case *c, const char *name, int32_t *x, int64_t count)
{
	const int64_t keys = c->arg[4] ? c->arg[4] : c->arg[1];
	const bool leading = strcmp(name, "mask leading") == 0, trailing = strcmp(name, "mask trailing") == 0;
	if (!leading && !trailing && strcmp(name, "mask all of the first") != 0)
		return false;
	for (int64_t i = 0; i < count; i++)
		x[i] = leading ? i % keys >= keys / 3 : trailing ? i % keys < keys - keys / 3 : i >= keys;
	return true;
}

/* The first `count` of tensors of 5 x 16, 1 x 31, 33 x 7, 3 x 1 and 2 x 300. */
static void fill_spans(row_span *x, int64_t count)
{
	static const row_span spans[OP_CASE_SPANS] = {
	    {0, 0, 16, 1}, {5, 5, 31, 0}, {6, 7, 7, 1}, {39, 22, 1, 0}, {42, 23, 300, 0}};
	memcpy(x, spans, (size_t)count * sizeof *x);
}

static void fill_i32(const op_case *c, const char *name, int32_t *x, int64_t count)
{
	if (strcmp(name, "mask away") == 0) { /* the first sequence has no keys */
		for (int64_t i = 0; i < count; i++)
			x[i] = i >= count / 2;
		return;
	}
	if (fill_mask(c, name, x, count))
		return;
	if (strncmp(name, "mask", 4) == 0)
		random_integers(x, count, seed_of(name), 0, 1);
	else if (strcmp(name, "rng") == 0)
		random_integers(x, count, seed_of(name), INT32_MIN, INT32_MAX);
	else if (strcmp(name, "slot") == 0) /* distinct and out of order */
		for (int64_t i = 0; i < count; i++)
			x[i] = (int32_t)(count - i);
	else if (strcmp(name, "start") == 0) /* rooms of different sizes; the first may be empty */
		for (int64_t i = 0; i < count; i++)
			x[i] = ragged_start(c, i);
	else if (strcmp(name, "length ragged") ==
	         0) /* some fill their room; the others leave tokens that no sequence reads */
		for (int64_t i = 0; i < count; i++) {
			int32_t room = ragged_start(c, i + 1) - ragged_start(c, i);
			x[i] = room > i % 3 ? room - (int32_t)(i % 3) : room;
		}
	else if (strcmp(name, "position zero") == 0)
		memset(x, 0, (size_t)count * sizeof *x);
	else if (strcmp(name, "position") == 0) /* as many as the earlier call read */
		random_integers(x, count, seed_of("length before"), c->low, c->high);
	else
		random_integers(x, count, seed_of(name), c->low, c->high);
}

/* Settings of every kind; the rows of adjust are shared out evenly. Every row is active, so that no token is -1. */
static void fill_settings(const op_case *c, sample_setting *s, int64_t rows)
{
	static const float temperatures[] = {0, 1, 0.7f, 3}, parts[] = {1, 0.9f, 0.5f};
	int32_t share = rows ? (int32_t)(c->arg[2] / rows) : 0;
	for (int32_t i = 0; i < rows; i++)
		s[i] = (sample_setting){.temperature = temperatures[i % 4],
		                        .top_p = parts[i % 3],
		                        .min_p = i % 5 ? 0 : 0.01f,
		                        .top_a = i % 11 ? 0 : 0.1f,
		                        .top_a_power = 2,
		                        .top_k = i % 7 ? 0 : 20,
		                        .repetition_penalty = i % 2 ? 1.3f : 1,
		                        .presence_penalty = 0.1f * (float)(i % 3),
		                        .frequency_penalty = -0.2f,
		                        .seed_low = (uint32_t)i,
		                        .position_low = 100,
		                        .first = i * share,
		                        .count = share,
		                        .active = 1};
}

/* Tokens rise within a row's share. */
static void fill_adjust(const op_case *c, sample_adjust *a, int64_t count)
{
	int64_t share = count ? c->arg[2] / c->arg[0] : 0;
	for (int64_t i = 0; i < count; i++)
		a[i] = (sample_adjust){(int32_t)(i % share * (c->arg[1] / share)), (int32_t)(i % 3),
		                       0.5f * (float)(i % 4)};
}

void op_cases_fill(const op_case *c, const value_info *info, void *data)
{
	int64_t count = shape_count(info->shape);
	if (dtype_is_panel(info->type))
		fill_panels(info, data);
	else if (info->type == DTYPE_F32)
		fill_f32(info->name, data, count);
	else if (info->type == DTYPE_BF16)
		fill_bf16(info->name, data, count);
	else if (strcmp(info->name, "setting") == 0)
		fill_settings(c, data, shape_rows(info->shape));
	else if (strcmp(info->name, "spans") == 0)
		fill_spans(data, shape_rows(info->shape));
	else if (strcmp(info->name, "adjust") == 0)
		fill_adjust(c, data, shape_rows(info->shape));
	else
		fill_i32(c, info->name, data, count);
}
