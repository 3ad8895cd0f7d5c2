/* The run is a chain of stages, each a plan that is run node by node:
 *
 *   batch ──▶ take ──▶ gather ──▶ … ──▶ update ──▶ take ──▶ (evaluate … preview …) ──▶ batch …
 *
 * batch computes the gradients of one micro-batch, gather adds them to the step's mean
 * (left out when a step is one micro-batch), update changes the weights, evaluate runs over
 * the validation blocks, preview writes a text token by token. take has no plan: there the numbers come to the host
 * that the stages before have made, losses and, ending a step, the norm. A stage is a row of functions: what to do
 * before its first node and after its last one, where the next stage is chosen. trainer_advance knows nothing else, so
 * it can stop after any node, or while a device still works.
 *
 * A device behind the host's back never waits for the host: the take after a batch leaves that batch's loss on its way
 * and waits for what came before it, and no take comes between an update and the next batch (unless an evaluation or
 * the end does). So what the host does between them, it does while the device is busy with a batch:
 *
 *   device  … │ batch n │ update n │ batch n + 1        │ update n + 1 │ batch n + 2 …
 *   host           issues both ───▶│ takes step n in, issues both ─────▶│
 *
 * Nothing is computed on trust: an update is issued when all about the update before it is known.
 *
 * Everything is a function of the step number: step s, micro-batch k reads the blocks from
 * (s·accumulation + k)·batch_size on and draws its dropout from counter s·accumulation + k.
 * So the position to resume from is the step number, and the random numbers never repeat in
 * a run.
 *
 * The weights change in the last node of `update` only, and the step number in the same call
 * of trainer_advance, or, on such a device, when its numbers are taken in; until then trainer_settle waits for them.
 * So whenever a run is saved, weights, moments and step number belong together. */
#include "engine/train/trainer.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/train/checkpoint.h"
#include "engine/train/optimizer.h"
#include "engine/train/pass.h"
#include "engine/train/preview.h"

enum {
	MAX_BAD_STEPS = 3,
	/* How long one call waits for a device that works behind the host's back, and how often it looks. */
	WAIT_NS = 100000,
	LOOK_NS = 20000,
	MAX_AWAITED = 3, /* a loss, the norm after it, the loss of the batch ahead */
};

/* Share of the newest step in the smoothed speed. */
static const double smoothing = 0.1;

typedef struct stage {
	plan *(*plan)(const trainer *t); /* NULL: it has none */
	status (*enter)(trainer *t);
	bool (*ready)(const trainer *t);                           /* for its end, when all is issued; NULL: at once */
	status (*leave)(trainer *t, unsigned *events, error *err); /* chooses t->stage */
} stage;

/* A number on its way: a micro-batch's loss, or the squared norm of the gradients, which ends a step. */
typedef struct awaited {
	const float *at; /* on the device */
	unsigned fetch;
	bool ends_step;
} awaited;

struct trainer {
	model *model;
	train_options options;
	uint64_t shuffle;
	const dataset *train, *valid;
	uint64_t train_hash, valid_hash;
	optimizer *optimizer;
	pass *train_pass, *valid_pass; /* valid_pass: NULL without validation data, */
	preview *preview;              /* and so is this */

	const stage *stage; /* NULL: nothing left to do */
	int cursor;         /* next node of the stage's plan, -1 before enter */
	bool told_finished;
	unsigned owed;                /* events of trainer_settle, for the next advance */
	int64_t issued;               /* steps whose update is issued: progress.step or one more */
	int64_t micro;                /* micro-batches of the step after those */
	awaited awaited[MAX_AWAITED]; /* oldest first */
	int n_awaited, n_left;        /* how many, and how many of them the stage `take` leaves on their way */
	double loss_sum;              /* of what was taken of a step */
	uint64_t step_began;
	int64_t valid_blocks, valid_batch, valid_at; /* of one evaluation; blocks done */
	double valid_sum, valid_count;
	int64_t valid_step; /* the step after which the last evaluation was, 0: none */
	int bad_steps;      /* not finite, in a row */
	train_progress progress;
	error failed; /* the final error, once there is one */
};

static const stage batch_stage, gather_stage, update_stage, take_stage, evaluate_stage, preview_stage;

