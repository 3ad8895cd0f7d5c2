/* trainer_state.c - the state object of a checkpoint: what a run continues from besides weights and moments. */
#include "engine/base/json_read.h"
#include "engine/train/trainer_private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static json_t *describe_data(const dataset *d, uint64_t hash)
{
	char hex[20];
	snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
	return d ? json_pack("{s:I, s:s}", "tokens", (json_int_t)dataset_tokens(d), "fingerprint", hex) : json_null();
}

/* The model that an adapter belongs to, by the hash of its weights. */
static json_t *describe_base(const model *m)
{
	char hex[20];
	const model *base = model_base(m);
	snprintf(hex, sizeof hex, "%016llx", base ? (unsigned long long)model_digest(base) : 0);
	return base ? json_string(hex) : json_null();
}

json_t *trainer_state_write(const trainer *t)
{
	const range_test *r = &t->range;
	return json_pack(
	    "{s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:[f, f], s:[f, f, f, f, f, f, f], s:o, s:o, s:o, s:o, s:o}", "step",
	    (json_int_t)t->progress.step, "tokens", (json_int_t)t->progress.tokens, "valid_step",
	    (json_int_t)t->valid_step, "best_step", (json_int_t)t->progress.best_step, "stale_evaluations",
	    (json_int_t)t->stale, "bad_steps", t->bad_steps, "skipped_steps", (json_int_t)t->progress.skipped_steps,
	    "noise", t->noise[0], t->noise[1], "range_test", r->mean, r->weight, r->first, r->lowest, r->fall, r->rate,
	    r->ended, "options", train_options_write(&t->options), "training_data",
	    describe_data(t->train, t->train_hash), "validation_data", describe_data(t->valid, t->valid_hash), "base",
	    describe_base(t->model), "progress", train_progress_write(&t->progress));
}

/* Return saved options completed with those added since. New reference; NULL: out of memory. */
static json_t *trainer_state_complete(const json_t *options)
{
	train_options o;
	train_options_default(&o);
	return train_options_read(&o, options, NULL, NULL) == STATUS_OK ? train_options_write(&o)
	                                                                : json_incref((json_t *)(uintptr_t)options);
}

static status check_options(const json_t *saved, const json_t *own, error *err)
{
	for (void *i = json_object_iter((json_t *)(uintptr_t)own); i;
	     i = json_object_iter_next((json_t *)(uintptr_t)own, i)) {
		const char *key = json_object_iter_key(i);
		if (!json_equal(json_object_get(saved, key), json_object_iter_value(i)))
			return error_set(err, STATUS_INVALID, key, "the checkpoint was written with another %s", key);
	}
	return STATUS_OK;
}

status trainer_state_check(const json_t *saved, const json_t *own, error *err)
{
	static const char *const data[] = {"training_data", "validation_data"};
	const json_t *written = json_object_get(saved, "options");
	json_t *options = json_is_object(written) ? trainer_state_complete(written) : json_object();
	status s = options ? check_options(options, json_object_get(own, "options"), err)
	                   : error_set(err, STATUS_NOMEM, NULL, "out of memory");
	json_decref(options);
	TRY(s);
	for (int i = 0; i < 2; i++)
		if (!json_equal(json_object_get(saved, data[i]), json_object_get(own, data[i])))
			return error_set(err, STATUS_INVALID, data[i], "the checkpoint was written with other data");
	const char *before = json_string_value(json_object_get(saved, "base")); /* absent in the first format */
	const char *now = json_string_value(json_object_get(own, "base"));
	if (before && now ? strcmp(before, now) != 0 : before != now)
		return error_set(err, STATUS_INVALID, "base", "the checkpoint belongs to an adapter of another model");
	return STATUS_OK;
}

status trainer_state_read(trainer *t, const json_t *state, error *err)
{
	json_int_t step, tokens, valid_step;
	json_int_t best_step = 0, stale = 0, skipped = 0; /* added after the first format, as were noise and range */
	double noise[2] = {0};
	range_test r = {0};
	int bad_steps;
	json_t *progress;
	status s = json_read_members(
	    state, "{s:I, s:I, s:I, s?I, s?I, s?I, s?[F, F], s?[F, F, F, F, F, F, F], s:i, s:o}", "step", &step,
	    "tokens", &tokens, "valid_step", &valid_step, "best_step", &best_step, "stale_evaluations", &stale,
	    "skipped_steps", &skipped, "noise", &noise[0], &noise[1], "range_test", &r.mean, &r.weight, &r.first,
	    &r.lowest, &r.fall, &r.rate, &r.ended, "bad_steps", &bad_steps, "progress", &progress);
	if (s == STATUS_NOMEM)
		return error_settle(err, s);
	if (s != STATUS_OK || step < 0 || step > t->options.max_steps)
		return error_set(err, STATUS_CORRUPT, NULL, "trainer.json lacks the run's position");
	const double entropy = t->progress.byte_entropy;
	train_progress_read(&t->progress, progress);
	t->progress.total_steps = t->options.max_steps;
	t->progress.byte_entropy = entropy;
	t->progress.step = step;
	t->progress.tokens = tokens;
	t->valid_step = valid_step;
	t->progress.best_step = best_step;
	t->stale = stale;
	t->progress.skipped_steps = skipped;
	memcpy(t->noise, noise, sizeof noise);
	t->range = r;
	t->bad_steps = bad_steps;
	return STATUS_OK;
}
