/* trainer.c - the run is a chain of stages, each with a plan that is run node by node:
 *
 *   batch ──▶ take ──▶ gather ──▶ … ──▶ (reduce) ──▶ update ──▶ (exchange) ──▶ take ──▶ (evaluate … preview …) ──▶
 * batch …
 *
 * batch computes the gradients of one micro-batch. gather adds them to the step's mean (omitted if a step is one
 * micro-batch). reduce sums the mean over the ranks of the run, if there are several. update changes the weights.
 * If each rank updates its share of them, exchange copies all shares to all ranks. evaluate runs over the validation
 * records. preview generates a text, if the model can. take has no plan: it copies results of earlier stages to the
 * host, losses and, at the end of a step, the norm. A stage is a row of functions: one runs before its first node, one
 * after its last node and chooses the next stage. trainer_advance depends on nothing else, so it can stop after any
 * node, or while a device is working.
 *
 * If the objective computes the loss itself (objective.h), batch is two stages. score runs the plan up to the
 * log-probabilities, from which the host computes the weights of the labels. weighted runs the rest.
 *
 * Otherwise an asynchronous device never waits for the host. The take after a batch leaves the transfer of that batch's loss in
 * flight and waits for the one before. There is no take between an update and the next batch, except before an
 * evaluation or the end. So the host's work overlaps with a batch on the device:
 *
 *   device  … │ batch n │ update n │ batch n + 1        │ update n + 1 │ batch n + 2 …
 *   host           issues both ───▶│ takes step n in, issues both ─────▶│
 *
 * No update is speculative: it is issued once all results of the previous update are known.
 *
 * Everything is a function of the step number. Step s, micro-batch k reads the records from (s·accumulation +
 * k)·batch_size on, of which each rank takes its share; with carry_state, those of carry.h. Its dropout is drawn from
 * counter s·accumulation + k, in which ranks are parts. The position to resume from is therefore the step number, and
 * random numbers never repeat in a run.
 *
 * The weights change only in the last node of `update` and in exchange. The step number changes in the same call of
 * trainer_advance or, on an asynchronous device, when its numbers are taken; until then trainer_settle waits for them.
 * Whenever a run is saved, weights, moments and step number therefore belong together. */
#include "engine/train/trainer_private.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"

enum {
	/* Maximum time that one call waits for an asynchronous device, and the interval of its checks. */
	WAIT_NS = 100000,
	LOOK_NS = 20000,
};

/* Weight of the newest step in the smoothed speed and in the terms of the noise scale. */
static const double smoothing = 0.1, noise_smoothing = 0.05;

static const stage batch_stage, score_stage, weighted_stage, gather_stage, reduce_stage, update_stage, exchange_stage,
    skip_stage, take_stage;

void trainer_go(trainer *t, const stage *next)
{
	t->stage = next;
	t->cursor = -1;
}

/* True if something done every `every` steps is due after `step` of them. */
static bool is_due(const trainer *t, int64_t step, int64_t every)
{
	return step > 0 && (step == t->options.max_steps || (every > 0 && step % every == 0));
}

bool trainer_evaluation_is_due(const trainer *t, int64_t step)
{
	return t->valid_pass && is_due(t, step, t->options.eval_every) && t->valid_step != step;
}

/* True if `patience` evaluations in a row have not lowered the loss, or a range test has ended. */
static bool has_ended_early(const trainer *t)
{
	return (t->options.patience > 0 && t->stale >= t->options.patience) || t->range.ended != 0;
}

/* After a step and its evaluation. */
unsigned trainer_checkpoint_event(const trainer *t)
{
	const bool due = is_due(t, t->progress.step, t->options.checkpoint_every) || has_ended_early(t);
	return due ? TRAIN_CHECKPOINT_DUE : 0;
}

static const stage *first_of_batch(const trainer *t)
{
	return t->reference ? &score_stage : &batch_stage;
}