static void go(trainer *t, const stage *next)
{
	t->stage = next;
	t->cursor = -1;
}

/* Whether something done every `every` steps is due after `step` of them. */
static bool is_due(const trainer *t, int64_t step, int64_t every)
{
	return step > 0 && (step == t->options.max_steps || (every > 0 && step % every == 0));
}

static bool evaluation_is_due(const trainer *t, int64_t step)
{
	return t->valid_pass && is_due(t, step, t->options.eval_every) && t->valid_step != step;
}

/* After a step and its evaluation. */
static unsigned checkpoint_event(const trainer *t)
{
	return is_due(t, t->progress.step, t->options.checkpoint_every) ? TRAIN_CHECKPOINT_DUE : 0;
}

static void begin_step(trainer *t)
{
	go(t, t->progress.step == t->options.max_steps ? NULL : &batch_stage);
}

static void begin_evaluation(trainer *t)
{
	t->valid_at = 0;
	t->valid_sum = t->valid_count = 0;
	go(t, &evaluate_stage);
}

/* --- the stages --------------------------------------------------------------- */

static plan *batch_plan(const trainer *t)
{
	return pass_plan(t->train_pass);
}

static status batch_enter(trainer *t)
{
	if (t->micro == 0) {
		if (t->n_awaited == 0)
			t->step_began = clock_ns();
		TRY(optimizer_begin(t->optimizer));
	}
	int64_t number = t->issued * t->options.accumulation + t->micro;
	TRY(pass_seed(t->train_pass, t->options.seed, (uint32_t)number));
	return pass_load(t->train_pass, t->train, t->shuffle, number * t->options.batch_size, t->options.batch_size);
}

/* The number will be taken in by the stage `take`. */
static status await(trainer *t, const float *at, bool ends_step)
{
	backend *b = model_backend(t->model);
	assert(t->n_awaited < MAX_AWAITED);
	awaited *a = &t->awaited[t->n_awaited++];
	*a = (awaited){.at = at, .ends_step = ends_step};
	return b->fetch ? b->fetch(b, at, sizeof *at, &a->fetch) : STATUS_OK;
}

/* n_left: how many of the newest need not be waited for. */
static void go_take(trainer *t, int n_left)
{
	t->n_left = n_left;
	go(t, &take_stage);
}

static status batch_leave(trainer *t, unsigned *events, error *err)
{
	(void)events, (void)err;
	TRY(await(t, pass_loss(t->train_pass), false));
	t->micro++;
	go_take(t, model_backend(t->model)->fetch != NULL);
	return STATUS_OK;
}

static const stage batch_stage = {batch_plan, batch_enter, NULL, batch_leave};

static plan *gather_plan(const trainer *t)
{
	return optimizer_gather_plan(t->optimizer);
}

static status gather_leave(trainer *t, unsigned *events, error *err)
{
	(void)events, (void)err;
	go(t, t->micro < t->options.accumulation ? &batch_stage : &update_stage);
	return STATUS_OK;
}

static const stage gather_stage = {gather_plan, NULL, NULL, gather_leave};

static plan *update_plan(const trainer *t)
{
	return optimizer_update_plan(t->optimizer);
}

static status update_enter(trainer *t)
{
	assert(t->issued == t->progress.step);
	return optimizer_prepare(t->optimizer, train_learning_rate(&t->options, t->progress.step));
}

static status update_leave(trainer *t, unsigned *events, error *err)
{
	(void)events, (void)err;
	TRY(await(t, optimizer_norm2(t->optimizer), true));
	t->issued++;
	t->micro = 0;
	bool more = t->issued < t->options.max_steps && !evaluation_is_due(t, t->issued);
	if (more && model_backend(t->model)->fetch)
		go(t, &batch_stage);
	else
		go_take(t, 0);
	return STATUS_OK;
}

static const stage update_stage = {update_plan, update_enter, NULL, update_leave};

static int64_t tokens_per_step(const trainer *t)
{
	return t->options.sequence_length * t->options.batch_size * t->options.accumulation;
}

