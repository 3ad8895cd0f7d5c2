#include "engine/recipe/job_document.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/utf8.h"
#include "engine/train/objective.h"

bool job_document_is(const json_t *document)
{
	const char *object = job_document_text(document, "object");
	return !object || strcmp(object, JOB_DOCUMENT_OBJECT) == 0;
}

const char *job_document_text(const json_t *document, const char *key)
{
	return json_string_value(json_object_get(document, key));
}

void job_document_checkpoint_name(const char *job, int64_t step, char out[STORE_ID_BYTES])
{
	snprintf(out, STORE_ID_BYTES, JOB_CHECKPOINT_PREFIX "%.*s-%lld", JOB_ID_DIGITS, job + strlen(JOB_ID_PREFIX),
	         (long long)step);
}

/* JSON has no word for numbers that are not finite. */
static json_t *number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static double eta(const train_progress *p)
{
	double left = p->result_step ? 0 : (double)(p->total_steps - p->step), done = (double)p->step;
	return p->step > 0 && p->tokens_per_second > 0 ? left * ((double)p->tokens / done) / p->tokens_per_second : NAN;
}

/* A member of the ledger's row alone. */
#define DEVICE_FAILURES "device_failures"
/* The request that created the job, and the resulting values; members of `additive` in the public document. */
#define RECIPE "recipe"
#define RESOLVED "resolved"

/* Add what the objective measures to an object (taken over); NULL when out of memory. */
static json_t *with_metrics(json_t *object, const train_progress *p)
{
	bool ok = object != NULL;
	for (int i = 0; p->objective && p->objective->metrics[i]; i++)
		ok = ok && json_object_set_new(object, p->objective->metrics[i], number(p->metrics[i])) == 0;
	if (ok)
		return object;
	json_decref(object);
	return NULL;
}

/* 0: none */
static json_t *step_number(int64_t step)
{
	return step ? json_integer((json_int_t)step) : json_null();
}

static json_t *progress_object(const train_progress *p)
{
	return with_metrics(
	    json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:n, s:o, s:o, s:n, s:n}",
	              "step", (json_int_t)p->step, "total_steps", (json_int_t)p->total_steps, "tokens_per_second",
	              number(p->tokens_per_second), "train_loss", number(p->train_loss), "valid_loss",
	              number(p->valid_loss), "best_step", step_number(p->best_step), "best_valid_loss",
	              number(p->best_step ? p->best_valid_loss : NAN), "result_step", step_number(p->result_step),
	              "learning_rate", number(p->learning_rate), "gradient_norm", number(p->gradient_norm),
	              "skipped_steps", (json_int_t)p->skipped_steps, "empty_steps", (json_int_t)p->empty_steps,
	              "gradient_noise", number(p->gradient_noise), "suggested_learning_rate", number(p->suggested_rate),
	              "bits_per_byte", "byte_entropy", number(p->byte_entropy), "eta_seconds", number(eta(p)),
	              "paused_reason", "adapter"),
	    p);
}

static json_t *hyperparameters(const job_request *r)
{
	return json_pack("{s:I, s:I, s:f}", "n_epochs", (json_int_t)r->epochs, "batch_size",
	                 (json_int_t)r->options.batch_size, "learning_rate_multiplier",
	                 r->options.learning_rate / r->base_rate);
}

static json_t *method(const job_request *r)
{
	json_t *given = json_pack("{s:o}", "hyperparameters", hyperparameters(r));
	if (r->adapter && (json_object_set_new(given, "kind", json_string(job_request_kind(r))) != 0 ||
	                   (r->lora && json_object_update(given, r->lora) != 0))) {
		json_decref(given);
		return NULL;
	}
	const bool preferences = r->options.objective == &objective_preference;
	if (preferences &&
	    json_object_set_new(json_object_get(given, "hyperparameters"), "beta", json_real(r->options.beta)) != 0) {
		json_decref(given);
		return NULL;
	}
	const char *type = r->adapter ? "adapter" : preferences ? "dpo" : "supervised";
	return json_pack("{s:s, s:o}", "type", type, type, given);
}

