/* trainer_reference.c - the stage before the first step of an objective that compares with the first weights: the
 * log-probabilities of all records (reference.h), batch by batch. Every rank of a run computes them for itself. */
#include "engine/train/trainer_private.h"

static const stage reference_stage;

static const dataset *data_of(const trainer *t)
{
	return t->reference_set == REFERENCE_TRAIN ? t->train : t->valid;
}

/* Continue with the next batch, or begin to train. */
static void next_batch(trainer *t)
{
	while (t->reference_set < REFERENCE_SETS && (!data_of(t) || t->reference_at == dataset_records(data_of(t)))) {
		t->reference_set++;
		t->reference_at = 0;
	}
	if (t->reference_set < REFERENCE_SETS) {
		trainer_go(t, &reference_stage);
		return;
	}
	pass_free(t->reference_pass);
	t->reference_pass = NULL;
	t->reference->complete = true;
	trainer_begin_step(t);
}

void trainer_begin_reference(trainer *t)
{
	t->reference_set = 0;
	t->reference_at = 0;
	next_batch(t);
}

static plan *reference_plan(const trainer *t)
{
	return pass_plan(t->reference_pass);
}

static pass_rows next_rows(const trainer *t)
{
	const int64_t left = dataset_records(data_of(t)) - t->reference_at,
	              batch = t->options.batch_size / trainer_ranks(t);
	return (pass_rows){.first = t->reference_at, .stride = 1, .count = left < batch ? left : batch};
}

static status make_pass(trainer *t)
{
	const train_options *o = &t->options;
	const forward_spec spec = {.batch = o->batch_size / trainer_ranks(t) * objective_rows(o->objective),
	                           .length = o->sequence_length,
	                           .train.loss = true,
	                           .train.log_probabilities = true,
	                           .bf16 = o->precision == PRECISION_BF16};
	return pass_new(&t->reference_pass, t->model, o, &spec, NULL, &t->failed);
}

static status reference_enter(trainer *t)
{
	if (!t->reference_pass)
		TRY(make_pass(t));
	return pass_load(t->reference_pass, data_of(t), 0, next_rows(t), &t->failed);
}

static status reference_leave(trainer *t, unsigned *events, error *err)
{
	(void)events, (void)err;
	float *to = t->reference->sums[t->reference_set] + t->reference_at * objective_rows(t->options.objective);
	TRY(pass_sums(t->reference_pass, to));
	t->reference_at += next_rows(t).count;
	next_batch(t);
	return STATUS_OK;
}

static const stage reference_stage = {reference_plan, reference_enter, trainer_device_is_idle, reference_leave};