/* Rates are averaged, not durations: one long pause then counts as one slow step. */
static void measure_speed(trainer *t)
{
	uint64_t now = clock_ns();
	double seconds = (double)(now - t->step_began) * 1e-9;
	double rate = (double)tokens_per_step(t) / (seconds > 0 ? seconds : 1e-9);
	double *speed = &t->progress.tokens_per_second;
	*speed = *speed > 0 ? (1 - smoothing) * *speed + smoothing * rate : rate;
	t->step_began = now; /* of the next one, if that is under way */
}

static status end_step(trainer *t, float norm2, unsigned *events, error *err)
{
	train_progress *p = &t->progress;
	p->gradient_norm = optimizer_count(t->optimizer, norm2);
	p->train_loss = t->loss_sum / (double)t->options.accumulation;
	t->loss_sum = 0;
	p->learning_rate = train_learning_rate(&t->options, p->step);
	p->tokens += tokens_per_step(t);
	p->step++;
	measure_speed(t);
	bool good = isfinite(p->train_loss) && isfinite(p->gradient_norm);
	t->bad_steps = good ? 0 : t->bad_steps + 1;
	if (t->bad_steps == MAX_BAD_STEPS)
		return error_set(err, STATUS_INVALID, "learning_rate",
		                 "the loss or its gradient was not finite in %d steps in a row, up to step %lld",
		                 MAX_BAD_STEPS, (long long)p->step);
	*events |= TRAIN_STEP | (evaluation_is_due(t, p->step) ? 0 : checkpoint_event(t));
	return STATUS_OK;
}

static status take_oldest(trainer *t, unsigned *events, error *err)
{
	backend *b = model_backend(t->model);
	awaited a = t->awaited[0];
	float number;
	TRY(b->fetch ? b->fetch_take(b, a.fetch, &number, sizeof number)
	             : b->download(b, &number, a.at, sizeof number));
	t->n_awaited--;
	memmove(t->awaited, t->awaited + 1, (size_t)t->n_awaited * sizeof *t->awaited);
	if (a.ends_step)
		return end_step(t, number, events, err);
	t->loss_sum += number;
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
	if (t->micro > 0)
		go(t, t->options.accumulation > 1 ? &gather_stage : &update_stage);
	else if (evaluation_is_due(t, t->progress.step))
		begin_evaluation(t);
	else
		begin_step(t);
	return STATUS_OK;
}

static const stage take_stage = {NULL, NULL, take_ready, take_leave};

static plan *evaluate_plan(const trainer *t)
{
	return pass_plan(t->valid_pass);
}

static int64_t evaluate_count(const trainer *t)
{
	int64_t left = t->valid_blocks - t->valid_at;
	return left < t->valid_batch ? left : t->valid_batch;
}

static status evaluate_enter(trainer *t)
{
	return pass_load(t->valid_pass, t->valid, 0, t->valid_at, evaluate_count(t));
}

static bool evaluate_ready(const trainer *t)
{
	backend *b = model_backend(t->model);
	return !b->busy || !b->busy(b);
}

static status evaluate_leave(trainer *t, unsigned *events, error *err)
{
	(void)events, (void)err;
	double loss, count;
	TRY(pass_result(t->valid_pass, &loss, &count));
	t->valid_sum += loss * count;
	t->valid_count += count;
	t->valid_at += evaluate_count(t);
	if (t->valid_at < t->valid_blocks) {
		go(t, &evaluate_stage);
		return STATUS_OK;
	}
	preview_begin(t->preview);
	go(t, &preview_stage);
	return STATUS_OK;
}

static const stage evaluate_stage = {evaluate_plan, evaluate_enter, evaluate_ready, evaluate_leave};

static plan *write_plan(const trainer *t)
{
	return preview_plan(t->preview);
}

static status write_enter(trainer *t)
{
	return preview_enter(t->preview);
}

/* The numbers of the evaluation are told with its text, so that a run saved between the two makes both again. */
static status write_leave(trainer *t, unsigned *events, error *err)
{
	bool more;
	(void)err;
	TRY(preview_leave(t->preview, &more));
	if (more) {
		go(t, &preview_stage);
		return STATUS_OK;
	}
	t->progress.valid_loss = t->valid_sum / t->valid_count;
	t->progress.bits_per_byte = t->valid_sum / log(2) / (double)dataset_label_bytes(t->valid, t->valid_blocks);
	t->valid_step = t->progress.step;
	*events |= TRAIN_EVAL | checkpoint_event(t);
	begin_step(t);
	return STATUS_OK;
}

