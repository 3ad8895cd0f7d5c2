#include "engine/daemon/job_document.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"

/* JSON has no word for numbers that are not finite. */
static json_t *number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static double eta(const train_progress *p)
{
	double left = (double)(p->total_steps - p->step), done = (double)p->step;
	return p->step > 0 && p->tokens_per_second > 0 ? left * ((double)p->tokens / done) / p->tokens_per_second : NAN;
}

static json_t *progress_object(const train_progress *p)
{
	return json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "step", (json_int_t)p->step, "total_steps",
	                 (json_int_t)p->total_steps, "tokens_per_second", number(p->tokens_per_second), "train_loss",
	                 number(p->train_loss), "valid_loss", number(p->valid_loss), "bits_per_byte",
	                 number(p->bits_per_byte), "eta_seconds", number(eta(p)));
}

static json_t *hyperparameters(const job_request *r)
{
	train_options reference;
	train_options_default(&reference);
	return json_pack("{s:I, s:I, s:f}", "n_epochs", (json_int_t)r->epochs, "batch_size",
	                 (json_int_t)r->options.batch_size, "learning_rate_multiplier",
	                 r->options.learning_rate / reference.learning_rate);
}

json_t *job_document_new(const char *id, const json_t *params, const job_request *r, double holdout)
{
	train_progress none = {
	    .total_steps = r->options.max_steps, .train_loss = NAN, .valid_loss = NAN, .bits_per_byte = NAN};
	json_t *metadata = json_object_get(params, "metadata");
	return json_pack(
	    "{s:s, s:s, s:I, s:n, s:O, s:n, s:s, s:s, s:o, s:{s:s, s:{s:o}}, s:s, s:s?, s:[], s:n, s:I, s:n, s:n, "
	    "s:O?, s:[], s:o, s:o}",
	    "id", id, "object", "fine_tuning.job", "created_at", (json_int_t)clock_unix(), "finished_at", "model",
	    json_object_get(params, "model"), "fine_tuned_model", "organization_id", "", "status", "queued",
	    "hyperparameters", hyperparameters(r), "method", "type", "supervised", "supervised", "hyperparameters",
	    hyperparameters(r), "training_file", r->training, "validation_file",
	    r->validation[0] ? r->validation : NULL, "result_files", "trained_tokens", "seed",
	    (json_int_t)r->options.seed, "error", "estimated_finish", "metadata", metadata, "integrations", "additive",
	    progress_object(&none), "request", job_request_write(r, holdout));
}

json_t *job_document_public(const json_t *job)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)job);
	json_object_del(copy, "request");
	return copy;
}

static json_t *event_object(const char *level, const char *message, const char *type, json_t *data)
{
	return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:o}", "id", "", "object", "fine_tuning.job.event",
	                 "created_at", (json_int_t)clock_unix(), "level", level, "message", message, "type", type,
	                 "data", data);
}

json_t *job_document_event(const char *level, const char *message)
{
	return event_object(level, message, "message", json_null());
}

json_t *job_document_metrics(const train_progress *p, bool evaluated)
{
	char message[160];
	int used = snprintf(message, sizeof message, "Step %lld/%lld: training loss=%.4f", (long long)p->step,
	                    (long long)p->total_steps, p->train_loss);
	if (evaluated)
		snprintf(message + used, sizeof message - (size_t)used, ", validation loss=%.4f", p->valid_loss);
	json_t *data = json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "step", (json_int_t)p->step, "total_steps",
	                         (json_int_t)p->total_steps, "train_loss", number(p->train_loss), "learning_rate",
	                         number(p->learning_rate), "gradient_norm", number(p->gradient_norm),
	                         "tokens_per_second", number(p->tokens_per_second));
	if (data && evaluated) {
		json_object_set_new(data, "valid_loss", number(p->valid_loss));
		json_object_set_new(data, "bits_per_byte", number(p->bits_per_byte));
	}
	return event_object("info", message, "metrics", data);
}

json_t *job_document_checkpoint(const char *job, const char *name, const train_progress *p)
{
	return json_pack("{s:s, s:s, s:I, s:s, s:I, s:s, s:{s:I, s:o, s:o, s:o}}", "id", name, "object",
	                 "fine_tuning.job.checkpoint", "created_at", (json_int_t)clock_unix(),
	                 "fine_tuned_model_checkpoint", name, "step_number", (json_int_t)p->step, "fine_tuning_job_id",
	                 job, "metrics", "step", (json_int_t)p->step, "train_loss", number(p->train_loss), "valid_loss",
	                 number(p->valid_loss), "bits_per_byte", number(p->bits_per_byte));
}

bool job_document_progress(json_t *job, const train_progress *p)
{
	double left = eta(p);
	json_t *finish = isfinite(left) ? json_integer(clock_unix() + (json_int_t)left) : json_null();
	return json_object_set_new(job, "additive", progress_object(p)) == 0 &&
	       json_object_set_new(job, "estimated_finish", finish) == 0;
}

bool job_document_end(json_t *job, const char *job_status, const error *err)
{
	json_t *why = json_null();
	if (err)
		why = json_pack("{s:s, s:s, s:s?}", "code", status_name(err->status), "message", error_message(err),
		                "param", err->param[0] ? err->param : NULL);
	return json_object_set_new(job, "status", json_string(job_status)) == 0 &&
	       json_object_set_new(job, "finished_at", json_integer(clock_unix())) == 0 &&
	       json_object_set_new(job, "estimated_finish", json_null()) == 0 &&
	       json_object_set_new(job, "error", why) == 0;
}
