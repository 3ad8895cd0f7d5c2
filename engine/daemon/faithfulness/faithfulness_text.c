#include "engine/daemon/faithfulness/faithfulness_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/generation/score_call.h"
#include "engine/explain/explain.h"

typedef enum stage {
	STAGE_NONE,
	STAGE_SINGLES,
	STAGE_LOG,
	STAGE_CONTRIBUTIONS,
	STAGE_GRADIENTS,
	STAGE_PATH,
	STAGE_ORDERS,
	STAGE_SETS,
	STAGE_MEASURES,
	STAGE_END
} stage;

/* One position that is evaluated. */
typedef struct place {
	int64_t position, count; /* index of the reader; tokens of the text that are read */
	int64_t n, reader;       /* ranked tokens, those of a source first; ranked tokens before the reader */
	int32_t row;             /* equal to `position`, in the type of score_sequence.rows */
	faithfulness measure;
	explain_parts parts;
	explain_target target;
	double whole, whole_score;           /* from the first reading; each method overwrites `parts` */
	float *words, *attention;            /* [n + 1], including the reader */
	double *single_logs, *single_scores; /* [n + 1]; after keep_singles [n] */
	double *numbers;                     /* [orders][n] */
	bool *absent;                        /* [sets][n + 1] */
	double *set_logs, *set_scores;       /* [sets] */
	explain_removals singles, sets;
} place;

struct faithfulness_text {
	const job_parts *parts;
	stream *stream;
	model_entry *model;
	const faithfulness_settings *settings;
	faithfulness_tokens tokens;
	int64_t number;
	void (*finished)(void *context, faithfulness_outcome *x);
	void *context;
	stage stage;
	bool cancelled, reading; /* a score task is running */
	uint64_t began_ns;
	int n_places;
	place *places;
	score_sequence *sequences; /* [n_places] */
	float *log, *hidden;       /* used in STAGE_LOG */
	score_call task;
	uv_work_t work;
	faithfulness_outcome outcome;
};

/* --- rows ---------------------------------------------------------------------------------------- */

int64_t faithfulness_row_numbers(const faithfulness_settings *s)
{
	return 2 * (int64_t)s->n_orders * (faithfulness_metrics(&s->measure) + s->measure.grid + 1);
}

status faithfulness_row_init(faithfulness_row *r, const faithfulness_settings *s)
{
	const int64_t metrics = (int64_t)s->n_orders * faithfulness_metrics(&s->measure);
	r->memory = memory_new((size_t)faithfulness_row_numbers(s), sizeof *r->memory);
	r->values.values = r->memory;
	r->values.reverse = r->memory + metrics;
	r->values.deletion = r->memory + 2 * metrics;
	r->values.insertion = r->memory + 2 * metrics + (int64_t)s->n_orders * (s->measure.grid + 1);
	return r->memory ? STATUS_OK : STATUS_NOMEM;
}

void faithfulness_row_fini(faithfulness_row *r)
{
	free(r->memory);
	r->memory = NULL;
}

/* --- memory -------------------------------------------------------------------------------------- */

static status make_place(faithfulness_text *t, place *p, int64_t position)
{
	const faithfulness_settings *s = t->settings;
	p->position = position;
	p->row = (int32_t)position;
	p->count = faithfulness_settings_count(s, &t->tokens, position);
	p->n = t->tokens.n_source + p->count - 1;
	p->reader = t->tokens.n_source + position;
	faithfulness_init(&p->measure, &s->measure, p->n, p->reader, (uint32_t)t->number);
	const size_t n = (size_t)p->n, sets = (size_t)faithfulness_sets(&p->measure, s->n_orders);
	p->words = memory_new(2 * (n + 1), sizeof *p->words);
	p->single_logs = memory_new(2 * (n + 1), sizeof *p->single_logs);
	p->numbers = memory_new((size_t)s->n_orders * n, sizeof *p->numbers);
	p->absent = memory_new(sets * (n + 1), sizeof *p->absent);
	p->set_logs = memory_new(2 * sets, sizeof *p->set_logs);
	if (!p->words || !p->single_logs || !p->numbers || !p->absent || !p->set_logs)
		return STATUS_NOMEM;
	p->attention = p->words + n + 1;
	p->single_scores = p->single_logs + n + 1;
	p->set_scores = p->set_logs + sets;
	p->target = s->target;
	/* A reader that is the last token is excluded. Any other is removed like the rest, and the result is not
	 * used. */
	p->singles = (explain_removals){.n = p->reader < p->n ? p->n + 1 : p->n,
	                                .replacement = s->replacement,
	                                .log_probabilities = p->single_logs,
	                                .scores = p->single_scores};
	p->sets = (explain_removals){.n = (int64_t)sets,
	                             .absent = p->absent,
	                             .replacement = s->replacement,
	                             .log_probabilities = p->set_logs,
	                             .scores = p->set_scores};
	return STATUS_OK;
}