/* The stage that writes gradients. */
static const stage *last_of_batch(const trainer *t)
{
	return t->reference ? &weighted_stage : &batch_stage;
}

bool trainer_device_is_idle(const trainer *t)
{
	backend *b = model_backend(t->model);
	return !b->busy || !b->busy(b);
}

void trainer_begin(trainer *t)
{
	if (t->reference && !t->reference->complete)
		trainer_begin_reference(t);
	else
		trainer_begin_step(t);
}

void trainer_begin_step(trainer *t)
{
	trainer_go(t, t->progress.step == t->options.max_steps || has_ended_early(t) ? NULL : first_of_batch(t));
}

/* --- the stages --------------------------------------------------------------- */

static plan *batch_plan(const trainer *t)
{
	return pass_plan(t->train_pass);
}

/* Number of batches of a step, over all ranks. */
static int64_t batches_of_step(const trainer *t)
{
	return t->options.gradient_accumulation * trainer_ranks(t);
}

/* A step takes the mean over all its labels. If batches have different numbers of labels, their total is needed before
 * the first batch. */
static bool is_weighted(const trainer *t)
{
	return batches_of_step(t) > 1 && train_options_uneven(&t->options);
}

/* Return the records of a batch of the step being issued. */
static pass_rows rows_of(const trainer *t, int64_t batch_number)
{
	const int64_t batch = t->options.batch_size / trainer_ranks(t), lanes = batch * batches_of_step(t);
	if (!t->train_carry)
		return (pass_rows){.first = t->issued * lanes + batch_number * batch, .stride = 1, .count = batch};
	const int64_t length = dataset_records(t->train) / lanes, epoch = t->issued / length;
	return (pass_rows){.first = (epoch * lanes + batch_number * batch) * length + t->issued % length,
	                   .stride = length,
	                   .count = batch,
	                   .begin = t->issued % length == 0};
}

static status batch_enter(trainer *t)
{
	if (t->micro == 0) {
		if (t->n_awaited == 0)
			t->step_began = clock_ns();
		TRY(optimizer_begin(t->optimizer));
		if (is_weighted(t)) {
			t->labels = 0;
			for (int64_t i = 0; i < batches_of_step(t); i++) {
				TRY(pass_read(t->train_pass, t->train, t->shuffle, rows_of(t, i), &t->failed));
				t->labels += pass_labels(t->train_pass);
			}
		}
	}
	const int64_t number = t->issued * t->options.gradient_accumulation + t->micro;
	TRY(pass_seed(t->train_pass, t->options.seed, (uint32_t)number, (uint32_t)trainer_rank(t)));
	TRY(pass_load(t->train_pass, t->train, t->shuffle, rows_of(t, t->micro * trainer_ranks(t) + trainer_rank(t)),
	              &t->failed));
	if (!is_weighted(t)) /* every batch has the same number, or the step is a single batch */
		t->labels = pass_labels(t->train_pass);
	if (t->train_carry)
		TRY(carry_load(t->train_carry, t->issued, t->micro, pass_continues(t->train_pass)));
	t->weight = 1;
	if (is_weighted(t))
		t->weight = t->labels == 0
		                ? 0
		                : (double)pass_labels(t->train_pass) * (double)batches_of_step(t) / (double)t->labels;
	if (t->sum && t->micro == 0) /* with several batches, the mean includes the weights */
		gradient_sum_begin(
		    t->sum, (float)((t->options.gradient_accumulation > 1 ? 1 : t->weight) / (double)trainer_ranks(t)));
	return STATUS_OK;
}

/* Register a number that the stage `take` will read. */
static status await(trainer *t, const float *at, trainer_number what)
{
	backend *b = model_backend(t->model);
	assert(t->n_awaited < TRAINER_MAX_AWAITED);
	trainer_awaited *a = &t->awaited[t->n_awaited++];
	*a = (trainer_awaited){.at = at, .what = what, .weight = t->weight};
	return b->fetch ? b->fetch(b, at, sizeof *at, &a->fetch) : STATUS_OK;
}

