/* training.c - the executor's side of a run. Each report is allocated, except PROGRESS, of which at most one is in
 * transit. A slow loop therefore sees fewer of them, not a growing queue.
 *
 * A thread of the pool writes checkpoints and the finished model, which takes seconds for a large one:
 *
 *   executor          loop                  pool
 *   begin_write ────▶ queue_write ────────▶ pool_write
 *   run_written ◀──── write_done  ◀────────
 *
 * From begin_write to run_written that thread has the trainer and the training backend, and the run has no turns. The
 * executor serves meanwhile. On the CPU both use one backend, of which the thread only downloads. */
#include "engine/daemon/jobs/training.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/catalog/adapters.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/device.h"
#include "engine/recipe/job_check.h"
#include "engine/model/lora.h"
#include "engine/recipe/job_model.h"
#include "engine/recipe/job_preview.h"
#include "engine/recipe/job_document.h"
#include "engine/recipe/model_card.h"

enum { TRAINING_PROGRESS_NS = 100000000, SECOND_NS = 1000000000 };

typedef enum write_state { WRITE_NONE, WRITE_QUEUED, WRITE_RUNS, WRITE_DONE } write_state;

typedef struct message {
	task task;
	training *training;
	training_report report;
} message;

struct training {
	device_background background; /* its turns on the executor */
	executor *executor;
	training_plan *plan;
	task start;
	/* executor thread, once started */
	trainer *trainer;
	model *base; /* the base of an adapter; otherwise NULL */
	uint64_t saved_ns, reported_ns;
	uint64_t stepped_ns; /* end of the last step, or begin of the turn in which it ended; before: of the run */
	int64_t saved_step, counted_step, counted_tokens;
	bool unsaved; /* the last save failed */
	bool writes;  /* the trainer is with the pool's thread */
	bool lost;    /* that thread has lost the device */
	bool saved_for_stop;
	bool damaged; /* the checkpoint in plan.resume cannot be read */
	bool ended;
	bool undelivered; /* the loop has not yet received the last evaluation */
	bool stop_waits;  /* until it has, and while a write is in progress, a stop waits, */
	unsigned held;    /* and so do these events of the trainer */
	task stop;
	bool save_first; /* argument of `stop` */
	message progress, end;
	_Atomic bool progress_under_way; /* set by the executor when it sends the report, cleared by the loop */
	_Atomic bool rows_missing;       /* the ledger lacks rows of evaluations; set by the loop */
	/* A write. It belongs to the thread that has the trainer. */
	task write, back; /* to the loop, and from it */
	uv_work_t work;
	bool concludes; /* it writes the finished model, not a checkpoint */
	status written; /* result */
	error write_error;
	message *saved;        /* report of a checkpoint */
	pthread_mutex_t mutex; /* guards write_state */
	pthread_cond_t changed;
	write_state write_state;
	/* loop thread */
	uv_loop_t *loop;
	bool stopping;
	int under_way; /* tasks that refer to the run (start, stop, delivered, write, end); ENDED is reported when none
	                * is left */
	task delivered;
};

/* --- reporting to the loop ------------------------------------------------------ */

static void arrived(training *t)
{
	if (--t->under_way > 0)
		return;
	training_report report = t->end.report; /* the report may free t */
	t->plan->report(t->plan->context, &report);
}

static void free_message(message *m)
{
	json_decref(m->report.checkpoint);
	json_decref(m->report.preview);
	free(m);
}

static void deliver_allocated(task *t)
{
	message *m = (message *)t;
	const training_plan *p = m->training->plan;
	p->report(p->context, &m->report);
	free_message(m);
}

static void run_delivered(task *x, device *d);

static void delivered_done(task *x)
{
	arrived(TASK_OWNER(x, training, delivered));
}

static void deliver_evaluation(task *t)
{
	message *m = (message *)t;
	training *run = m->training;
	run->rows_missing = !run->plan->report(run->plan->context, &m->report);
	free_message(m);
	run->under_way++;
	run->delivered = (task){.run = run_delivered, .done = delivered_done};
	executor_control(run->executor, &run->delivered);
}

static void deliver_progress(task *t)
{
	message *m = (message *)t;
	training *run = m->training;
	training_report report = m->report;
	run->progress_under_way = false;
	run->plan->report(run->plan->context, &report);
}

