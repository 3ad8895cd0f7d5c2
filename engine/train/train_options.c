/* One table of the numeric options serves reading, writing and checking, so a range
 * stands in one place. Closed ranges only: a bound that must be excluded is replaced by
 * the nearest number that makes sense (no one trains at a rate of 1e-13). */
#include "engine/train/trainer.h"

#include <math.h>
#include <string.h>

typedef struct number {
	const char *name;
	size_t offset;
	bool integer;
	double min, max;
} number;

#define INTEGER(name, field, min, max)                                                                                 \
	{                                                                                                              \
		name, offsetof(train_options, field), true, min, max                                                   \
	}
#define REAL(name, field, min, max)                                                                                    \
	{                                                                                                              \
		name, offsetof(train_options, field), false, min, max                                                  \
	}
static const number numbers[] = {
    INTEGER("sequence_length", sequence_length, 2, 1 << 20),
    INTEGER("batch_size", batch_size, 1, 1 << 16),
    INTEGER("gradient_accumulation", accumulation, 1, 1 << 16),
    INTEGER("max_steps", max_steps, 1, 1e9),
    INTEGER("warmup_steps", warmup_steps, 0, 1e9),
    REAL("learning_rate", learning_rate, 1e-12, 1),
    REAL("eps", eps, 1e-16, 1),
    REAL("weight_decay", weight_decay, 0, 1),
    REAL("clip", clip, 0, 1e9),
    REAL("label_smoothing", smoothing, 0, 0.999),
    INTEGER("eval_every", eval_every, 0, 1e9),
    INTEGER("checkpoint_every", checkpoint_every, 0, 1e9),
    INTEGER("eval_blocks", eval_blocks, 0, 1e9),
};
enum { NUMBERS = sizeof numbers / sizeof numbers[0] };
static const double beta_max = 0.999999;

static const char *const schedules[] = {
    [SCHEDULE_LINEAR] = "linear", [SCHEDULE_COSINE] = "cosine", [SCHEDULE_CONSTANT] = "constant"};

static const char *const precisions[] = {[PRECISION_FP32] = "fp32", [PRECISION_BF16] = "bf16"};

static double get(const train_options *o, const number *n)
{
	const char *field = (const char *)o + n->offset;
	int64_t i;
	double d;
	if (n->integer)
		return memcpy(&i, field, sizeof i), (double)i;
	return memcpy(&d, field, sizeof d), d;
}

static void set(train_options *o, const number *n, double d)
{
	char *field = (char *)o + n->offset;
	int64_t i = (int64_t)d;
	if (n->integer)
		memcpy(field, &i, sizeof i);
	else
		memcpy(field, &d, sizeof d);
}

void train_options_default(train_options *o)
{
	*o = (train_options){
	    .sequence_length = 512,
	    .batch_size = 8,
	    .accumulation = 1,
	    .max_steps = 1000,
	    .learning_rate = 5e-4,
	    .schedule = SCHEDULE_LINEAR,
	    .beta1 = 0.9,
	    .beta2 = 0.999,
	    .eps = 1e-8,
	    .weight_decay = 0.01,
	    .clip = 1,
	    .seed = 1,
	};
}

static status check_number(const number *n, double x, error *err)
{
	if (x >= n->min && x <= n->max)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, n->name, "must be between %.10g and %.10g", n->min, n->max);
}

status train_options_check(const train_options *o, error *err)
{
	for (int i = 0; i < NUMBERS; i++)
		TRY(check_number(&numbers[i], get(o, &numbers[i]), err));
	if (!(o->beta1 >= 0 && o->beta1 <= beta_max && o->beta2 >= 0 && o->beta2 <= beta_max))
		return error_set(err, STATUS_INVALID, "betas", "must be two numbers between 0 and %g", beta_max);
	if ((unsigned)o->schedule >= sizeof schedules / sizeof schedules[0])
		return error_set(err, STATUS_INVALID, "schedule", "must be linear, cosine or constant");
	if ((unsigned)o->precision >= sizeof precisions / sizeof precisions[0])
		return error_set(err, STATUS_INVALID, "precision", "must be fp32 or bf16");
	if (o->warmup_steps > o->max_steps)
		return error_set(err, STATUS_INVALID, "warmup_steps", "must not be over max_steps");
	/* The random numbers of a run are counted by a 32-bit micro-batch number. */
	if (o->max_steps > ((int64_t)1 << 32) / o->accumulation)
		return error_set(err, STATUS_INVALID, "gradient_accumulation", "times max_steps must be at most 2^32");
	return STATUS_OK;
}