/* n_left: number of the newest transfers that need not be waited for. */
static void go_take(trainer *t, int n_left)
{
	t->n_left = n_left;
	trainer_go(t, &take_stage);
}

static status batch_leave(trainer *t, unsigned *events, error *err)
{
	(void)events, (void)err;
	TRY(await(t, pass_loss(t->train_pass), NUMBER_LOSS));
	if (t->train_carry)
		TRY(carry_keep(t->train_carry, t->issued, t->micro));
	t->micro++;
	go_take(t, model_backend(t->model)->fetch != NULL && !t->sum);
	return STATUS_OK;
}

static const stage batch_stage = {batch_plan, batch_enter, NULL, batch_leave};

static status score_leave(trainer *t, unsigned *events, error *err)
{
	double loss;
	(void)events, (void)err;
	TRY(pass_weigh(t->train_pass, t->reference->sums[REFERENCE_TRAIN], NULL, &loss));
	t->loss_sum += t->weight * loss;
	trainer_go(t, &weighted_stage);
	return STATUS_OK;
}

static const stage score_stage = {batch_plan, batch_enter, trainer_device_is_idle, score_leave};

static status weighted_enter(trainer *t)
{
	t->cursor = pass_stop(t->train_pass);
	return STATUS_OK;
}

static status weighted_leave(trainer *t, unsigned *events, error *err)
{
	(void)events, (void)err;
	t->micro++;
	go_take(t, 0);
	return STATUS_OK;
}

static const stage weighted_stage = {batch_plan, weighted_enter, NULL, weighted_leave};

/* End a step. A step without labels has no gradient, but an update would still change the weights through the moments
 * and the decay. */
static const stage *end_of_step(const trainer *t)
{
	return t->labels > 0 ? &update_stage : &skip_stage;
}

/* Return the stage that follows when all gradients of this rank are computed. */
static const stage *complete_gradients(const trainer *t)
{
	return t->sum ? &reduce_stage : end_of_step(t);
}

static plan *gather_plan(const trainer *t)
{
	return optimizer_accumulate_plan(t->optimizer);
}

static status gather_leave(trainer *t, unsigned *events, error *err)
{
	(void)events, (void)err;
	trainer_go(t, t->micro < t->options.gradient_accumulation ? first_of_batch(t) : complete_gradients(t));
	return STATUS_OK;
}

static status gather_enter(trainer *t)
{
	return optimizer_weigh(t->optimizer, (float)t->weight);
}

static const stage gather_stage = {gather_plan, gather_enter, NULL, gather_leave};

static status reduce_enter(trainer *t)
{
	return gradient_sum_rest(t->sum, (float)t->loss_sum);
}

/* Repeated until the sums are complete, because they advance only while they are polled. */
static status reduce_leave(trainer *t, unsigned *events, error *err)
{
	bool complete;
	float loss;
	(void)events, (void)err;
	TRY(gradient_sum_poll(t->sum, &complete, &loss));
	if (!complete)
		return STATUS_OK;
	t->loss_sum = (double)loss / (double)trainer_ranks(t);
	trainer_go(t, end_of_step(t));
	return STATUS_OK;
}

static const stage reduce_stage = {NULL, reduce_enter, NULL, reduce_leave};

static plan *update_plan(const trainer *t)
{
	return optimizer_update_plan(t->optimizer);
}

static status update_enter(trainer *t)
{
	assert(t->issued == t->progress.step);
	return optimizer_prepare(t->optimizer, train_learning_rate(&t->options, t->progress.step));
}

/* All of the step counted in t->issued has been issued. */
static void leave_step(trainer *t)
{
	t->micro = 0;
	bool more = t->issued < t->options.max_steps && !trainer_evaluation_is_due(t, t->issued);
	if (more && model_backend(t->model)->fetch && !t->reference)
		trainer_go(t, &batch_stage);
	else
		go_take(t, 0);
}