static void text_free(faithfulness_text *t)
{
	for (int i = 0; t->places && i < t->n_places; i++) {
		place *p = &t->places[i];
		free(p->words);
		free(p->single_logs);
		free(p->numbers);
		free(p->absent);
		free(p->set_logs);
	}
	for (int64_t i = 0; i < t->outcome.n; i++)
		faithfulness_row_fini(&t->outcome.rows[i]);
	free(t->outcome.rows);
	free(t->places);
	free(t->sequences);
	free(t->log);
	free(t->hidden);
	free(t->tokens.ids);
	free(t->tokens.source);
	free(t);
}

static status copy_tokens(faithfulness_tokens *out, const faithfulness_tokens *t)
{
	out->ids = memory_new((size_t)t->count, sizeof *out->ids);
	out->source = memory_new((size_t)t->n_source + 1, sizeof *out->source);
	if (!out->ids || !out->source)
		return STATUS_NOMEM;
	out->count = t->count;
	out->n_source = t->n_source;
	memcpy(out->ids, t->ids, (size_t)t->count * sizeof *t->ids);
	if (t->n_source > 0)
		memcpy(out->source, t->source, (size_t)t->n_source * sizeof *t->source);
	return STATUS_OK;
}

static status faithfulness_text_allocate(faithfulness_text *t, const faithfulness_tokens *tokens)
{
	int64_t positions[FAITHFULNESS_MAX_POSITIONS], missing;
	TRY(copy_tokens(&t->tokens, tokens));
	t->n_places = faithfulness_settings_positions(t->settings, tokens, positions, &missing);
	t->places = memory_new((size_t)t->n_places, sizeof *t->places);
	t->sequences = memory_new((size_t)t->n_places, sizeof *t->sequences);
	t->outcome.rows = memory_new((size_t)t->n_places, sizeof *t->outcome.rows);
	if (!t->places || !t->sequences || !t->outcome.rows)
		return STATUS_NOMEM;
	for (int i = 0; i < t->n_places; i++)
		TRY(make_place(t, &t->places[i], positions[i]));
	for (; t->outcome.n < t->n_places; t->outcome.n++)
		TRY(faithfulness_row_init(&t->outcome.rows[t->outcome.n], t->settings));
	return STATUS_OK;
}

/* --- pool: orders --------------------------------------------------------------------------------- */

/* Index of the j-th ranked token in the text. */
static int64_t token_of(const place *p, int64_t j)
{
	return j + (j >= p->reader);
}

/* Number of tokens whose weights are read once for all places; positions rise. */
static int64_t logged_tokens(const faithfulness_text *t)
{
	return t->places[t->n_places - 1].count;
}

static void init_logs(const faithfulness_text *t, explain_logs *out)
{
	explain_logs_init(out, t->model->architecture, t->model->parsed, t->log, logged_tokens(t), t->tokens.n_source);
}

static double *numbers_of(const faithfulness_text *t, place *p, faithfulness_method method)
{
	for (int i = 0; i < t->settings->n_orders; i++)
		if (t->settings->orders[i] == method)
			return p->numbers + i * p->n;
	return NULL;
}

/* Sum the weights over all layers, heads and rounds: those of the source, then those of the text. */
static status all_weights(const faithfulness_text *t, const explain_logs *logs, const explain_selection *all,
                          const place *p, bool rollout, double *out)
{
	const model_dims *d = &t->model->dims;
	const int64_t position = d->form->many_rows ? p->position : d->form->row(d, t->tokens.ids, p->count);
	return explain_prediction_weights(logs, d, all, position, rollout, out, out + t->tokens.n_source);
}

static status read_weights(const faithfulness_text *t, const explain_logs *logs, const explain_selection *all, place *p,
                           faithfulness_method method, double *scratch)
{
	double *numbers = numbers_of(t, p, method);
	if (!numbers)
		return STATUS_OK;
	TRY(all_weights(t, logs, all, p, method == FAITHFULNESS_ROLLOUT, scratch));
	for (int64_t j = 0; j < p->n; j++)
		numbers[j] = scratch[token_of(p, j)];
	return STATUS_OK;
}