static status read_number(train_options *o, const number *n, const json_t *json, error *err)
{
	if (!json_is_number(json))
		return error_set(err, STATUS_INVALID, n->name, "must be a number");
	double x = json_number_value(json);
	TRY(check_number(n, x, err));
	if (n->integer && x != floor(x))
		return error_set(err, STATUS_INVALID, n->name, "must be an integer");
	set(o, n, x);
	return STATUS_OK;
}

static status read_schedule(train_options *o, const json_t *json, error *err)
{
	const char *name = json_string_value(json);
	for (int i = 0; name && i < (int)(sizeof schedules / sizeof schedules[0]); i++) {
		if (strcmp(schedules[i], name) == 0) {
			o->schedule = (schedule_type)i;
			return STATUS_OK;
		}
	}
	return error_set(err, STATUS_INVALID, "schedule", "must be linear, cosine or constant");
}

static status read_betas(train_options *o, const json_t *json, error *err)
{
	const json_t *first = json_array_get(json, 0), *second = json_array_get(json, 1);
	if (json_array_size(json) != 2 || !json_is_number(first) || !json_is_number(second))
		return error_set(err, STATUS_INVALID, "betas", "must be two numbers between 0 and %g", beta_max);
	o->beta1 = json_number_value(first);
	o->beta2 = json_number_value(second);
	return STATUS_OK;
}

static status read_precision(train_options *o, const json_t *json, error *err)
{
	const char *name = json_string_value(json);
	for (int i = 0; name && i < (int)(sizeof precisions / sizeof precisions[0]); i++) {
		if (strcmp(precisions[i], name) == 0) {
			o->precision = (train_precision)i;
			return STATUS_OK;
		}
	}
	return error_set(err, STATUS_INVALID, "precision", "must be fp32 or bf16");
}

static status read_recompute(train_options *o, const json_t *json, error *err)
{
	if (!json_is_boolean(json))
		return error_set(err, STATUS_INVALID, "recompute", "must be true or false");
	o->recompute = json_is_true(json);
	return STATUS_OK;
}

static status read_seed(train_options *o, const json_t *json, error *err)
{
	if (!json_is_integer(json))
		return error_set(err, STATUS_INVALID, "seed", "must be an integer");
	o->seed = (uint64_t)json_integer_value(json);
	return STATUS_OK;
}

static status read_member(train_options *o, const char *key, const json_t *json, error *err)
{
	static const struct {
		const char *name;
		status (*read)(train_options *o, const json_t *json, error *err);
	} others[] = {{"schedule", read_schedule},
	              {"betas", read_betas},
	              {"precision", read_precision},
	              {"recompute", read_recompute},
	              {"seed", read_seed}};
	for (int i = 0; i < NUMBERS; i++)
		if (strcmp(numbers[i].name, key) == 0)
			return read_number(o, &numbers[i], json, err);
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		if (strcmp(others[i].name, key) == 0)
			return others[i].read(o, json, err);
	return error_set(err, STATUS_INVALID, key, "unknown training option");
}

static bool is_among(const char *const *names, const char *key)
{
	for (; names && *names; names++)
		if (strcmp(*names, key) == 0)
			return true;
	return false;
}

status train_options_read(train_options *o, const json_t *json, const char *const *others, error *err)
{
	if (!json_is_object(json))
		return error_set(err, STATUS_INVALID, NULL, "training options must be an object");
	train_options read = *o;
	for (void *i = json_object_iter((json_t *)(uintptr_t)json); i;
	     i = json_object_iter_next((json_t *)(uintptr_t)json, i)) {
		const char *key = json_object_iter_key(i);
		const json_t *member = json_object_iter_value(i);
		if (!json_is_null(member) && !is_among(others, key))
			TRY(read_member(&read, key, member, err));
	}
	TRY(train_options_check(&read, err));
	*o = read;
	return STATUS_OK;
}

json_t *train_options_write(const train_options *o)
{
	json_t *json =
	    json_pack("{s:s, s:[f, f], s:s, s:b, s:I}", "schedule", schedules[o->schedule], "betas", o->beta1, o->beta2,
	              "precision", precisions[o->precision], "recompute", o->recompute, "seed", (json_int_t)o->seed);
	bool ok = json != NULL;
	for (int i = 0; i < NUMBERS && ok; i++) {
		double x = get(o, &numbers[i]);
		json_t *member = numbers[i].integer ? json_integer((json_int_t)x) : json_real(x);
		ok = json_object_set_new(json, numbers[i].name, member) == 0;
	}
	if (ok)
		return json;
	json_decref(json);
	return NULL;
}