static status end_update(trainer *t)
{
	t->issued++;
	if (t->average) /* in the same call as the weights' last change, so both are saved or neither */
		TRY(weight_average_take(t->average, t->issued));
	leave_step(t);
	return STATUS_OK;
}

static status update_leave(trainer *t, unsigned *events, error *err)
{
	(void)events, (void)err;
	if (optimizer_small2(t->optimizer))
		TRY(await(t, optimizer_small2(t->optimizer), NUMBER_SMALL2));
	TRY(await(t, optimizer_norm2(t->optimizer), NUMBER_NORM2));
	if (!optimizer_shares(t->optimizer))
		return end_update(t);
	trainer_go(t, &exchange_stage);
	return STATUS_OK;
}

static const stage update_stage = {update_plan, update_enter, NULL, update_leave};

static status exchange_enter(trainer *t)
{
	return gradient_sum_exchange(t->sum, model_arena(t->model), optimizer_shares(t->optimizer));
}

/* Repeated like reduce_leave. A run that ends before it is complete cannot be saved, because the states of the other
 * ranks have not been gathered. */
static status exchange_leave(trainer *t, unsigned *events, error *err)
{
	bool complete;
	(void)events, (void)err;
	TRY(gradient_sum_exchanged(t->sum, &complete));
	if (!complete)
		return STATUS_OK;
	TRY(optimizer_exchanged(t->optimizer));
	return end_update(t);
}

static const stage exchange_stage = {NULL, exchange_enter, NULL, exchange_leave};

static status skip_leave(trainer *t, unsigned *events, error *err)
{
	(void)events, (void)err;
	TRY(await(t, pass_loss(t->train_pass), NUMBER_NONE));
	t->issued++;
	leave_step(t);
	return STATUS_OK;
}

static const stage skip_stage = {NULL, NULL, NULL, skip_leave};

static int64_t tokens_per_step(const trainer *t)
{
	const train_options *o = &t->options;
	return (o->sequence_length * objective_rows(o->objective) + train_options_source(o)) * o->batch_size *
	       o->gradient_accumulation;
}

/* For k batches of b records the mean square is |g|² + noise / b; for their mean it is |g|² + noise / (k b). Both
 * estimates are smoothed separately, because neither their quotient nor its mean is unbiased (McCandlish et al. 2018,
 * appendix A). */
static void measure_noise(trainer *t, double norm2)
{
	const double k = (double)t->options.gradient_accumulation, b = (double)t->options.batch_size;
	const double seen[] = {b * (t->small2 - norm2) / (1 - 1 / k), (k * norm2 - t->small2) / (k - 1)};
	if (!isfinite(seen[0]) || !isfinite(seen[1]))
		return;
	for (int i = 0; i < 2; i++)
		t->noise[i] += noise_smoothing * (seen[i] - t->noise[i]);
	t->progress.gradient_noise = t->noise[0] > 0 && t->noise[1] > 0 ? t->noise[0] / t->noise[1] : NAN;
}

/* Count a complete step. */
static void count_step(trainer *t)
{
	train_progress *p = &t->progress;
	t->loss_sum = 0;
	p->learning_rate = train_learning_rate(&t->options, p->step);
	p->tokens += tokens_per_step(t);
	p->step++;
	/* Rates are averaged, not durations, so a long pause counts as one slow step. */
	uint64_t now = clock_ns();
	double seconds = (double)(now - t->step_began) * 1e-9;
	double rate = (double)tokens_per_step(t) / (seconds > 0 ? seconds : 1e-9);
	double *speed = &t->progress.tokens_per_second;
	*speed = *speed > 0 ? (1 - smoothing) * *speed + smoothing * rate : rate;
	t->step_began = now; /* for the next step, if it is in progress */
}

static unsigned step_events(const trainer *t)
{
	return TRAIN_STEP | (trainer_evaluation_is_due(t, t->progress.step) ? 0 : trainer_checkpoint_event(t));
}