static status not_finite(faithfulness_text *t)
{
	return error_set(&t->outcome.error, STATUS_INVALID, "model", "the model gives numbers that are not finite");
}

static status read_all_weights(faithfulness_text *t)
{
	explain_logs logs;
	int64_t most = 1;
	init_logs(t, &logs);
	for (int i = 0; i < ATTENTION_PLACES; i++) {
		const explain_log *l = &logs.at[i];
		most = l->layers + l->heads + l->rounds > most ? l->layers + l->heads + l->rounds : most;
	}
	bool *every = memory_new((size_t)most, sizeof *every);
	double *scratch = memory_new((size_t)(t->tokens.n_source + t->tokens.count), sizeof *scratch);
	status s = every && scratch ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK)
		memset(every, true, (size_t)most);
	const explain_selection all = {every, every, every};
	for (int i = 0; i < t->n_places && s == STATUS_OK; i++) {
		s = read_weights(t, &logs, &all, &t->places[i], FAITHFULNESS_ALPHA, scratch);
		if (s == STATUS_OK)
			s = read_weights(t, &logs, &all, &t->places[i], FAITHFULNESS_ROLLOUT, scratch);
	}
	free(every);
	free(scratch);
	return s == STATUS_INVALID ? not_finite(t) : s;
}

static bool are_finite(const double *values, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (!isfinite(values[i]))
			return false;
	return true;
}

static status order_tokens(faithfulness_text *t)
{
	if (t->log)
		TRY(read_all_weights(t));
	for (int i = 0; i < t->n_places; i++) {
		place *p = &t->places[i];
		double *without = numbers_of(t, p, FAITHFULNESS_LEAVE_ONE_OUT);
		for (int64_t j = 0; without && j < p->n; j++)
			without[j] = p->whole_score - p->single_scores[j];
		faithfulness_random(&p->measure, numbers_of(t, p, FAITHFULNESS_RANDOM));
		faithfulness_recency(&p->measure, numbers_of(t, p, FAITHFULNESS_RECENCY));
		if (!are_finite(p->numbers, t->settings->n_orders * p->n) || !are_finite(p->single_logs, p->n))
			return not_finite(t);
		TRY(faithfulness_write_sets(&p->measure, p->numbers, t->settings->n_orders, p->absent));
	}
	return STATUS_OK;
}

/* --- pool: measures ------------------------------------------------------------------------------- */

static status faithfulness_text_measure(faithfulness_text *t)
{
	const int64_t numbers = faithfulness_row_numbers(t->settings);
	for (int i = 0; i < t->n_places; i++) {
		place *p = &t->places[i];
		faithfulness_row *r = &t->outcome.rows[i];
		if (!isfinite(p->whole) || !are_finite(p->set_logs, p->sets.n))
			return not_finite(t);
		r->text = t->number;
		r->position = p->position;
		r->token = p->target.token;
		r->log_probability = (double)(float)p->whole;
		faithfulness_measure(&p->measure, p->numbers, t->settings->n_orders, p->whole, p->single_logs,
		                     p->set_logs, &r->values);
		r->values.empty = (double)(float)r->values.empty;
		for (int64_t k = 0; k < numbers; k++)
			r->memory[k] = (double)(float)r->memory[k];
	}
	return STATUS_OK;
}

/* --- stages --------------------------------------------------------------------------------------- */

static void next(faithfulness_text *t);

static void faithfulness_text_end(faithfulness_text *t, status s)
{
	faithfulness_outcome *x = &t->outcome;
	x->result = s;
	error_settle(&x->error, s);
	x->cost.seconds = (double)(clock_ns() - t->began_ns) * 1e-9;
	for (int i = 0; i < t->n_places; i++) {
		x->cost.readings += t->places[i].singles.readings + t->places[i].sets.readings;
		x->cost.tokens += t->places[i].singles.tokens + t->places[i].sets.tokens;
	}
	t->finished(t->context, x);
	text_free(t);
}

