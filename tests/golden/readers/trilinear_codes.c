/* Rounding and random numbers of 3Lin's source. Values:
 *
 *   NAME.q [·], NAME.q_sim2bit [·], NAME.step [1]
 *                                   codes of a matrix NAME, or NAME.W, by op_quantize, and the factor of the codes
 *   zero.C.step [1]
 *   recode_{2,4,158}bit [n]         codes_in [n] with fewer bits; 158 means three levels
 *   mt1313_u32, mt1313_real3, mt1313_normal [n], mt1313_uniform_1000_plus_i [n]
 *                                   numbers of mt19937.h from seed 1313: raw, uniform, normal, and below 1000 + i
 *   alibi12_{slope,hyper,wide} [12] the table of attentions.h */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mt19937.h"
#include "tests/golden/matrix_codes.h"
#include "engine/model/trilinear/attentions.h"
#include "engine/tensor/ops/quantize.h"

enum { NAME_BYTES = 64, SEED = 1313, FIRST_BOUND = 1000, ATTENTIONS = 12, COMBINER_TAPS = 16, MAX_SIZE = 1 << 12 };

static bool recognises(const golden *g)
{
	return golden_find(g, "codes_in") && golden_find(g, "recode_4bit");
}

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* --- codes ------------------------------------------------------------------------------------------------------- */

/* Add x as codes of this number of bits, as the result of `name` and `kind`. */
static status add_codes(golden *g, const char *name, const char *kind, const float *x, extent e, int64_t bits,
                        error *err)
{
	float *out, step;
	TRY(golden_result(g, e, &out, err, "%s.%s", name, kind));
	return matrix_codes(g, x, extent_count(e), bits, out, &step, err);
}

/* Add the values that the set has for a matrix. Tables of tokens never have fewer than 8 bits. */
static status add_matrix(golden *g, const char *name, const golden_tensor *t, error *err)
{
	extent e = {.rank = t->entry->rank};
	const float *x;
	float *step;
	void *values;
	memcpy(e.dim, t->entry->dim, sizeof e.dim);
	TRY(golden_floats(g, t->entry->name, e, &x, err));
	TRY(golden_memory(g, extent_count(e), sizeof(float), &values, err));
	TRY(golden_result(g, EXTENT(1), &step, err, "%s.step", name));
	TRY(matrix_codes(g, x, extent_count(e), 8, values, step, err));
	TRY(add_codes(g, name, "q", x, e, 8, err));
	if (!golden_find(g, "%s.q_sim2bit", name))
		return STATUS_OK;
	return add_codes(g, name, "q_sim2bit", x, e, strcmp(name, "E") == 0 || strcmp(name, "F") == 0 ? 8 : 2, err);
}

/* The matrix that a value NAME.q is of. */
static status add_matrix_of(golden *g, const char *codes, error *err)
{
	char name[NAME_BYTES];
	const size_t n = strlen(codes);
	if (n < 3 || n >= sizeof name || strcmp(codes + n - 2, ".q") != 0)
		return STATUS_OK;
	snprintf(name, sizeof name, "%.*s", (int)(n - 2), codes);
	const golden_tensor *t = golden_find(g, "%s", name);
	if (!t)
		t = golden_find(g, "%s.W", name);
	return t ? add_matrix(g, name, t, err) : STATUS_OK;
}

/* The step of a combiner that has not been trained, of which all weights are 0. */
static status add_zero_step(golden *g, error *err)
{
	int64_t d, width;
	float *step;
	void *zeros, *values;
	if (!golden_find(g, "zero.C.step"))
		return STATUS_OK;
	TRY(golden_config_integer(g, "D", MAX_SIZE, &d, err));
	TRY(golden_config_integer(g, "T", MAX_SIZE, &width, err));
	const int64_t n = d * COMBINER_TAPS * width;
	TRY(golden_memory(g, n, sizeof(float), &zeros, err));
	TRY(golden_memory(g, n, sizeof(float), &values, err));
	TRY(golden_result(g, EXTENT(1), &step, err, "zero.C.step"));
	return matrix_codes(g, zeros, n, 8, values, step, err);
}

/* No model reads weights of three levels: only the table is known of the source. */
static float three_levels(float code, int64_t bits)
{
	(void)bits;
	return code < -15 ? -32 : code > 15 ? 32 : 0;
}

