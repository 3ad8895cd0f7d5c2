#include "engine/serve/attribution_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/serve/ablation.h"

struct attribution_run {
	served_model *model;
	explain_options options;
	const score_sequence *sequence;
	int32_t slot;
	float *logits;             /* [2][outputs]: logits of the pass, and their coefficients */
	float *row;                /* [all_tokens] */
	double *sum;               /* [all_tokens] */
	double *factors, *weights; /* [steps] */
	float *baseline;           /* [width of the word vectors]; NULL: zeros */
	double empty;              /* score of the baseline */
	int64_t run;               /* index of the current pass of the whole sequence */
	read_pass *pass;           /* NULL: none in progress */
	explain_removals singles;
	ablation *ablation; /* for EXPLAIN_LEAVE_ONE_OUT and EXPLAIN_REMOVALS */
};

static int64_t outputs_of(const attribution_run *a)
{
	return model_dimensions(a->model->model)->outputs;
}

/* Tokens of the source and of the sequence, in this order. */
static int64_t all_tokens(const attribution_run *a)
{
	return a->sequence->n_source + a->sequence->count;
}

static status read_logits(const attribution_run *a)
{
	return read_pass_values(a->pass, a->logits);
}

/* Choose the target and its coefficients from the logits of the first pass. */
static void attribution_run_choose(attribution_run *a)
{
	explain_target_choose(&a->sequence->target, a->logits, outputs_of(a), a->logits + outputs_of(a),
	                      a->sequence->parts);
}

static void end_reading(attribution_run *a)
{
	read_pass_end(a->model, a->pass);
	a->pass = NULL;
}

static read_pass_piece whole_piece(const attribution_run *a)
{
	const score_sequence *q = a->sequence;
	return (read_pass_piece){.ids = q->ids,
	                         .count = q->count,
	                         .source = q->source,
	                         .n_source = q->n_source,
	                         .rows = q->rows,
	                         .n_rows = q->n_rows,
	                         .slot = a->slot};
}

/* Copy the numbers of the source's tokens, then those of the sequence's. */
static status read_all_parts(const attribution_run *a, port_role source, port_role tokens, float *out)
{
	const score_sequence *q = a->sequence;
	TRY(read_pass_parts(a->model, a->pass, source, q->n_source, out));
	return read_pass_parts(a->model, a->pass, tokens, q->count, out + q->n_source);
}

/* --- weights ------------------------------------------------------------------------------- */

/* --- contributions and gradients ----------------------------------------------------------- */

static status begin_whole(attribution_run *a, float factor, error *err)
{
	const bool frozen = a->options.method == EXPLAIN_CONTRIBUTIONS;
	const read_pass_form form = {.attribution = frozen ? ATTRIBUTION_FROZEN : ATTRIBUTION_GRADIENT,
	                             .share = frozen ? a->options.share : 0,
	                             .both = a->sequence->n_source > 0};
	read_pass_piece p = whole_piece(a);
	p.factor = factor;
	p.baseline = a->baseline;
	return read_pass_begin(&a->pass, a->model, form, &p, err);
}

static status copy_parts(const attribution_run *a)
{
	const explain_parts *parts = a->sequence->parts;
	const struct {
		port_role source, tokens;
		float *to;
	} requested[] = {{PORT_SOURCE_WORD_PARTS, PORT_WORD_PARTS, parts->words},
	                 {PORT_SOURCE_POSITION_PARTS, PORT_POSITION_PARTS, parts->positions},
	                 {PORT_SOURCE_BIAS_PARTS, PORT_BIAS_PARTS, parts->biases},
	                 {PORT_SOURCE_ATTENTION_PARTS, PORT_ATTENTION_PARTS, parts->attention}};
	for (size_t i = 0; i < sizeof requested / sizeof *requested; i++)
		if (requested[i].to)
			TRY(read_all_parts(a, requested[i].source, requested[i].tokens, requested[i].to));
	return STATUS_OK;
}

/* Return the index of the token whose row has the score. */
static int64_t reader_of(const score_sequence *q)
{
	return q->n_rows ? q->rows[0] : q->count - 1;
}

static status step_once(attribution_run *a, bool *done, error *err)
{
	float head, last;
	if (!a->pass)
		return begin_whole(a, 1, err);
	if (read_pass_wants_coefficients(a->pass)) {
		TRY(read_logits(a));
		attribution_run_choose(a);
		return read_pass_write_coefficients(a->pass, a->logits + outputs_of(a));
	}
	TRY(read_pass_step(a->pass, done));
	if (!*done)
		return STATUS_OK;
	TRY(copy_parts(a));
	TRY(read_pass_parts(a->model, a->pass, PORT_HEAD_PARTS, 1, &head));
	TRY(read_pass_parts(a->model, a->pass, PORT_LAST_PARTS, 1, &last));
	if (a->sequence->parts->biases)
		a->sequence->parts->biases[all_tokens(a) - a->sequence->count + reader_of(a->sequence)] += last;
	a->sequence->parts->head = (double)head;
	return STATUS_OK;
}

/* --- integrated gradients ------------------------------------------------------------------ */

/* Run 0 is the unchanged sequence and run `steps` + 1 the baseline. Only the scores of these two are used. */
static bool is_end(const attribution_run *a)
{
	return a->run == 0 || a->run > a->options.steps;
}

static bool starts_at_mean(const attribution_run *a)
{
	return a->options.baseline == EXPLAIN_FROM_USUAL ? model_dimensions(a->model->model)->scale_free
	                                                 : a->options.baseline == EXPLAIN_FROM_MEAN;
}