static const stage preview_stage = {write_plan, write_enter, evaluate_ready, write_leave};

/* --- advancing ------------------------------------------------------------------- */

/* Advance the stage's plan: a node where the host computes; on a device behind its back all of it is issued at once. */
static status run_plan(trainer *t, plan *p, bool *issued)
{
	if (!model_backend(t->model)->busy) {
		TRY(plan_step(p, &t->cursor));
		*issued = t->cursor == plan_node_count(p);
		return STATUS_OK;
	}
	if (t->cursor == 0)
		TRY(plan_run(p));
	t->cursor = plan_node_count(p);
	return STATUS_OK;
}

/* The device has a batch before it meanwhile, so what a sleep takes too long costs nothing. */
static bool wait_until_ready(const trainer *t, const stage *s, bool forever)
{
	const struct timespec pause = {0, LOOK_NS};
	for (uint64_t began = clock_ns(); s->ready && !s->ready(t); nanosleep(&pause, NULL))
		if (!forever && clock_ns() - began >= WAIT_NS)
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
		/* What the host has made is taken in the same call. */
		if (budget_ns > 0 && t->stage != &take_stage && clock_ns() - began >= budget_ns)
			break;
	}
	if (!t->stage && !t->told_finished) {
		t->told_finished = true;
		*events |= TRAIN_FINISHED;
	}
	return STATUS_OK;
}

/* A failure is final: every call answers it from here on. */
static status conclude(trainer *t, status s, error *err)
{
	if (s == STATUS_OK)
		return s;
	error_set(&t->failed, s, NULL, "%s", status_text(s));
	return error_set(err, t->failed.status, t->failed.param, "%s", t->failed.message);
}

status trainer_advance(trainer *t, uint64_t budget_ns, unsigned *events, error *err)
{
	status s = t->failed.status;
	*events = t->owed;
	t->owed = 0;
	if (s == STATUS_OK && !*events)
		s = run_stages(t, budget_ns, events, &t->failed);
	return conclude(t, s, err);
}

