#include "engine/daemon/evaluations/evaluation_sums.h"

#include <math.h>
#include <string.h>

#include "engine/base/json_read.h"
#include "engine/daemon/generation/tokens.h"

/* --- adding ---------------------------------------------------------------------------------------------- */

static int range_of(int64_t position)
{
	int r = 0;
	while (position >> (r + 1) && r < EVALUATION_RANGES - 1)
		r++;
	return r;
}

static void keep_row(evaluation_sums *x, int64_t top, const evaluation_row *row)
{
	int64_t at = x->n_rows;
	while (at > 0 && x->rows[at - 1].nats < row->nats)
		at--;
	if (at >= top)
		return;
	const int64_t last = x->n_rows < top ? x->n_rows++ : top - 1;
	memmove(x->rows + at + 1, x->rows + at, (size_t)(last - at) * sizeof *x->rows);
	x->rows[at] = *row;
}

static status add_window(evaluation_sums *x, const evaluation_settings *s, const evaluation_unit *u,
                         const evaluation_window *w, const tokenizer *t, error *err)
{
	const int64_t context = s->context == EVALUATION_CARRIED ? w->start : w->begin;
	for (int64_t i = w->done; i < w->end; i++) {
		const int64_t at = w->at + i - w->begin;
		const int64_t bytes = (int64_t)tokenizer_token_bytes(t, u->ids[at], NULL, 0);
		if (i > w->begin) {
			const token_logprob score = u->scores[at - 1], best = u->best[at - 1];
			const evaluation_row row = {i, x->offset, i - context, -(double)score.logprob, best.token};
			evaluation_sum *sum = &x->ranges[range_of(row.position)];
			if (!isfinite(score.logprob))
				return error_set(err, STATUS_INVALID, "model",
				                 "the model gives numbers that are not finite");
			sum->tokens++;
			sum->right += best.token == score.token;
			sum->nats += row.nats;
			x->bytes += bytes;
			keep_row(x, s->top, &row);
		}
		x->offset += bytes;
	}
	return STATUS_OK;
}

status evaluation_sums_add(evaluation_sums *x, const evaluation_settings *s, const evaluation_unit *u,
                           const tokenizer *t, error *err)
{
	for (int64_t k = 0; k < u->n_windows; k++)
		TRY(add_window(x, s, u, &u->windows[k], t, err));
	return STATUS_OK;
}

static evaluation_sum sum_of(const evaluation_sums *x)
{
	evaluation_sum all = {0};
	for (int r = 0; r < EVALUATION_RANGES; r++) {
		all.tokens += x->ranges[r].tokens;
		all.right += x->ranges[r].right;
		all.nats += x->ranges[r].nats;
	}
	return all;
}

double evaluation_sums_nats(const evaluation_sums *x)
{
	const evaluation_sum all = sum_of(x);
	return all.nats / (double)all.tokens;
}

/* --- JSON ------------------------------------------------------------------------------------------------ */

/* Append an element, which is taken over. NULL: out of memory; the array is then freed. */
static json_t *with(json_t *array, json_t *element)
{
	if (json_array_append_new(array, element) == 0)
		return array;
	json_decref(array);
	return NULL;
}

json_t *evaluation_sums_write(const evaluation_sums *x)
{
	json_t *ranges = json_array(), *rows = json_array();
	for (int r = 0; r < EVALUATION_RANGES; r++)
		ranges = with(ranges, json_pack("[I, I, f]", (json_int_t)x->ranges[r].tokens,
		                                (json_int_t)x->ranges[r].right, x->ranges[r].nats));
	for (int64_t i = 0; i < x->n_rows; i++) {
		const evaluation_row *row = &x->rows[i];
		rows = with(rows, json_pack("[I, I, I, f, i]", (json_int_t)row->index, (json_int_t)row->offset,
		                            (json_int_t)row->position, row->nats, (int)row->best));
	}
	return json_pack("{s:o, s:I, s:I, s:o}", "ranges", ranges, "bytes", (json_int_t)x->bytes, "offset",
	                 (json_int_t)x->offset, "rows", rows);
}

