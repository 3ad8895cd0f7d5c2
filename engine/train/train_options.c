/* train_options.c - one table of the options, made from the contract (gen/recipe.def), is used to read, write and
 * check. Ranges are closed: an excluded bound is replaced by the nearest sensible number (no one trains at a rate of
 * 1e-13). */
#include "engine/base/choice.h"
#include "engine/train/objective.h"
#include "engine/train/optimizer_kind.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum option_kind { OPTION_INTEGER, OPTION_NUMBER, OPTION_FLAG, OPTION_CHOICE, OPTION_PAIR } option_kind;

typedef struct option {
	const char *name;
	size_t offset;
	option_kind kind;
	double min, max;
	const char *const *words; /* OPTION_CHOICE: names by value, NULL-terminated */
} option;

#define AT(name) #name, offsetof(train_options, name)
static const option options[] = {
#define INTEGER(name, min, max, fallback) {AT(name), OPTION_INTEGER, min, max, NULL},
#define NUMBER(name, above, min, max, fallback) {AT(name), OPTION_NUMBER, min, max, NULL},
#define FLAG(name, fallback) {AT(name), OPTION_FLAG, 0, 1, NULL},
#define CHOICE(name, fallback) {AT(name), OPTION_CHOICE, 0, 0, (const char *const[]){RECIPE_WORDS_##name, NULL}},
#define PAIR(name, min, max, ...) {AT(name), OPTION_PAIR, min, max, NULL},
#include "gen/recipe.def"
    /* Not in requests. */
    {AT(eval_blocks), OPTION_INTEGER, 0, 1e9, NULL},
};
enum { OPTIONS = sizeof options / sizeof options[0] };

void train_options_default(train_options *o)
{
	*o = (train_options){
#define INTEGER(name, min, max, fallback) .name = fallback,
#define NUMBER(name, above, min, max, fallback) .name = fallback,
#define FLAG(name, fallback) .name = fallback,
#define CHOICE(name, fallback) .name = fallback,
#define PAIR(name, min, max, ...) .name = {__VA_ARGS__},
#include "gen/recipe.def"
	    .objective = &objective_next_token,
	    .optimizer = &optimizer_kind_adamw,
	    .seed = 1,
	};
}

/* Return the i-th number of an option; a pair has two. */
static double get(const train_options *o, const option *n, int i)
{
	const char *field = (const char *)o + n->offset;
	int64_t integer;
	double number;
	bool flag;
	int choice;
	switch (n->kind) {
	case OPTION_INTEGER:
		return memcpy(&integer, field, sizeof integer), (double)integer;
	case OPTION_FLAG:
		return memcpy(&flag, field, sizeof flag), flag;
	case OPTION_CHOICE:
		return memcpy(&choice, field, sizeof choice), choice;
	default:
		return memcpy(&number, field + (size_t)i * sizeof number, sizeof number), number;
	}
}

static void set(train_options *o, const option *n, int i, double x)
{
	char *field = (char *)o + n->offset;
	int64_t integer = (int64_t)x;
	int choice = (int)x;
	bool flag = x != 0;
	switch (n->kind) {
	case OPTION_INTEGER:
		memcpy(field, &integer, sizeof integer);
		break;
	case OPTION_FLAG:
		memcpy(field, &flag, sizeof flag);
		break;
	case OPTION_CHOICE:
		memcpy(field, &choice, sizeof choice);
		break;
	default:
		memcpy(field + (size_t)i * sizeof x, &x, sizeof x);
	}
}

/* --- checks ------------------------------------------------------------------------- */

static int count_words(const option *n)
{
	int count = 0;
	while (n->words[count])
		count++;
	return count;
}

static status train_options_check_range(const train_options *o, const option *n, error *err)
{
	double x = get(o, n, 0), y = n->kind == OPTION_PAIR ? get(o, n, 1) : x;
	if (n->kind == OPTION_CHOICE)
		return x >= 0 && x < count_words(n) ? STATUS_OK : choice_refuse(err, n->name, NULL, n->words);
	if (x >= n->min && x <= n->max && y >= n->min && y <= n->max)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, n->name, "must be %sbetween %.10g and %.10g",
	                 n->kind == OPTION_PAIR ? "two numbers " : "", n->min, n->max);
}