static bool is_wanted(const faithfulness_text *t, stage s)
{
	const faithfulness_settings *o = t->settings;
	switch (s) {
	case STAGE_LOG:
		return faithfulness_settings_want(o, FAITHFULNESS_ALPHA) ||
		       faithfulness_settings_want(o, FAITHFULNESS_ROLLOUT);
	case STAGE_CONTRIBUTIONS:
		return faithfulness_settings_want(o, FAITHFULNESS_CONTRIBUTIONS);
	case STAGE_GRADIENTS:
		return faithfulness_settings_want(o, FAITHFULNESS_GRADIENT) ||
		       faithfulness_settings_want(o, FAITHFULNESS_ATTENTION_GRADIENT);
	case STAGE_PATH:
		return faithfulness_settings_want(o, FAITHFULNESS_INTEGRATED);
	case STAGE_NONE:
	case STAGE_SINGLES:
	case STAGE_ORDERS:
	case STAGE_SETS:
	case STAGE_MEASURES:
	case STAGE_END:
		break;
	}
	return true;
}

static void copy_numbers(const faithfulness_text *t, place *p, faithfulness_method method, const float *values)
{
	double *numbers = numbers_of(t, p, method);
	for (int64_t j = 0; numbers && j < p->n; j++)
		numbers[j] = (double)values[token_of(p, j)];
}

/* Use the target of the first reading for all methods, also where two outputs are nearly equally likely. */
static void keep_target(place *p)
{
	p->whole = p->parts.log_probability;
	p->whole_score = p->parts.score;
	p->target.token = p->parts.token;
	p->target.kind = p->parts.kind;
	p->target.other = p->target.kind == EXPLAIN_DIFFERENCE ? p->parts.other : -1;
}

static void keep_singles(place *p)
{
	const size_t behind = (size_t)(p->n - p->reader);
	memmove(p->single_logs + p->reader, p->single_logs + p->reader + 1, behind * sizeof *p->single_logs);
	memmove(p->single_scores + p->reader, p->single_scores + p->reader + 1, behind * sizeof *p->single_scores);
}

static void keep_readings(faithfulness_text *t)
{
	const int64_t each = t->stage == STAGE_PATH ? t->settings->steps + 2 : 1;
	for (int i = 0; i < t->n_places; i++) {
		place *p = &t->places[i];
		if (t->stage == STAGE_SINGLES) {
			keep_target(p);
			keep_singles(p);
		}
		if (t->stage == STAGE_CONTRIBUTIONS)
			copy_numbers(t, p, FAITHFULNESS_CONTRIBUTIONS, p->words);
		if (t->stage == STAGE_GRADIENTS) {
			copy_numbers(t, p, FAITHFULNESS_GRADIENT, p->words);
			copy_numbers(t, p, FAITHFULNESS_ATTENTION_GRADIENT, p->attention);
		}
		if (t->stage == STAGE_PATH)
			copy_numbers(t, p, FAITHFULNESS_INTEGRATED, p->words);
		if (t->stage == STAGE_CONTRIBUTIONS || t->stage == STAGE_GRADIENTS || t->stage == STAGE_PATH) {
			t->outcome.cost.readings += each;
			t->outcome.cost.tokens += each * (p->n + 1);
		}
	}
	if (t->stage == STAGE_LOG) {
		t->outcome.cost.readings++;
		t->outcome.cost.tokens += t->tokens.n_source + t->sequences[0].count;
	}
}

static void read_done(score_call *read)
{
	faithfulness_text *t = TASK_OWNER(read, faithfulness_text, task);
	t->reading = false;
	if (read->result != STATUS_OK) {
		t->outcome.error = read->error;
		faithfulness_text_end(t, read->result);
		return;
	}
	keep_readings(t);
	next(t);
}

static void pool_compute(uv_work_t *work)
{
	faithfulness_text *t = work->data;
	reserve_forget();
	t->outcome.result = t->stage == STAGE_ORDERS ? order_tokens(t) : faithfulness_text_measure(t);
}

static void computed(uv_work_t *work, int cancelled)
{
	faithfulness_text *t = work->data;
	(void)cancelled; /* cannot be cancelled */
	if (t->outcome.result == STATUS_OK)
		next(t);
	else
		faithfulness_text_end(t, t->outcome.result);
}

/* --- the readings of a stage ----------------------------------------------------------------------- */

static score_sequence sequence_of(const faithfulness_text *t, int64_t count)
{
	return (score_sequence){
	    .ids = t->tokens.ids, .count = count, .source = t->tokens.source, .n_source = t->tokens.n_source};
}