status evaluation_sums_read(evaluation_sums *out, const json_t *written, error *err)
{
	json_t *ranges = json_object_get(written, "ranges"), *rows = json_object_get(written, "rows");
	json_int_t bytes = 0, offset = 0;
	*out = (evaluation_sums){.n_rows = (int64_t)json_array_size(rows)};
	status s = json_read_members(written, "{s:I, s:I}", "bytes", &bytes, "offset", &offset);
	if (s == STATUS_NOMEM)
		return error_settle(err, s);
	bool complete =
	    s == STATUS_OK && json_array_size(ranges) == EVALUATION_RANGES && out->n_rows <= EVALUATION_TOP_MAX;
	for (size_t r = 0; r < EVALUATION_RANGES && complete; r++) {
		json_int_t tokens, right;
		complete =
		    json_unpack(json_array_get(ranges, r), "[I, I, F]", &tokens, &right, &out->ranges[r].nats) == 0;
		out->ranges[r].tokens = complete ? tokens : 0;
		out->ranges[r].right = complete ? right : 0;
	}
	for (int64_t i = 0; i < out->n_rows && complete; i++) {
		json_int_t index, at, position;
		int best;
		double nats;
		complete = json_unpack(json_array_get(rows, (size_t)i), "[I, I, I, F, i]", &index, &at, &position,
		                       &nats, &best) == 0;
		if (complete)
			out->rows[i] = (evaluation_row){index, at, position, nats, best};
	}
	out->bytes = bytes;
	out->offset = offset;
	return complete ? STATUS_OK : error_set(err, STATUS_CORRUPT, NULL, "the evaluation's sums are damaged");
}

/* --- the report ------------------------------------------------------------------------------------------ */

static json_t *evaluation_sums_number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static json_t *means(const evaluation_sum *x)
{
	return json_pack("{s:I, s:o, s:o, s:o}", "tokens", (json_int_t)x->tokens, "nats_per_token",
	                 evaluation_sums_number(x->nats / (double)x->tokens), "perplexity",
	                 evaluation_sums_number(exp(x->nats / (double)x->tokens)), "accuracy",
	                 evaluation_sums_number((double)x->right / (double)x->tokens));
}

static json_t *positions_of(const evaluation_sums *x)
{
	json_t *array = json_array();
	for (int r = 0; r < EVALUATION_RANGES; r++) {
		if (x->ranges[r].tokens == 0)
			continue;
		json_t *range = means(&x->ranges[r]);
		if (json_object_set_new(range, "from", json_integer((json_int_t)1 << r)) != 0 ||
		    json_object_set_new(range, "to", json_integer(((json_int_t)2 << r) - 1)) != 0) {
			json_decref(range);
			range = NULL;
		}
		array = with(array, range);
	}
	return array;
}

static json_t *token_object(const tokenizer *t, int32_t id)
{
	return json_pack("{s:i, s:o}", "id", (int)id, "text", tokens_name(t, id));
}

static json_t *row_object(const evaluation_row *row, const tokenizer *t, const token_cache *text, error *err)
{
	int32_t ids[EVALUATION_SHOWN + 1];
	const int64_t before = row->position < EVALUATION_SHOWN ? row->position : EVALUATION_SHOWN;
	if (token_cache_read(text, row->index - before, before + 1, ids, NULL, err) != STATUS_OK)
		return NULL;
	return json_pack("{s:o, s:o, s:f, s:I, s:I, s:I, s:o}", "token", token_object(t, ids[before]), "likeliest",
	                 token_object(t, row->best), "nats", row->nats, "index", (json_int_t)row->index, "offset",
	                 (json_int_t)row->offset, "position", (json_int_t)row->position, "before",
	                 tokens_join(t, ids, before, true));
}

json_t *evaluation_sums_report(const evaluation_sums *x, const tokenizer *t, const token_cache *text, error *err)
{
	const evaluation_sum all = sum_of(x);
	json_t *rows = json_array(), *report = means(&all);
	for (int64_t i = 0; i < x->n_rows; i++)
		rows = with(rows, row_object(&x->rows[i], t, text, err));
	const bool complete = json_object_set_new(report, "object", json_string("evaluation.report")) == 0 &&
	                      json_object_set_new(report, "bytes", json_integer((json_int_t)x->bytes)) == 0 &&
	                      json_object_set_new(report, "bits_per_byte",
	                                          evaluation_sums_number(all.nats / log(2) / (double)x->bytes)) == 0 &&
	                      json_object_set_new(report, "positions", positions_of(x)) == 0;
	if (complete && json_object_set_new(report, "rows", rows) == 0)
		return report;
	if (!complete)
		json_decref(rows);
	json_decref(report);
	return NULL;
}