status trainer_settle(trainer *t, error *err)
{
	status s = t->failed.status;
	while (s == STATUS_OK && t->issued > t->progress.step)
		s = take_oldest(t, &t->owed, &t->failed);
	return conclude(t, s, err);
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

const model *trainer_model(const trainer *t)
{
	return t->model;
}

/* --- making ------------------------------------------------------------------------ */

static status check_dataset(const trainer *t, const dataset *d, const char *what, error *err)
{
	const model_dims *dims = model_dimensions(t->model);
	if (dataset_length(d) != t->options.sequence_length)
		return error_set(err, STATUS_INVALID, "sequence_length", "the %s data is cut in blocks of %lld", what,
		                 (long long)dataset_length(d));
	if (dataset_vocab(d) > dims->vocab)
		return error_set(err, STATUS_INVALID, "vocab_size", "the tokenizer has %d ids, the model only %lld",
		                 (int)dataset_vocab(d), (long long)dims->vocab);
	return STATUS_OK;
}

static status check(const trainer *t, error *err)
{
	const train_options *o = &t->options;
	TRY(train_options_check(o, err));
	if (o->sequence_length > model_dimensions(t->model)->positions)
		return error_set(err, STATUS_INVALID, "sequence_length", "must be at most the model's %lld positions",
		                 (long long)model_dimensions(t->model)->positions);
	if (o->precision == PRECISION_BF16 && !model_backend(t->model)->bf16)
		return error_set(err, STATUS_UNSUPPORTED, "precision", "the %s backend computes in fp32 only",
		                 model_backend(t->model)->name);
	TRY(check_dataset(t, t->train, "training", err));
	if (o->batch_size > dataset_blocks(t->train))
		return error_set(err, STATUS_INVALID, "batch_size", "must be at most the training data's %lld blocks",
		                 (long long)dataset_blocks(t->train));
	return t->valid ? check_dataset(t, t->valid, "validation", err) : STATUS_OK;
}

static status build(trainer *t, error *err)
{
	const train_options *o = &t->options;
	forward_spec spec = {.batch = o->batch_size,
	                     .length = o->sequence_length,
	                     .dropout = model_dimensions(t->model)->dropout > 0,
	                     .loss = true,
	                     .backward = true,
	                     .recompute = o->recompute,
	                     .bf16 = o->precision == PRECISION_BF16,
	                     .smoothing = (float)o->smoothing};
	TRY(check(t, err));
	model_train_on(t->model, o->sequence_length);
	if (spec.bf16)
		TRY(model_narrow(t->model, err));
	t->train_hash = dataset_fingerprint(t->train);
	TRY(optimizer_new(&t->optimizer, t->model, o, err));
	TRY(pass_new(&t->train_pass, t->model, &spec, optimizer_gradients(t->optimizer), err));
	if (!t->valid)
		return STATUS_OK;
	int64_t blocks = dataset_blocks(t->valid);
	t->valid_hash = dataset_fingerprint(t->valid);
	t->valid_blocks = o->eval_blocks > 0 && o->eval_blocks < blocks ? o->eval_blocks : blocks;
	t->valid_batch = o->batch_size < t->valid_blocks ? o->batch_size : t->valid_blocks;
	spec = (forward_spec){.batch = t->valid_batch, .length = o->sequence_length, .loss = true, .bf16 = spec.bf16};
	TRY(pass_new(&t->valid_pass, t->model, &spec, NULL, err));
	return preview_new(&t->preview, t->model, t->valid, o->seed, err);
}

status trainer_new(trainer **out, model *m, const train_options *o, const dataset *train, const dataset *valid,
                   error *err)
{
	*out = NULL;
	trainer *t = memory_new(1, sizeof *t);
	if (!t) {
		model_free(m);
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	}
	t->model = m;
	t->options = *o;
	t->train = train;
	t->valid = valid;
	t->shuffle = o->seed ? o->seed : UINT64_MAX; /* a dataset takes 0 for "not shuffled" */
	t->progress = (train_progress){.total_steps = o->max_steps,
	                               .train_loss = NAN,
	                               .gradient_norm = NAN,
	                               .learning_rate = train_learning_rate(o, 0),
	                               .valid_loss = NAN,
	                               .bits_per_byte = NAN,
	                               .byte_entropy = dataset_byte_entropy(train)};
	go(t, &batch_stage);
	status s = build(t, err);
	if (s != STATUS_OK) {
		trainer_free(t);
		return s;
	}
	*out = t;
	return STATUS_OK;
}

void trainer_free(trainer *t)
{
	if (!t)
		return;
	pass_free(t->train_pass);
	pass_free(t->valid_pass);
	preview_free(t->preview);
	optimizer_free(t->optimizer);
	model_free(t->model);
	free(t);
}

/* --- saving and resuming ------------------------------------------------------------- */

/* The numbers of train_progress that a run carries on; not finite is null in JSON. */
static const struct {
	const char *name;
	size_t offset;
} carried[] = {
    {"train_loss", offsetof(train_progress, train_loss)},
    {"gradient_norm", offsetof(train_progress, gradient_norm)},
    {"learning_rate", offsetof(train_progress, learning_rate)},
    {"valid_loss", offsetof(train_progress, valid_loss)},
    {"bits_per_byte", offsetof(train_progress, bits_per_byte)},
    {"tokens_per_second", offsetof(train_progress, tokens_per_second)},
};
enum { CARRIED = sizeof carried / sizeof carried[0] };

static json_t *describe_data(const dataset *d, uint64_t hash)
{
	char hex[20];
	snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
	return d ? json_pack("{s:I, s:s}", "tokens", (json_int_t)dataset_tokens(d), "fingerprint", hex) : json_null();
}

/* NULL when out of memory. */
static json_t *write_progress(const train_progress *p)
{
	json_t *json = json_object();
	bool ok = json != NULL;
	for (int i = 0; i < CARRIED && ok; i++) {
		double number;
		memcpy(&number, (const char *)p + carried[i].offset, sizeof number);
		ok =
		    json_object_set_new(json, carried[i].name, isfinite(number) ? json_real(number) : json_null()) == 0;
	}
	if (ok)
		return json;
	json_decref(json);
	return NULL;
}

/* NULL when out of memory. */
static json_t *write_state(const trainer *t)
{
	return json_pack("{s:I, s:I, s:I, s:i, s:o, s:o, s:o, s:o}", "step", (json_int_t)t->progress.step, "tokens",
	                 (json_int_t)t->progress.tokens, "valid_step", (json_int_t)t->valid_step, "bad_steps",
	                 t->bad_steps, "options", train_options_write(&t->options), "training_data",
	                 describe_data(t->train, t->train_hash), "validation_data",
	                 describe_data(t->valid, t->valid_hash), "progress", write_progress(&t->progress));
}

status trainer_save(trainer *t, const tokenizer *tok, const char *folder, const char *id, const json_t *about,
                    error *err)
{
	TRY(trainer_settle(t, err));
	json_t *state = write_state(t);
	if (!state)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	status s = checkpoint_write(folder, t->model, t->optimizer, tok, state, id, about, err);
	json_decref(state);
	return s;
}

/* Compare what decides the future with the trainer's own. */
static status check_state(const json_t *saved, const json_t *own, error *err)
{
	static const char *const data[] = {"training_data", "validation_data"};
	const json_t *options = json_object_get(saved, "options"), *mine = json_object_get(own, "options");
	for (void *i = json_object_iter((json_t *)(uintptr_t)mine); i;
	     i = json_object_iter_next((json_t *)(uintptr_t)mine, i)) {
		const char *key = json_object_iter_key(i);
		if (!json_equal(json_object_get(options, key), json_object_iter_value(i)))
			return error_set(err, STATUS_INVALID, key, "the checkpoint was written with another %s", key);
	}
	for (int i = 0; i < 2; i++)
		if (!json_equal(json_object_get(saved, data[i]), json_object_get(own, data[i])))
			return error_set(err, STATUS_INVALID, data[i], "the checkpoint was written with other data");
	return STATUS_OK;
}

static status read_state(trainer *t, const json_t *state, error *err)
{
	json_int_t step, tokens, valid_step;
	int bad_steps;
	json_t *progress;
	if (json_unpack((json_t *)(uintptr_t)state, "{s:I, s:I, s:I, s:i, s:o}", "step", &step, "tokens", &tokens,
	                "valid_step", &valid_step, "bad_steps", &bad_steps, "progress", &progress) != 0 ||
	    step < 0 || step > t->options.max_steps)
		return error_set(err, STATUS_CORRUPT, NULL, "trainer.json lacks the run's position");
	t->progress.step = step;
	t->progress.tokens = tokens;
	t->valid_step = valid_step;
	t->bad_steps = bad_steps;
	for (int i = 0; i < CARRIED; i++) {
		const json_t *number = json_object_get(progress, carried[i].name);
		double read = json_is_real(number) ? json_real_value(number) : NAN;
		memcpy((char *)&t->progress + carried[i].offset, &read, sizeof read);
	}
	return STATUS_OK;
}

status trainer_resume(trainer *t, const char *folder, error *err)
{
	json_t *saved, *own = write_state(t);
	status s =
	    own ? checkpoint_read_state(folder, &saved, err) : error_set(err, STATUS_NOMEM, NULL, "out of memory");
	if (s == STATUS_OK) {
		s = check_state(saved, own, err);
		if (s == STATUS_OK)
			s = checkpoint_load(folder, saved, t->model, t->optimizer, err);
		if (s == STATUS_OK && t->options.precision == PRECISION_BF16)
			s = model_narrow(t->model, err);
		if (s == STATUS_OK)
			s = read_state(t, saved, err);
		json_decref(saved);
	}
	json_decref(own);
	TRY(s);
	t->failed = (error)ERROR_INIT;
	t->told_finished = false;
	t->issued = t->progress.step;
	t->micro = 0;
	t->n_awaited = 0; /* what was under way is forgotten */
	t->loss_sum = 0;
	t->owed = 0;
	if (evaluation_is_due(t, t->progress.step))
		begin_evaluation(t);
	else
		begin_step(t);
	return STATUS_OK;
}