static void deliver_end(task *t)
{
	arrived(((message *)t)->training);
}

static void training_fill(training *t, message *m, training_kind kind)
{
	m->training = t;
	m->report = (training_report){.kind = kind};
	if (t->trainer)
		m->report.progress = *trainer_progress(t->trainer);
}

static void post(training *t, message *m)
{
	m->task.done = m->report.kind == TRAINING_EVALUATED ? deliver_evaluation : deliver_allocated;
	executor_post(t->executor, &m->task);
}

static status report_event(training *t, training_kind kind)
{
	message *m = memory_new(1, sizeof *m);
	if (!m)
		return STATUS_NOMEM;
	training_fill(t, m, kind);
	if (kind == TRAINING_EVALUATED) {
		m->report.took_ns = clock_ns() - t->stepped_ns;
		m->report.preview = job_preview(t->trainer, t->plan->tokenizer);
	}
	post(t, m);
	return STATUS_OK;
}

static void report_progress(training *t)
{
	uint64_t now = clock_ns();
	if (t->progress_under_way || now - t->reported_ns < TRAINING_PROGRESS_NS)
		return;
	t->reported_ns = now;
	t->progress_under_way = true;
	training_fill(t, &t->progress, TRAINING_PROGRESS);
	t->progress.task.done = deliver_progress;
	executor_post(t->executor, &t->progress.task);
}

/* End the run: detach from the device and report to the loop, which may then free the run. */
static void training_end(training *t, device *d, bool finished, const error *err)
{
	if (t->ended)
		return;
	t->ended = true;
	device_leave_background(d, &t->background);
	training_fill(t, &t->end, TRAINING_ENDED);
	t->end.report.finished = finished;
	t->end.report.damaged = t->damaged;
	if (err)
		t->end.report.error = *err;
	trainer_free(t->trainer);
	model_free(t->base);
	t->trainer = NULL;
	t->base = NULL;
	t->end.task.done = deliver_end;
	executor_post(t->executor, &t->end.task);
}

/* --- running -------------------------------------------------------------------- */

static status open_model(training *t, device *d, model **out, error *err)
{
	const training_plan *p = t->plan;
	backend *b = device_training_backend(d);
	*out = NULL;
	if (!b) /* the device is being restarted, which is no failure of the run; it waits */
		return error_set(err, STATUS_UNAVAILABLE, NULL, "the compute device cannot be used for now");
	if (p->adapter) {
		TRY(model_open(&t->base, p->base, DTYPE_F32, b, err));
		const lora_options o = lora_options_of(p->lora);
		return p->lora ? model_new_lora(out, t->base, &o, p->options.seed, err)
		               : model_new_adapter(out, t->base, err);
	}
	const job_model from = {.folder = p->resume[0] ? p->resume : p->base,
	                        .architecture = p->architecture,
	                        .config = p->config,
	                        .seed = p->options.seed,
	                        .counts = p->counts};
	return job_model_open(out, &from, b, err);
}

/* True if the checkpoint is intact but belongs to other data: the files have changed since. */
static bool has_other_data(const error *err)
{
	return err->status == STATUS_INVALID &&
	       (strcmp(err->param, "training_data") == 0 || strcmp(err->param, "validation_data") == 0);
}

/* Open the trainer. If stored data cannot be read, set t->damaged if another checkpoint may be used; otherwise
 * STATUS_STORAGE. */
static status open_trainer(training *t, device *d, error *err)
{
	const training_plan *p = t->plan;
	model *m;
	status s = open_model(t, d, &m, err);
	t->damaged = p->resume[0] && !p->adapter && job_check_is_damage(s);
	if (s == STATUS_CORRUPT && !t->damaged && p->base[0])
		s = job_check_blame(err, s, "model", strrchr(p->base, '/') + 1);
	TRY(s);
	TRY(trainer_new(&t->trainer, m, &p->options, p->train, p->valid, err));
	if (!p->resume[0])
		return p->base[0] && !p->adapter ? trainer_continue(t->trainer, p->base, err) : STATUS_OK;
	s = trainer_resume(t->trainer, p->resume, err);
	if (has_other_data(err)) {
		err->status = STATUS_STORAGE;
		return STATUS_STORAGE;
	}
	t->damaged = job_check_is_damage(s);
	return s;
}

