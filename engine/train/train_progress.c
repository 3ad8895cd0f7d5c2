#include "engine/train/objective.h"
#include "engine/train/trainer.h"

#include <math.h>
#include <string.h>

static const struct {
	const char *name;
	size_t offset;
} integers[] = {{"step", offsetof(train_progress, step)},
                {"total_steps", offsetof(train_progress, total_steps)},
                {"tokens", offsetof(train_progress, tokens)},
                {"best_step", offsetof(train_progress, best_step)},
                {"result_step", offsetof(train_progress, result_step)},
                {"skipped_steps", offsetof(train_progress, skipped_steps)},
                {"empty_steps", offsetof(train_progress, empty_steps)}},
  numbers[] = {{"train_loss", offsetof(train_progress, train_loss)},
               {"gradient_norm", offsetof(train_progress, gradient_norm)},
               {"learning_rate", offsetof(train_progress, learning_rate)},
               {"valid_loss", offsetof(train_progress, valid_loss)},
               {"best_valid_loss", offsetof(train_progress, best_valid_loss)},
               {"gradient_noise", offsetof(train_progress, gradient_noise)},
               {"suggested_learning_rate", offsetof(train_progress, suggested_rate)},
               {"byte_entropy", offsetof(train_progress, byte_entropy)},
               {"tokens_per_second", offsetof(train_progress, tokens_per_second)}};
enum { INTEGERS = sizeof integers / sizeof *integers, NUMBERS = sizeof numbers / sizeof *numbers };

static json_t *write_number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static double train_progress_read_number(const json_t *json, const char *name)
{
	const json_t *number = json_object_get(json, name);
	return json_is_real(number) ? json_real_value(number) : NAN;
}

json_t *train_progress_write(const train_progress *p)
{
	json_t *json = json_object();
	bool ok = json != NULL;
	for (int i = 0; i < INTEGERS && ok; i++) {
		int64_t number;
		memcpy(&number, (const char *)p + integers[i].offset, sizeof number);
		ok = json_object_set_new(json, integers[i].name, json_integer(number)) == 0;
	}
	for (int i = 0; i < NUMBERS && ok; i++) {
		double number;
		memcpy(&number, (const char *)p + numbers[i].offset, sizeof number);
		ok = json_object_set_new(json, numbers[i].name, write_number(number)) == 0;
	}
	for (int i = 0; p->objective->metrics[i] && ok; i++)
		ok = json_object_set_new(json, p->objective->metrics[i], write_number(p->metrics[i])) == 0;
	if (ok)
		return json;
	json_decref(json);
	return NULL;
}

void train_progress_read(train_progress *p, const json_t *json)
{
	for (int i = 0; i < INTEGERS; i++) {
		const int64_t number = json_integer_value(json_object_get(json, integers[i].name));
		memcpy((char *)p + integers[i].offset, &number, sizeof number);
	}
	for (int i = 0; i < NUMBERS; i++) {
		const double number = train_progress_read_number(json, numbers[i].name);
		memcpy((char *)p + numbers[i].offset, &number, sizeof number);
	}
	for (int i = 0; i < TRAIN_MAX_METRICS; i++)
		p->metrics[i] = NAN;
	for (int i = 0; p->objective->metrics[i]; i++)
		p->metrics[i] = train_progress_read_number(json, p->objective->metrics[i]);
}