static status end_step(trainer *t, float norm2, unsigned *events, error *err)
{
	train_progress *p = &t->progress;
	p->gradient_norm = optimizer_count(t->optimizer, norm2);
	p->train_loss = t->loss_sum / (double)t->options.gradient_accumulation;
	count_step(t);
	if (optimizer_small2(t->optimizer))
		measure_noise(t, (double)norm2);
	if (t->options.schedule == SCHEDULE_RANGE_TEST) {
		range_test_take(&t->range, p->step, p->learning_rate, p->train_loss);
		p->suggested_rate = t->range.rate > 0 ? t->range.rate : NAN;
	}
	bool good = isfinite(p->train_loss) && isfinite(p->gradient_norm);
	t->bad_steps = good ? 0 : t->bad_steps + 1;
	p->skipped_steps += !good;
	if (t->bad_steps == t->options.max_bad_steps && !has_ended_early(t))
		return error_set(err, STATUS_INVALID, "learning_rate",
		                 "the loss or its gradient was not finite in %lld steps in a row, up to step %lld",
		                 (long long)t->bad_steps, (long long)p->step);
	*events |= step_events(t);
	return STATUS_OK;
}

static status take_oldest(trainer *t, unsigned *events, error *err)
{
	backend *b = model_backend(t->model);
	trainer_awaited a = t->awaited[0];
	float number;
	TRY(b->fetch ? b->fetch_take(b, a.fetch, &number, sizeof number)
	             : b->download(b, &number, a.at, sizeof number));
	t->n_awaited--;
	memmove(t->awaited, t->awaited + 1, (size_t)t->n_awaited * sizeof *t->awaited);
	if (a.what == NUMBER_NORM2)
		return end_step(t, number, events, err);
	if (a.what == NUMBER_NONE) {
		/* End a step without labels: it has no loss, and no weight has changed. */
		t->progress.gradient_norm = t->progress.train_loss = NAN;
		t->progress.empty_steps++;
		count_step(t);
		*events |= step_events(t);
	} else if (a.what == NUMBER_SMALL2)
		t->small2 = (double)number;
	else
		t->loss_sum += a.weight * number;
	return STATUS_OK;
}

static bool take_ready(const trainer *t)
{
	backend *b = model_backend(t->model);
	int last = t->n_awaited - t->n_left - 1;
	return last < 0 || !b->fetch || b->fetched(b, t->awaited[last].fetch);
}

static status take_leave(trainer *t, unsigned *events, error *err)
{
	while (t->n_awaited > t->n_left)
		TRY(take_oldest(t, events, err));
	if (t->micro > 0 && !has_ended_early(t))
		trainer_go(t, t->options.gradient_accumulation > 1 ? &gather_stage : complete_gradients(t));
	else if (trainer_evaluation_is_due(t, t->progress.step))
		trainer_begin_evaluation(t);
	else
		trainer_begin_step(t);
	return STATUS_OK;
}

static const stage take_stage = {NULL, NULL, take_ready, take_leave};

/* --- advancing ------------------------------------------------------------------- */

/* Advance the stage's plan by one node if the host computes. An asynchronous device receives all of it at once, or the
 * part before the next sums of gradients. It receives the first run node by node, since each product may be timed. */
static status run_plan(trainer *t, plan *p, bool *issued)
{
	const int all = plan_node_count(p), end = t->stage == &score_stage ? pass_stop(t->train_pass) : all;
	const bool writes = t->sum && t->stage == last_of_batch(t) && t->options.gradient_accumulation == 1;
	const bool sums = writes && (t->options.ranks->devices || !model_backend(t->model)->busy);
	if (!model_backend(t->model)->busy) {
		TRY(plan_step(p, &t->cursor));
	} else if (t->cursor < end && sums) {
		TRY(plan_run_part(p, &t->cursor, gradient_sum_next(t->sum, t->cursor, end)));
	} else if (t->cursor < end && plan_is_new(p)) {
		TRY(plan_step_first(p, &t->cursor));
	} else if (t->cursor == 0 && end == all) {
		TRY(plan_run(p));
		t->cursor = end;
	} else if (t->cursor < end) {
		TRY(plan_run_part(p, &t->cursor, end));
	}
	*issued = t->cursor == end;
	return sums ? gradient_sum_passed(t->sum, t->cursor) : STATUS_OK;
}