static status add_recoded(golden *g, const char *name, float (*recode)(float code, int64_t bits), int64_t bits,
                          error *err)
{
	extent e;
	const int32_t *codes;
	float *out;
	TRY(golden_rank(g, "codes_in", 1, &e, err));
	TRY(golden_integers(g, "codes_in", e, -128, 127, &codes, err));
	TRY(golden_result(g, e, &out, err, "%s", name));
	for (int64_t i = 0; i < e.dim[0]; i++)
		out[i] = recode((float)codes[i], bits);
	return STATUS_OK;
}

/* --- numbers ----------------------------------------------------------------------------------------------------- */

static double draw_below(mt19937 *m, int64_t i)
{
	return (double)mt19937_below(m, (uint64_t)(FIRST_BOUND + i));
}

static double draw_uniform(mt19937 *m, int64_t i)
{
	(void)i;
	return mt19937_uniform(m);
}

static double draw_normal(mt19937 *m, int64_t i)
{
	(void)i;
	return mt19937_normal(m);
}

static status add_numbers(golden *g, const char *name, double (*draw)(mt19937 *, int64_t), error *err)
{
	extent e;
	float *out;
	mt19937 m;
	if (!golden_find(g, "%s", name))
		return STATUS_OK;
	TRY(golden_rank(g, name, 1, &e, err));
	TRY(golden_result(g, e, &out, err, "%s", name));
	mt19937_seed(&m, SEED);
	for (int64_t i = 0; i < e.dim[0]; i++)
		out[i] = (float)draw(&m, i);
	return STATUS_OK;
}

/* As they come, each of 32 bits. */
static status add_words(golden *g, error *err)
{
	extent e;
	int64_t *out;
	mt19937 m;
	if (!golden_find(g, "mt1313_u32"))
		return STATUS_OK;
	TRY(golden_rank(g, "mt1313_u32", 1, &e, err));
	TRY(golden_result_integers(g, e, &out, err, "mt1313_u32"));
	mt19937_seed(&m, SEED);
	for (int64_t i = 0; i < e.dim[0]; i++)
		out[i] = mt19937_next(&m);
	return STATUS_OK;
}

/* --- the table of attentions ---------------------------------------------------------------------------------------
 */

static status add_attentions(golden *g, error *err)
{
	static const char *const keys[] = {TRILINEAR_ATTENTION_KEYS, NULL};
	enum { NARROW = 2, WIDE = 3 };
	float *slope, *hyper, *wide;
	trilinear_attentions a;
	json_t *json = json_pack("{s:i, s:s, s:i, s:i}", "n_layer", ATTENTIONS, "positions", "alibi", "window_size",
	                         NARROW, "wide_window_size", WIDE);
	if (!json)
		return no_memory(err);
	config_reader r = config_begin(json, &architecture_trilinear, keys, err);
	trilinear_attentions_read(&r, TRILINEAR_SEED, false, &a);
	json_decref(json);
	TRY(r.status);
	TRY(golden_result(g, EXTENT(ATTENTIONS), &slope, err, "alibi12_slope"));
	TRY(golden_result(g, EXTENT(ATTENTIONS), &hyper, err, "alibi12_hyper"));
	TRY(golden_result(g, EXTENT(ATTENTIONS), &wide, err, "alibi12_wide"));
	for (int i = 0; i < ATTENTIONS; i++) {
		slope[i] = (float)a.items[i].slope;
		hyper[i] = (float)a.items[i].hyper;
		wide[i] = a.items[i].window == WIDE;
	}
	return STATUS_OK;
}

static status evaluate(golden *g, error *err)
{
	for (int i = 0; i < g->count; i++)
		TRY(add_matrix_of(g, g->tensors[i].entry->name, err));
	TRY(add_recoded(g, "recode_2bit", quantize_recode, 2, err));
	TRY(add_recoded(g, "recode_4bit", quantize_recode, 4, err));
	TRY(add_recoded(g, "recode_158bit", three_levels, 0, err));
	TRY(add_zero_step(g, err));
	TRY(add_words(g, err));
	TRY(add_numbers(g, "mt1313_real3", draw_uniform, err));
	TRY(add_numbers(g, "mt1313_normal", draw_normal, err));
	TRY(add_numbers(g, "mt1313_uniform_1000_plus_i", draw_below, err));
	return golden_find(g, "alibi12_slope") ? add_attentions(g, err) : STATUS_OK;
}

const golden_reader golden_reader_trilinear_codes = {
    .source = "codes and numbers of 3Lin",
    .recognises = recognises,
    .evaluate = evaluate,
};