static status choose_baseline(attribution_run *a)
{
	const int64_t width = read_pass_width(a->pass, PORT_WORDS), n = a->sequence->count;
	float *words = memory_new((size_t)n, (size_t)width * sizeof *words);
	a->baseline = memory_new((size_t)width, sizeof *a->baseline);
	status s =
	    words && a->baseline ? read_pass_parts(a->model, a->pass, PORT_WORDS, n * width, words) : STATUS_NOMEM;
	if (s == STATUS_OK)
		explain_mean_baseline(words, n, width, a->baseline);
	free(words);
	return s;
}

/* Choose the points of the path. Those from zero depend on the size of the word vectors. */
static status choose_path(attribution_run *a)
{
	double sum = 0;
	if (starts_at_mean(a)) {
		explain_straight_path(a->options.steps, a->factors, a->weights);
		return choose_baseline(a);
	}
	TRY(read_pass_parts(a->model, a->pass, PORT_WORD_SQUARES, a->sequence->count, a->row));
	for (int64_t j = 0; j < a->sequence->count; j++)
		sum += (double)a->row[j];
	const double elements = (double)(a->sequence->count * model_dimensions(a->model->model)->hidden);
	explain_path(a->options.steps, sqrt(sum / elements), a->factors, a->weights);
	return STATUS_OK;
}

/* The coefficients chosen in run 0 are kept. */
static status path_logits(attribution_run *a, bool *done)
{
	if (!is_end(a))
		return read_pass_write_coefficients(a->pass, a->logits + outputs_of(a));
	TRY(read_logits(a));
	if (a->run == 0) {
		attribution_run_choose(a);
		TRY(choose_path(a));
	} else {
		a->empty = explain_score_of(a->logits + outputs_of(a), a->logits, outputs_of(a));
	}
	end_reading(a);
	*done = a->run > a->options.steps;
	a->run++;
	if (*done) {
		explain_parts *p = a->sequence->parts;
		p->difference = p->score - a->empty;
		for (int64_t j = 0; j < all_tokens(a); j++)
			p->words[j] = (float)a->sum[j];
	}
	return STATUS_OK;
}

static status step_path(attribution_run *a, bool *done, error *err)
{
	bool whole;
	if (!a->pass)
		return begin_whole(a, a->run == 0 ? 1 : is_end(a) ? 0 : (float)a->factors[a->run - 1], err);
	if (read_pass_wants_coefficients(a->pass))
		return path_logits(a, done);
	TRY(read_pass_step(a->pass, &whole));
	if (!whole)
		return STATUS_OK;
	TRY(read_all_parts(a, PORT_SOURCE_WORD_PARTS, PORT_WORD_PARTS, a->row));
	for (int64_t j = 0; j < all_tokens(a); j++)
		a->sum[j] += a->weights[a->run - 1] * (double)a->row[j];
	end_reading(a);
	a->run++;
	return STATUS_OK;
}

/* --- leave one out, and other sets ----------------------------------------------------------- */

static bool removes(const attribution_run *a)
{
	return a->options.method == EXPLAIN_LEAVE_ONE_OUT || a->options.method == EXPLAIN_REMOVALS;
}

static status begin_removing(attribution_run *a, error *err)
{
	a->singles = (explain_removals){.n = all_tokens(a), .replacement = a->options.replacement, .scores = a->sum};
	explain_removals *r = a->options.method == EXPLAIN_REMOVALS ? a->sequence->removals : &a->singles;
	return ablation_new(&a->ablation, a->model, r, a->sequence, a->slot, err);
}

/* --- all methods ------------------------------------------------------------------------------- */

static status attribution_run_allocate(attribution_run *a)
{
	const size_t count = (size_t)all_tokens(a), steps = (size_t)a->options.steps;
	a->logits = memory_new((size_t)outputs_of(a), 2 * sizeof *a->logits);
	a->row = memory_new(count, sizeof *a->row);
	a->sum = memory_new(count, sizeof *a->sum);
	a->factors = memory_new(steps + 1, 2 * sizeof *a->factors);
	if (!a->logits || !a->row || !a->sum || !a->factors)
		return STATUS_NOMEM;
	a->weights = a->factors + steps;
	return STATUS_OK;
}

status attribution_run_new(attribution_run **out, served_model *m, const explain_options *o, const score_sequence *q,
                           int32_t slot, error *err)
{
	attribution_run *a = *out = memory_new(1, sizeof *a);
	if (!a)
		return STATUS_NOMEM;
	*a = (attribution_run){.model = m, .options = *o, .sequence = q, .slot = slot};
	TRY(attribution_run_allocate(a));
	return removes(a) ? begin_removing(a, err) : STATUS_OK;
}

status attribution_run_step(attribution_run *a, uint64_t slice_ns, bool *done, error *err)
{
	*done = false;
	if (removes(a)) {
		TRY(ablation_step(a->ablation, slice_ns, done, err));
		for (int64_t j = 0; *done && a->options.method == EXPLAIN_LEAVE_ONE_OUT && j < all_tokens(a); j++)
			a->sequence->parts->words[j] = (float)(a->sequence->parts->score - a->sum[j]);
		return STATUS_OK;
	}
	if (a->options.method == EXPLAIN_WEIGHTS) {
		read_pass_piece p = whole_piece(a);
		p.log = a->sequence->log;
		if (!a->pass)
			return read_pass_begin(&a->pass, a->model,
			                       (read_pass_form){.log = true, .both = p.n_source > 0}, &p, err);
		return read_pass_step(a->pass, done);
	}
	return a->options.method == EXPLAIN_INTEGRATED ? step_path(a, done, err) : step_once(a, done, err);
}

void attribution_run_free(attribution_run *a)
{
	if (!a)
		return;
	end_reading(a);
	ablation_free(a->ablation);
	free(a->logits);
	free(a->row);
	free(a->baseline);
	free(a->sum);
	free(a->factors);
	free(a);
}