/* The device has a batch queued, so oversleeping costs nothing. */
static bool wait_until_ready(const trainer *t, const stage *s, bool forever)
{
	const struct timespec pause = {0, LOOK_NS};
	for (uint64_t began = clock_ns(); s->ready && !s->ready(t); nanosleep(&pause, NULL))
		if (!forever && (t->never_waits || clock_ns() - began >= WAIT_NS))
			return false;
	return true;
}

static status run_stages(trainer *t, uint64_t budget_ns, unsigned *events, error *err)
{
	uint64_t began = clock_ns();
	while (t->stage && !*events) {
		const stage *now = t->stage;
		bool issued = true;
		if (t->cursor < 0 && now->enter)
			TRY(now->enter(t));
		t->cursor = t->cursor < 0 ? 0 : t->cursor;
		if (now->plan)
			TRY(run_plan(t, now->plan(t), &issued));
		if (issued) {
			if (!wait_until_ready(t, now, budget_ns == 0))
				break;
			TRY(now->leave(t, events, err));
		}
		/* Results that the host has computed are taken in the same call. */
		if (budget_ns > 0 && t->stage != &take_stage && clock_ns() - began >= budget_ns)
			break;
	}
	if (!t->stage && !t->finish_reported) {
		t->finish_reported = true;
		*events |= TRAIN_FINISHED;
	}
	return STATUS_OK;
}

/* A failure is final: every later call returns it. */
static status settle_failure(trainer *t, status s, error *err)
{
	if (s == STATUS_OK)
		return s;
	error_set(&t->failed, s, NULL, "%s", status_text(s));
	return error_set(err, t->failed.status, t->failed.param, "%s", t->failed.message);
}

status trainer_advance(trainer *t, uint64_t budget_ns, unsigned *events, error *err)
{
	status s = t->failed.status;
	*events = t->pending_events;
	t->pending_events = 0;
	if (s == STATUS_OK && !*events)
		s = run_stages(t, budget_ns, events, &t->failed);
	return settle_failure(t, s, err);
}

status trainer_conclude(trainer *t, error *err)
{
	train_progress *p = &t->progress;
	assert(!t->stage);
	const bool earlier = t->best && p->best_step > 0 && p->best_step != p->step;
	if (earlier)
		TRY(settle_failure(t, kept_weights_use(t->best), err));
	p->result_step = earlier ? p->best_step : p->step;
	return STATUS_OK;
}

/* If a rank was lost, the trainer keeps the last step that all ranks have completed. */
status trainer_settle(trainer *t, error *err)
{
	status s = t->failed.status == STATUS_UNAVAILABLE ? STATUS_OK : t->failed.status;
	while (s == STATUS_OK && t->issued > t->progress.step)
		s = take_oldest(t, &t->pending_events, &t->failed);
	return settle_failure(t, s, err);
}

void trainer_may_wait(trainer *t, bool may)
{
	t->never_waits = !may;
}

const train_progress *trainer_progress(const trainer *t)
{
	return &t->progress;
}

const int32_t *trainer_preview(const trainer *t, int *prompt, int *count)
{
	*prompt = *count = 0;
	return t->valid_step > 0 && t->preview ? preview_tokens(t->preview, prompt, count) : NULL;
}

model *trainer_result(const trainer *t)
{
	return t->average ? weight_average_model(t->average) : t->model;
}

const model *trainer_model(const trainer *t)
{
	return trainer_result(t);
}
