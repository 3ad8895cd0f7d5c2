/* The filters that x-transformers puts before a draw, on rows of logits. The config's "functions" lists them; logits{S}
 * [B, V], of which there may be several, S being any text without a dot or none. Values, of the names that the set
 * holds, all as logit_filters.h has them:
 *   top_k{S}.T and top_p{S}.T [B, V]: the threshold T, its point written "_";
 *   top_a{S}.P_R [B, V] and top_a_row{S}.P_R.b [1, V]: power P and ratio R, their points written "p"; with the largest
 *     probability of all rows, and of row b alone;
 *   probs_top_k{S}_T.temp_t [B, V]: the softmax of top_k{S}.T at temperature t, whose point is one. */
#include <stdlib.h>
#include <string.h>

#include "tests/golden/golden.h"
#include "tests/golden/logit_filters.h"

enum { NUMBER_BYTES = 32, NAME_BYTES = 64 };

/* A value's name, read from the left. */
typedef struct cursor {
	const char *at;
} cursor;

static bool recognises(const golden *g)
{
	return json_is_array(json_object_get(g->config, "functions"));
}

static bool skip(cursor *c, const char *text)
{
	const size_t length = strlen(text);
	if (strncmp(c->at, text, length) != 0)
		return false;
	c->at += length;
	return true;
}

/* A decimal number of at least 0 whose point is written `point`. */
static bool number(cursor *c, char point, double *out)
{
	char text[NUMBER_BYTES] = "";
	size_t n = 0;
	bool pointed = false;
	for (; (*c->at >= '0' && *c->at <= '9') || (*c->at == point && !pointed); c->at++) {
		if (n + 1 == sizeof text)
			return false;
		pointed |= *c->at == point;
		text[n++] = *c->at == point ? '.' : *c->at;
	}
	char *end;
	*out = strtod(text, &end);
	return n > 0 && *end == '\0';
}

/* A filter, as a value's name requests it. */
typedef struct filter {
	enum { TOP_K, TOP_P, TOP_A, TOP_A_ROW, PROBABILITIES } kind;
	char logits[NAME_BYTES]; /* the name of its logits */
	double threshold, power, ratio, temperature;
	int64_t row;
} filter;

/* Read the name of the logits, which ends before `end`. */
static bool read_logits(cursor *c, char end, filter *f)
{
	static const char logits[] = "logits";
	const size_t n = strcspn(c->at, (char[]){'.', end, '\0'});
	if (c->at[n] != end || sizeof logits + n > sizeof f->logits)
		return false;
	memcpy(f->logits, logits, sizeof logits - 1);
	memcpy(f->logits + sizeof logits - 1, c->at, n);
	c->at += n + 1;
	return true;
}

static bool read_filter(const char *name, filter *f)
{
	cursor c = {name};
	double row = 0;
	bool good;
	*f = (filter){.temperature = 1};
	if (skip(&c, "probs_top_k")) {
		f->kind = PROBABILITIES;
		good = read_logits(&c, '_', f) && number(&c, '_', &f->threshold) && skip(&c, ".temp_") &&
		       number(&c, '.', &f->temperature) && f->temperature > 0;
	} else if (skip(&c, "top_a_row")) {
		f->kind = TOP_A_ROW;
		good = read_logits(&c, '.', f) && number(&c, 'p', &f->power) && skip(&c, "_") &&
		       number(&c, 'p', &f->ratio) && skip(&c, ".") && number(&c, 'p', &row);
		f->row = row < 0x1p53 ? (int64_t)row : -1;
		good = good && (double)f->row == row;
	} else if (skip(&c, "top_a")) {
		f->kind = TOP_A;
		good = read_logits(&c, '.', f) && number(&c, 'p', &f->power) && skip(&c, "_") &&
		       number(&c, 'p', &f->ratio);
	} else {
		f->kind = skip(&c, "top_k") ? TOP_K : TOP_P;
		good = (f->kind == TOP_K || skip(&c, "top_p")) && read_logits(&c, '.', f) &&
		       number(&c, '_', &f->threshold);
	}
	return good && *c.at == '\0' && f->threshold <= 1;
}

static void apply(const filter *f, float *x, int64_t rows, int64_t n, logit_rank *space)
{
	if (f->kind == TOP_A || f->kind == TOP_A_ROW) {
		logit_filter_top_a(x, rows, n, f->ratio, f->power);
		return;
	}
	for (int64_t row = 0; row < rows; row++) {
		if (f->kind == TOP_P)
			logit_filter_top_p(x + row * n, n, f->threshold, space);
		else
			logit_filter_top_k(x + row * n, n, f->threshold, space);
		if (f->kind == PROBABILITIES)
			logit_filter_softmax(x + row * n, n, f->temperature);
	}
}

/* The value of that name, or nothing if it is none of these. */
static status add(golden *g, const char *name, error *err)
{
	filter f;
	extent e;
	const float *logits;
	float *out;
	void *space;
	if (!read_filter(name, &f))
		return STATUS_OK;
	TRY(golden_rank(g, f.logits, 2, &e, err));
	TRY(golden_floats(g, f.logits, e, &logits, err));
	if (f.kind == TOP_A_ROW) {
		if (f.row >= e.dim[0])
			return error_set(err, STATUS_INVALID, name, "\"%.100s\" is of a row that \"%s\" lacks", name,
			                 f.logits);
		logits += f.row * e.dim[1];
		e.dim[0] = 1;
	}
	if (f.kind == PROBABILITIES && logit_filter_count(f.threshold, e.dim[1]) == 0)
		return error_set(err, STATUS_INVALID, name, "\"%.100s\" is of no logits", name);
	TRY(golden_memory(g, e.dim[1], sizeof(logit_rank), &space, err));
	TRY(golden_result(g, e, &out, err, "%s", name));
	memcpy(out, logits, (size_t)extent_count(e) * sizeof *out);
	apply(&f, out, e.dim[0], e.dim[1], space);
	return STATUS_OK;
}

static status evaluate(golden *g, error *err)
{
	for (int i = 0; i < g->count; i++)
		TRY(add(g, g->tensors[i].entry->name, err));
	return STATUS_OK;
}

const golden_reader golden_reader_x_transformers_sampling = {
    .source = "a set of x-transformers' filters",
    .recognises = recognises,
    .evaluate = evaluate,
};