status train_options_check(const train_options *o, error *err)
{
	for (int i = 0; i < OPTIONS; i++)
		TRY(train_options_check_range(o, &options[i], err));
	if (o->warmup_steps > o->max_steps)
		return error_set(err, STATUS_INVALID, "warmup_steps", "must not be over max_steps");
	if (o->schedule == SCHEDULE_RANGE_TEST && o->warmup_steps > 0)
		return error_set(err, STATUS_INVALID, "warmup_steps", "must be 0: a range test has no warm-up");
	if (o->schedule == SCHEDULE_RANGE_TEST && o->range_from >= o->learning_rate)
		return error_set(err, STATUS_INVALID, "range_from", "must be below learning_rate");
	if (o->gradient_noise && o->gradient_accumulation < 2)
		return error_set(err, STATUS_INVALID, "gradient_noise", "needs a gradient_accumulation of 2 or more");
	/* Random numbers of a run are indexed by a 32-bit micro-batch number. */
	if (o->max_steps > ((int64_t)1 << 32) / o->gradient_accumulation)
		return error_set(err, STATUS_INVALID, "gradient_accumulation", "times max_steps must be at most 2^32");
	if (train_options_record(o) < 2)
		return error_set(err, STATUS_INVALID, "sequence_length", "%s needs longer sequences or sources",
		                 o->objective->name);
	if (o->loss_on != LOSS_ON_ALL && o->objective->records == RECORD_BLOCK && !o->objective->skips_excluded)
		return error_set(err, STATUS_INVALID, "loss_on", "must be all: %s is for all of a text",
		                 o->objective->name);
	if (o->objective->weigh && o->label_smoothing > 0 && o->preference_loss != PREFERENCE_LOSS_DPO)
		return error_set(err, STATUS_INVALID, "label_smoothing", "is for the preference_loss dpo");
	return STATUS_OK;
}

status train_options_check_unvalidated(const train_options *o, error *err)
{
	if (o->patience > 0)
		return error_set(err, STATUS_INVALID, "patience", "needs validation data");
	return o->keep_best ? error_set(err, STATUS_INVALID, "keep_best", "needs validation data") : STATUS_OK;
}

int64_t train_options_source(const train_options *o)
{
	if (!o->objective->form->source)
		return 0;
	return o->source_length ? o->source_length : o->sequence_length;
}

int64_t train_options_record(const train_options *o)
{
	return o->objective->record_length ? o->objective->record_length(o) : o->sequence_length;
}

bool train_options_uneven(const train_options *o)
{
	return o->loss_on == LOSS_ON_COMPLETION || o->reset_at_document || o->objective->uneven;
}

/* --- JSON ---------------------------------------------------------------------------- */

static status train_options_read_number(train_options *o, const option *n, const json_t *json, error *err)
{
	double x = json_number_value(json);
	if (!json_is_number(json))
		return error_set(err, STATUS_INVALID, n->name, "must be a number");
	if (x < n->min || x > n->max) /* values outside int64_t must not be stored */
		return error_set(err, STATUS_INVALID, n->name, "must be between %.10g and %.10g", n->min, n->max);
	if (n->kind == OPTION_INTEGER && x != floor(x))
		return error_set(err, STATUS_INVALID, n->name, "must be an integer");
	set(o, n, 0, x);
	return STATUS_OK;
}

static status read_word(train_options *o, const option *n, const json_t *json, error *err)
{
	const char *word = json_string_value(json);
	for (int i = 0; word && n->words[i]; i++) {
		if (strcmp(n->words[i], word) == 0) {
			set(o, n, 0, i);
			return STATUS_OK;
		}
	}
	return choice_refuse(err, n->name, word, n->words);
}

static status read_pair(train_options *o, const option *n, const json_t *json, error *err)
{
	for (int i = 0; i < 2; i++) {
		const json_t *x = json_array_get(json, (size_t)i);
		if (json_array_size(json) != 2 || !json_is_number(x))
			return error_set(err, STATUS_INVALID, n->name, "must be two numbers between %.10g and %.10g",
			                 n->min, n->max);
		set(o, n, i, json_number_value(x));
	}
	return STATUS_OK;
}

static status read_flag(train_options *o, const option *n, const json_t *json, error *err)
{
	if (!json_is_boolean(json))
		return error_set(err, STATUS_INVALID, n->name, "must be true or false");
	set(o, n, 0, json_is_true(json));
	return STATUS_OK;
}

static const char *objective_name(int i)
{
	return objective_at(i) ? objective_at(i)->name : NULL;
}

static const char *optimizer_name(int i)
{
	return optimizer_kind_at(i) ? optimizer_kind_at(i)->name : NULL;
}

static status refuse_name(const char *key, const json_t *given, const char *(*name)(int i), error *err)
{
	const char *names[33] = {0};
	for (int i = 0; i < 32 && name(i); i++)
		names[i] = name(i);
	return choice_refuse(err, key, json_string_value(given), names);
}