json_t *job_document_resolved(const job_request *r, const job_estimate *e)
{
	json_t *options = train_options_write(&r->options);
	json_t *more = json_pack("{s:I, s:I, s:o}", "n_epochs", (json_int_t)r->epochs, "parameters",
	                         (json_int_t)e->parameters, "estimated_seconds", number(e->seconds));
	const bool whole = options && more && json_object_update(options, more) == 0;
	json_decref(more);
	json_object_del(options, "eval_blocks"); /* no option of a request */
	if (whole)
		return options;
	json_decref(options);
	return NULL;
}

json_t *job_document_new(const char *id, json_t *params, const job_request *r, double holdout, const job_estimate *e)
{
	train_progress none = {.total_steps = r->options.max_steps,
	                       .train_loss = NAN,
	                       .valid_loss = NAN,
	                       .learning_rate = NAN,
	                       .gradient_norm = NAN,
	                       .byte_entropy = NAN,
	                       .gradient_noise = NAN,
	                       .suggested_rate = NAN};
	json_t *metadata = json_object_get(params, "metadata");
	return json_pack("{s:s, s:s, s:I, s:n, s:O, s:n, s:s, s:s, s:o, s:o, s:s, s:s?, s:[], s:n, s:I, s:n, s:n, "
	                 "s:O?, s:[], s:o, s:o, s:O, s:o}",
	                 "id", id, "object", JOB_DOCUMENT_OBJECT, "created_at", (json_int_t)clock_unix(), "finished_at",
	                 "model", json_object_get(params, "model"), "fine_tuned_model", "organization_id", "", "status",
	                 "queued", "hyperparameters", hyperparameters(r), "method", method(r), "training_file",
	                 r->training[0].id, "validation_file", r->validation[0] ? r->validation : NULL, "result_files",
	                 "trained_tokens", "seed", (json_int_t)r->options.seed, "error", "estimated_finish", "metadata",
	                 metadata, "integrations", "additive", progress_object(&none), "request",
	                 job_request_write(r, holdout), RECIPE, params, RESOLVED, job_document_resolved(r, e));
}

json_t *job_document_public(const json_t *job)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)job), *additive = json_copy(json_object_get(job, "additive"));
	static const char *const moved[] = {RECIPE, RESOLVED};
	bool whole = copy && additive;
	for (int i = 0; i < 2; i++) {
		json_t *member = json_object_get(job, moved[i]);
		whole = whole && json_object_set(additive, moved[i], member ? member : json_null()) == 0;
		json_object_del(copy, moved[i]);
	}
	if (!whole || json_object_set(copy, "additive", additive) != 0) {
		json_decref(copy);
		copy = NULL;
	}
	json_decref(additive);
	json_object_del(copy, "request");
	json_object_del(copy, "damaged");
	json_object_del(copy, "trace");
	json_object_del(copy, DEVICE_FAILURES);
	return copy;
}

static json_t *event_object(const char *level, const char *message, const char *type, json_t *data)
{
	return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:o}", "id", "", "object", "fine_tuning.job.event",
	                 "created_at", (json_int_t)clock_unix(), "level", level, "message", message, "type", type,
	                 "data", data);
}

json_t *job_document_event(const char *level, const char *format, ...)
{
	char message[512];
	va_list args;
	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	utf8_repair(message);
	return event_object(level, message, "message", json_null());
}

/* A message that is written in parts. */
typedef struct step_message {
	char text[512];
	size_t used;
} step_message;