/* --- writing, by a thread of the pool -------------------------------------------- */

/* Write the checkpoint and its manifest. *row: its row for the ledger. */
static status write_checkpoint(training *t, json_t **row, error *err)
{
	char folder[PATH_MAX], id[STORE_ID_BYTES];
	const train_progress *now = trainer_progress(t->trainer);
	store_checkpoint_folder(t->plan->store, t->plan->job, now->step, folder);
	job_document_checkpoint_name(t->plan->job, now->step, id);
	*row = job_document_checkpoint(t->plan->job, id, now);
	status s = *row ? trainer_save(t->trainer, t->plan->tokenizer, folder, id, *row, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		return s;
	json_decref(*row);
	*row = NULL;
	return error_settle(err, s);
}

/* Write the trained model or adapter to its folder. */
static status write_result(training *t, error *err)
{
	const training_plan *p = t->plan;
	TRY(file_make_folders(p->result, err));
	if (p->adapter)
		return adapters_write(trainer_model(t->trainer),
		                      &(adapter_origin){p->name, p->base_id, p->job, p->project}, p->result, err);
	TRY(trainer_save_model(t->trainer, p->tokenizer, p->result, err));
	TRY(model_card_finish(p->card, trainer_progress(t->trainer), p->result, err));
	return catalog_seal(p->name, p->result, p->project, err);
}

/* True if the state was `from` and is now `to`. */
static bool change_write(training *t, write_state from, write_state to)
{
	pthread_mutex_lock(&t->mutex);
	const bool is = t->write_state == from;
	t->write_state = is ? to : t->write_state;
	pthread_cond_signal(&t->changed);
	pthread_mutex_unlock(&t->mutex);
	return is;
}

static void pool_write(uv_work_t *work)
{
	training *t = work->data;
	reserve_forget();
	if (!change_write(t, WRITE_QUEUED, WRITE_RUNS))
		return; /* the device was lost */
	t->written = t->concludes ? write_result(t, &t->write_error)
	                          : write_checkpoint(t, &t->saved->report.checkpoint, &t->write_error);
	error_settle(&t->write_error, t->written);
	change_write(t, WRITE_RUNS, WRITE_DONE);
}

static void run_written(task *x, device *d);

static void written_done(task *x)
{
	arrived(TASK_OWNER(x, training, back));
}

static void write_done(uv_work_t *work, int cancelled)
{
	training *t = work->data;
	(void)cancelled; /* cannot be cancelled */
	t->back = (task){.run = run_written, .done = written_done};
	executor_control(t->executor, &t->back);
}

static void queue_write(task *x)
{
	training *t = TASK_OWNER(x, training, write);
	t->under_way++;
	t->work.data = t;
	if (uv_queue_work(t->loop, &t->work, pool_write, write_done) != 0) {
		t->written = error_set(&t->write_error, STATUS_NOMEM, NULL, "no thread can write");
		change_write(t, WRITE_QUEUED, WRITE_DONE);
		write_done(&t->work, 0);
	}
}

static void begin_write(training *t, bool concludes)
{
	t->writes = true;
	t->concludes = concludes;
	t->write_error = (error)ERROR_INIT;
	change_write(t, WRITE_NONE, WRITE_QUEUED);
	t->write = (task){.done = queue_write};
	executor_post(t->executor, &t->write);
}

/* Report a checkpoint that has been written, or why there is none. */
static void report_saved(training *t, status s, error *err)
{
	message *m = t->saved;
	json_t *row = m->report.checkpoint;
	t->saved = NULL;
	if (s == STATUS_OK) {
		t->saved_step = trainer_progress(t->trainer)->step;
		t->unsaved = false;
	}
	training_fill(t, m, TRAINING_SAVED);
	error_settle(err, s);
	m->report.took_ns = clock_ns() - t->saved_ns;
	m->report.error = *err;
	m->report.checkpoint = row;
	post(t, m);
}

/* Take the trainer back, whose write is complete. */
static void end_write(training *t, device *d)
{
	t->writes = false;
	change_write(t, WRITE_DONE, WRITE_NONE);
	if (t->concludes)
		training_end(t, d, t->written == STATUS_OK, &t->write_error);
	else
		report_saved(t, t->written, &t->write_error);
}

/* Take the trainer back from a thread that has lost its device, or is going to. */
static void recover(training *t, device *d)
{
	if (!t->writes)
		return;
	if (change_write(t, WRITE_QUEUED, WRITE_DONE))
		t->written = error_set(&t->write_error, STATUS_DEVICE, NULL, "the compute device failed");
	pthread_mutex_lock(&t->mutex);
	while (t->write_state == WRITE_RUNS)
		pthread_cond_wait(&t->changed, &t->mutex);
	pthread_mutex_unlock(&t->mutex);
	end_write(t, d);
}

/* --- saving ---------------------------------------------------------------------- */

/* Begin to save a checkpoint, unless that of this step is saved. A failure is reported, and training continues without
 * it. */
static status save(training *t)
{
	error err = ERROR_INIT;
	t->saved = memory_new(1, sizeof *t->saved);
	status s = t->saved ? trainer_settle(t->trainer, &err) : STATUS_NOMEM;
	t->saved_ns = clock_ns();
	t->unsaved = s != STATUS_OK || trainer_progress(t->trainer)->step != t->saved_step;
	if (!t->saved || !t->unsaved) {
		free(t->saved);
		t->saved = NULL;
		return s;
	}
	if (s == STATUS_OK && t->rows_missing)
		s = job_document_refuse_checkpoint(&err);
	if (s == STATUS_OK)
		begin_write(t, false);
	else
		report_saved(t, s, &err);
	return s;
}

/* True if a save is due by time although the trainer requests none. */
static bool save_is_due(const training *t)
{
	uint64_t wait = t->plan->save_ns, again = (uint64_t)TRAINING_RESAVE_SECONDS * SECOND_NS;
	if (t->unsaved && (wait == 0 || wait > again))
		wait = again;
	return wait && clock_ns() - t->saved_ns >= wait;
}

static void training_finish(training *t, device *d)
{
	error err = ERROR_INIT;
	status s = trainer_conclude(t->trainer, &err);
	if (s == STATUS_OK) {
		begin_write(t, true);
		return;
	}
	error_settle(&err, s);
	training_end(t, d, false, &err);
}

static void count(training *t, device *d)
{
	const train_progress *now = trainer_progress(t->trainer);
	device_count_training(d, now->step - t->counted_step, now->tokens - t->counted_tokens, now->tokens_per_second);
	t->counted_step = now->step;
	t->counted_tokens = now->tokens;
}

/* Report the results of completed events. */
static status report_events(training *t, device *d, unsigned events)
{
	if (events & TRAIN_STEP)
		count(t, d);
	if (events & TRAIN_EVAL) {
		t->undelivered = true;
		return report_event(t, TRAINING_EVALUATED);
	}
	if (events & TRAIN_STEP)
		report_progress(t);
	return STATUS_OK;
}

static status training_attend(training *t, device *d, unsigned events)
{
	bool due = events & TRAIN_CHECKPOINT_DUE || (events & TRAIN_STEP && save_is_due(t));
	if (due && save(t) == STATUS_DEVICE && backend_is_lost(device_training_backend(d)))
		return STATUS_DEVICE;
	if (!(events & TRAIN_FINISHED))
		return STATUS_OK;
	if (t->writes) /* the last checkpoint */
		t->held = TRAIN_FINISHED;
	else
		training_finish(t, d);
	return STATUS_OK;
}

/* Train for about budget_ns. STATUS_DEVICE: the device failed a call. */
static status advance(device_background *b, device *d, uint64_t budget_ns)
{
	training *t = (training *)b;
	error err = ERROR_INIT;
	unsigned events = t->held;
	t->held = 0;
	if (t->lost)
		return STATUS_DEVICE;
	if (events)
		return training_attend(t, d, events);
	trainer_may_wait(t->trainer, !scheduler_runnable(device_scheduler(d)));
	const uint64_t turn_ns = clock_ns();
	status s = trainer_advance(t->trainer, budget_ns, &events, &err);
	if (events & TRAIN_STEP)
		t->stepped_ns = events & TRAIN_EVAL ? turn_ns : clock_ns();
	if (s == STATUS_OK)
		s = report_events(t, d, events);
	if (s != STATUS_OK) {
		error_settle(&err, s);
		training_end(t, d, false, &err);
		return s;
	}
	if (!t->undelivered)
		return training_attend(t, d, events);
	t->held = events;
	return STATUS_OK;
}

/* True while the run waits for the loop or the pool, after which there is a task. */
static bool waits(const device_background *b)
{
	const training *t = (const training *)b;
	return t->undelivered || (t->writes && !t->lost);
}

static void lose(device_background *b, device *d)
{
	error err = ERROR_INIT;
	error_set(&err, STATUS_DEVICE, NULL, "the compute device failed");
	recover((training *)b, d);
	training_end((training *)b, d, false, &err);
}

static void run_start(task *x, device *d)
{
	training *t = TASK_OWNER(x, training, start);
	error err = ERROR_INIT;
	status s = open_trainer(t, d, &err);
	if (s == STATUS_OK) {
		const train_progress *now = trainer_progress(t->trainer);
		t->saved_step = t->counted_step = now->step;
		t->counted_tokens = now->tokens;
		t->saved_ns = t->stepped_ns = clock_ns();
		s = report_event(t, TRAINING_STARTED);
	}
	if (s == STATUS_OK) {
		t->background = (device_background){waits, advance, lose};
		device_enter_background(d, &t->background);
		return;
	}
	error_settle(&err, s);
	training_end(t, d, false, &err);
}

/* --- the loop's side ------------------------------------------------------------- */

static void start_done(task *x)
{
	arrived(TASK_OWNER(x, training, start));
}

static void run_stop(task *x, device *d)
{
	training *t = TASK_OWNER(x, training, stop);
	t->stop_waits = t->writes || (t->undelivered && t->save_first);
	if (t->ended || t->stop_waits)
		return;
	if (t->save_first && !t->saved_for_stop) {
		t->saved_for_stop = true;
		save(t); /* a failure has been reported; the previous checkpoint remains valid */
		t->stop_waits = t->writes;
	}
	if (!t->stop_waits)
		training_end(t, d, false, NULL);
}

static void run_written(task *x, device *d)
{
	training *t = TASK_OWNER(x, training, back);
	if (!t->writes)
		return; /* lose() has taken the trainer back */
	end_write(t, d);
	t->lost = t->written == STATUS_DEVICE && !t->ended && backend_is_lost(device_training_backend(d));
	if (t->stop_waits)
		run_stop(&t->stop, d);
}

static void run_delivered(task *x, device *d)
{
	training *t = TASK_OWNER(x, training, delivered);
	t->undelivered = false;
	if (t->stop_waits)
		run_stop(&t->stop, d);
}

static void stop_done(task *x)
{
	arrived(TASK_OWNER(x, training, stop));
}

void training_stop(training *t, bool save_first, bool rows_written)
{
	if (t->stopping)
		return;
	t->stopping = true;
	if (rows_written)
		t->rows_missing = false;
	t->under_way++;
	t->save_first = save_first;
	t->stop = (task){.run = run_stop, .done = stop_done};
	executor_control(t->executor, &t->stop);
}

status training_begin(training **out, uv_loop_t *loop, executor *x, training_plan *p)
{
	*out = NULL;
	training *t = memory_new(1, sizeof *t);
	if (!t)
		return STATUS_NOMEM;
	pthread_mutex_init(&t->mutex, NULL);
	pthread_cond_init(&t->changed, NULL);
	t->loop = loop;
	t->executor = x;
	t->plan = p;
	t->under_way = 2; /* start and end */
	t->start = (task){.run = run_start, .done = start_done};
	executor_control(x, &t->start);
	*out = t;
	return STATUS_OK;
}

void training_free(training *t)
{
	if (!t)
		return;
	pthread_mutex_destroy(&t->mutex);
	pthread_cond_destroy(&t->changed);
	free(t);
}

void training_plan_fini(training_plan *p)
{
	json_decref(p->config);
	json_decref(p->lora);
	json_decref(p->card);
	tokenizer_free(p->tokenizer);
	dataset_free(p->train);
	dataset_free(p->valid);
	free(p->counts);
	*p = (training_plan){0};
}