static status read_member(train_options *o, const char *key, const json_t *json, error *err)
{
	static status (*const readers[])(train_options *, const option *, const json_t *,
	                                 error *) = {[OPTION_INTEGER] = train_options_read_number,
	                                             [OPTION_NUMBER] = train_options_read_number,
	                                             [OPTION_FLAG] = read_flag,
	                                             [OPTION_CHOICE] = read_word,
	                                             [OPTION_PAIR] = read_pair};
	for (int i = 0; i < OPTIONS; i++)
		if (strcmp(options[i].name, key) == 0)
			return readers[options[i].kind](o, &options[i], json, err);
	if (strcmp(key, "objective") == 0) {
		const objective *found = json_is_string(json) ? objective_find(json_string_value(json)) : NULL;
		if (!found)
			return refuse_name("objective", json, objective_name, err);
		o->objective = found;
		return STATUS_OK;
	}
	if (strcmp(key, "optimizer") == 0) {
		const optimizer_kind *kind = json_is_string(json) ? optimizer_kind_find(json_string_value(json)) : NULL;
		if (!kind)
			return refuse_name("optimizer", json, optimizer_name, err);
		o->optimizer = kind;
		return STATUS_OK;
	}
	if (strcmp(key, "seed") == 0) {
		if (!json_is_integer(json))
			return error_set(err, STATUS_INVALID, "seed", "must be an integer");
		o->seed = (uint64_t)json_integer_value(json);
		return STATUS_OK;
	}
	return error_set(err, STATUS_INVALID, key, "unknown training option");
}

static bool is_among(const char *const *names, const char *key)
{
	for (; names && *names; names++)
		if (strcmp(*names, key) == 0)
			return true;
	return false;
}

/* Return the name of the optimiser, objective or schedule that lacks an option which only others read; NULL: none. */
static const char *find_lacking(const train_options *o, const char *key)
{
	static const char *const schedules[] = {RECIPE_WORDS_schedule};
	if ((strcmp(key, "cycles") == 0 && o->schedule != SCHEDULE_COSINE_WITH_RESTARTS) ||
	    (strcmp(key, "tail") == 0 && o->schedule != SCHEDULE_TAIL) ||
	    (strcmp(key, "range_from") == 0 && o->schedule != SCHEDULE_RANGE_TEST))
		return schedules[o->schedule];
	if (optimizer_kind_reads(NULL, key) && !optimizer_kind_reads(o->optimizer, key))
		return o->optimizer->name;
	return objective_reads(NULL, key) && !objective_reads(o->objective, key) ? o->objective->name : NULL;
}

static status refuse_foreign(const train_options *o, const json_t *json, const char *const *others, error *err)
{
	for (void *i = json_object_iter((json_t *)(uintptr_t)json); i;
	     i = json_object_iter_next((json_t *)(uintptr_t)json, i)) {
		const char *key = json_object_iter_key(i);
		const char *lacking = is_among(others, key) ? NULL : find_lacking(o, key);
		if (lacking && !json_is_null(json_object_iter_value(i)))
			return error_set(err, STATUS_INVALID, key, "%s has no %s", lacking, key);
	}
	return STATUS_OK;
}

static bool is_given(const json_t *json, const char *key)
{
	const json_t *member = json_object_get(json, key);
	return member && !json_is_null(member);
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
	if (read.optimizer->without_decay && !is_given(json, "weight_decay"))
		read.weight_decay = 0;
	if (read.optimizer->momentum > 0 && !is_given(json, "momentum"))
		read.momentum = read.optimizer->momentum;
	TRY(refuse_foreign(&read, json, others, err));
	TRY(train_options_check(&read, err));
	*o = read;
	return STATUS_OK;
}

static json_t *write_member(const train_options *o, const option *n)
{
	double x = get(o, n, 0);
	switch (n->kind) {
	case OPTION_INTEGER:
		return json_integer((json_int_t)x);
	case OPTION_FLAG:
		return json_boolean(x != 0);
	case OPTION_CHOICE:
		return json_string(n->words[(int)x]);
	case OPTION_PAIR:
		return json_pack("[f, f]", x, get(o, n, 1));
	default:
		return json_real(x);
	}
}

json_t *train_options_write(const train_options *o)
{
	json_t *json = json_pack("{s:s, s:s, s:I}", "objective", o->objective->name, "optimizer", o->optimizer->name,
	                         "seed", (json_int_t)o->seed);
	bool ok = json != NULL;
	for (int i = 0; i < OPTIONS && ok; i++)
		ok = find_lacking(o, options[i].name) ||
		     json_object_set_new(json, options[i].name, write_member(o, &options[i])) == 0;
	if (ok)
		return json;
	json_decref(json);
	return NULL;
}