/* Append "NAME=NUMBER"; "no NAME" where the number is not finite. */
static void add_number(step_message *m, const char *before, const char *name, double x)
{
	char *at = m->text + m->used;
	const size_t room = sizeof m->text - m->used;
	int n = isfinite(x) ? snprintf(at, room, "%s%s=%.4f", before, name, x)
	                    : snprintf(at, room, "%sno %s", before, name);
	m->used += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

/* "Step 5/10: training loss=…", and the results of an evaluation. */
static void describe_step(const train_progress *p, bool evaluated, step_message *m)
{
	const double bits = train_metric(p, "bits_per_byte");
	m->used = (size_t)snprintf(m->text, sizeof m->text, "Step %lld/%lld: ", (long long)p->step,
	                           (long long)p->total_steps);
	add_number(m, "", "training loss", p->train_loss);
	if (!evaluated)
		return;
	add_number(m, ", ", "validation loss", p->valid_loss);
	if (isfinite(bits) && isfinite(p->byte_entropy)) {
		add_number(m, ", ", "validation accuracy", train_metric(p, "accuracy"));
		snprintf(m->text + m->used, sizeof m->text - m->used,
		         ", %.3f bits per byte (by the frequencies of bytes alone: %.3f)", bits, p->byte_entropy);
	} else {
		for (int i = 0; p->objective->metrics[i]; i++)
			add_number(m, ", ", p->objective->metrics[i], p->metrics[i]);
	}
}

json_t *job_document_metrics(const train_progress *p, bool evaluated, json_t *preview)
{
	step_message message;
	describe_step(p, evaluated, &message);
	json_t *data = json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "step", (json_int_t)p->step, "total_steps",
	                         (json_int_t)p->total_steps, "train_loss", number(p->train_loss), "learning_rate",
	                         number(p->learning_rate), "gradient_norm", number(p->gradient_norm),
	                         "tokens_per_second", number(p->tokens_per_second));
	if (evaluated && (json_object_set_new(data, "valid_loss", number(p->valid_loss)) != 0 ||
	                  (isfinite(p->byte_entropy) &&
	                   json_object_set_new(data, "byte_entropy", json_real(p->byte_entropy)) != 0) ||
	                  (preview && json_object_set(data, "preview", preview) != 0))) {
		json_decref(data);
		return NULL;
	}
	if (data && isfinite(p->gradient_noise))
		json_object_set_new(data, "gradient_noise", json_real(p->gradient_noise));
	if (data && p->skipped_steps > 0)
		json_object_set_new(data, "skipped_steps", json_integer((json_int_t)p->skipped_steps));
	if (data && p->empty_steps > 0)
		json_object_set_new(data, "empty_steps", json_integer((json_int_t)p->empty_steps));
	if (evaluated)
		data = with_metrics(data, p);
	return data ? event_object("info", message.text, "metrics", data) : NULL;
}

status job_document_refuse_checkpoint(error *err)
{
	return error_set(err, STATUS_UNAVAILABLE, NULL, "the ledger lacks the rows of evaluations before it");
}

json_t *job_document_checkpoint(const char *job, const char *name, const train_progress *p)
{
	const bool of_tokens =
	    p->objective && p->objective->records != RECORD_LABELLED && p->objective->records != RECORD_PREFERENCE;
	json_t *metrics =
	    with_metrics(json_pack("{s:I, s:o, s:o, s:n, s:o}", "step", (json_int_t)p->step, "train_loss",
	                           number(p->train_loss), "valid_loss", number(p->valid_loss), "bits_per_byte",
	                           "valid_mean_token_accuracy", number(of_tokens ? train_metric(p, "accuracy") : NAN)),
	                 p);
	return json_pack("{s:s, s:s, s:I, s:s, s:I, s:s, s:o}", "id", name, "object", "fine_tuning.job.checkpoint",
	                 "created_at", (json_int_t)clock_unix(), "fine_tuned_model_checkpoint", name, "step_number",
	                 (json_int_t)p->step, "fine_tuning_job_id", job, "metrics", metrics);
}

static const json_t *ours(const json_t *object)
{
	return json_object_get(object, "additive");
}

static const char *step_key(char out[24], int64_t step)
{
	snprintf(out, 24, "%lld", (long long)step);
	return out;
}

const char *job_document_damage(const json_t *job, int64_t step)
{
	char key[24];
	return json_string_value(json_object_get(json_object_get(job, "damaged"), step_key(key, step)));
}

bool job_document_set_damage(json_t *job, int64_t step, const char *cause)
{
	char key[24];
	json_t *all = json_object_get(job, "damaged");
	if (!cause) {
		json_object_del(all, step_key(key, step));
		return true;
	}
	if (all)
		return json_object_set_new(all, step_key(key, step), json_string(cause)) == 0;
	return json_object_set_new(job, "damaged", json_pack("{s:s}", step_key(key, step), cause)) == 0;
}

json_t *job_document_shown(const json_t *checkpoint, const json_t *job)
{
	json_int_t step = json_integer_value(json_object_get(checkpoint, "step_number"));
	json_t *copy = json_copy((json_t *)(uintptr_t)checkpoint);
	if (json_object_set_new(copy, "additive", json_pack("{s:s?}", "damaged", job_document_damage(job, step))) == 0)
		return copy;
	json_decref(copy);
	return NULL;
}