static status prepare_log(faithfulness_text *t, score_task_request *r)
{
	const bool classes = t->model->dims.form->head == HEAD_CLASSES;
	explain_logs logs;
	init_logs(t, &logs);
	r->width = classes ? t->model->dims.outputs : t->model->dims.hidden;
	t->log = memory_new((size_t)explain_logs_floats(&logs), sizeof *t->log);
	t->hidden = memory_new((size_t)r->width, sizeof *t->hidden);
	if (!t->log || !t->hidden)
		return STATUS_NOMEM;
	r->embedding = classes ? POOL_NONE : POOL_LAST;
	r->out = t->hidden;
	r->n_sequences = 1;
	t->sequences[0] = sequence_of(t, logged_tokens(t));
	t->sequences[0].log = t->log;
	if (t->tokens.n_source > 0) /* such a model reads the whole sequence at once */
		r->explain.method = EXPLAIN_WEIGHTS;
	return STATUS_OK;
}

static void prepare_parts(faithfulness_text *t, score_task_request *r)
{
	static const explain_method methods[] = {[STAGE_SINGLES] = EXPLAIN_REMOVALS,
	                                         [STAGE_CONTRIBUTIONS] = EXPLAIN_CONTRIBUTIONS,
	                                         [STAGE_GRADIENTS] = EXPLAIN_GRADIENT,
	                                         [STAGE_PATH] = EXPLAIN_INTEGRATED,
	                                         [STAGE_SETS] = EXPLAIN_REMOVALS};
	r->n_sequences = t->n_places;
	r->explain = (explain_options){.method = methods[t->stage],
	                               .share = t->settings->share,
	                               .steps = t->settings->steps,
	                               .replacement = t->settings->replacement};
	for (int i = 0; i < t->n_places; i++) {
		place *p = &t->places[i];
		p->parts = (explain_parts){.words = p->words, .attention = p->attention};
		score_sequence *q = &t->sequences[i];
		*q = sequence_of(t, p->count);
		q->target = p->target;
		q->parts = &p->parts;
		q->removals = t->stage == STAGE_SINGLES ? &p->singles : &p->sets;
		q->rows = &p->row;
		q->n_rows = t->model->dims.form->fills;
	}
}

static status begin_reading(faithfulness_text *t)
{
	score_task_request r = {.sequences = t->sequences};
	if (t->stage == STAGE_LOG)
		TRY(prepare_log(t, &r));
	else
		prepare_parts(t, &r);
	t->task = (score_call){.fleet = t->parts->fleet,
	                       .device = FLEET_ANY,
	                       .stream = t->stream,
	                       .model = t->model,
	                       .request = r,
	                       .finished = read_done};
	t->reading = true;
	score_call_submit(&t->task);
	return STATUS_OK;
}

static status begin_computing(faithfulness_text *t)
{
	t->work.data = t;
	return uv_queue_work(t->parts->loop, &t->work, pool_compute, computed) == 0 ? STATUS_OK : STATUS_NOMEM;
}

static void next(faithfulness_text *t)
{
	do
		t->stage++;
	while (!is_wanted(t, t->stage));
	if (t->cancelled || t->stage == STAGE_END) {
		faithfulness_text_end(t, t->cancelled ? STATUS_CANCELLED : STATUS_OK);
		return;
	}
	const bool computes = t->stage == STAGE_ORDERS || t->stage == STAGE_MEASURES;
	status s = computes ? begin_computing(t) : begin_reading(t);
	if (s != STATUS_OK)
		faithfulness_text_end(t, s);
}

status faithfulness_text_begin(faithfulness_text **out, const job_parts *parts, stream *s, model_entry *m,
                               const faithfulness_settings *settings, const faithfulness_tokens *tokens, int64_t number,
                               void (*finished)(void *context, faithfulness_outcome *x), void *context)
{
	faithfulness_text *t = *out = memory_new(1, sizeof *t);
	if (!t)
		return STATUS_NOMEM;
	*t = (faithfulness_text){.parts = parts,
	                         .stream = s,
	                         .model = m,
	                         .settings = settings,
	                         .number = number,
	                         .finished = finished,
	                         .context = context,
	                         .began_ns = clock_ns()};
	if (faithfulness_text_allocate(t, tokens) != STATUS_OK) {
		text_free(t);
		*out = NULL;
		return STATUS_NOMEM;
	}
	next(t);
	return STATUS_OK;
}

void faithfulness_text_cancel(faithfulness_text *t)
{
	t->cancelled = true;
	if (t->reading)
		score_call_cancel(&t->task);
}