/* --- changed jobs --------------------------------------------------------------------- */

/* A copy with these members (taken over) replaced; any of them NULL is out of memory. */
static json_t *changed(const json_t *job, const char *const *names, json_t **values, size_t n)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)job);
	bool ok = copy != NULL;
	for (size_t i = 0; i < n; i++)
		ok = json_object_set_new(copy, names[i], values[i]) == 0 && ok;
	if (ok)
		return copy;
	json_decref(copy);
	return NULL;
}

/* The progress with another reason (taken over). */
static json_t *with_reason(const json_t *job, json_t *reason)
{
	const json_t *progress = ours(job);
	json_t *copy = progress ? json_copy((json_t *)(uintptr_t)progress) : json_object();
	if (json_object_set_new(copy, "paused_reason", reason) == 0)
		return copy;
	json_decref(copy);
	return NULL;
}

json_t *job_document_in_state(const json_t *job, const char *job_status)
{
	static const char *const names[] = {"status", "additive", "finished_at", "error"};
	json_t *values[] = {json_string(job_status), with_reason(job, json_null()), json_null(), json_null()};
	return changed(job, names, values, 4);
}

json_t *job_document_paused(const json_t *job, const error *reason, int64_t retry_at, int device_failures)
{
	static const char *const names[] = {"status", "additive", "estimated_finish", DEVICE_FAILURES};
	json_t *cause = json_pack("{s:s, s:s, s:o}", "code", status_name(reason->status), "message",
	                          error_message(reason), "retry_at", retry_at ? json_integer(retry_at) : json_null());
	json_t *values[] = {json_string("paused"), with_reason(job, cause), json_null(), json_integer(device_failures)};
	return changed(job, names, values, 4);
}

int job_document_device_failures(const json_t *job)
{
	return (int)json_integer_value(json_object_get(job, DEVICE_FAILURES));
}

void job_document_forget_device_failures(json_t *job)
{
	json_object_del(job, DEVICE_FAILURES);
}

static json_t *error_object(const error *err)
{
	status s = err->status == STATUS_OK ? STATUS_INTERNAL : err->status;
	return json_pack("{s:s, s:s, s:s?}", "code", status_name(s), "message", error_message(err), "param",
	                 err->param[0] ? err->param : NULL);
}

json_t *job_document_ended(const json_t *job, const char *job_status, const error *cause)
{
	static const char *const names[] = {"status", "additive", "finished_at", "estimated_finish", "error"};
	json_t *values[] = {json_string(job_status), with_reason(job, json_null()), json_integer(clock_unix()),
	                    json_null(), cause ? error_object(cause) : json_null()};
	return changed(job, names, values, 5);
}

bool job_document_is_range_test(const json_t *job)
{
	const char *schedule = job_document_text(ours(json_object_get(job, RECIPE)), "schedule");
	return schedule && strcmp(schedule, "range_test") == 0;
}

bool job_document_is_adapter(const json_t *job)
{
	return json_is_string(json_object_get(json_object_get(job, "request"), "adapter"));
}

json_t *job_document_succeeded(const json_t *job, const char *name, const train_progress *p)
{
	const bool adapter = name && job_document_is_adapter(job);
	static const char *const names[] = {"additive", "fine_tuned_model", "trained_tokens"};
	json_t *ended = job_document_ended(job, "succeeded", NULL);
	json_t *progress = progress_object(p);
	if (adapter && json_object_set_new(progress, "adapter", json_string(name)) != 0) {
		json_decref(progress);
		progress = NULL;
	}
	json_t *values[] = {progress, name && !adapter ? json_string(name) : json_null(), json_integer(p->tokens)};
	json_t *done = changed(ended, names, values, 3);
	json_decref(ended);
	return done;
}

bool job_document_progress(json_t *job, const train_progress *p)
{
	double left = eta(p);
	json_t *finish = isfinite(left) ? json_integer(clock_unix() + (json_int_t)left) : json_null();
	json_t *progress = progress_object(p);
	if (!finish || !progress) {
		json_decref(finish);
		json_decref(progress);
		return false;
	}
	return json_object_set_new(job, "additive", progress) == 0 &&
	       json_object_set_new(job, "estimated_finish", finish) == 0;
}
