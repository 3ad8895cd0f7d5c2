/* trainer_new.c - creates a run, and checks that its options, model and data fit together. */
#include "engine/train/trainer_private.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/memory.h"

int64_t trainer_ranks(const trainer *t)
{
	return t->options.ranks ? t->options.ranks->count : 1;
}

int64_t trainer_rank(const trainer *t)
{
	return t->options.ranks ? t->options.ranks->rank : 0;
}

int64_t trainer_valid_batches(const trainer *t)
{
	return (t->evaluation.records + t->valid_batch - 1) / t->valid_batch;
}

static status check_dataset(const trainer *t, const dataset *d, const char *what, error *err)
{
	const model_dims *dims = model_dimensions(t->model);
	const objective *o = t->options.objective;
	if (dataset_kind(d) != o->records)
		return error_set(err, STATUS_INVALID, "objective",
		                 "%s does not learn from records like those of the %s data", o->name, what);
	if (dataset_length(d) != train_options_record(&t->options))
		return error_set(err, STATUS_INVALID, "sequence_length", "the %s data is cut in blocks of %lld", what,
		                 (long long)dataset_length(d));
	if (dataset_source_length(d) > train_options_source(&t->options))
		return error_set(err, STATUS_INVALID, "source_length", "the %s data has sources of %lld tokens", what,
		                 (long long)dataset_source_length(d));
	if (dataset_vocab(d) > model_dims_ids(dims))
		return error_set(err, STATUS_INVALID, "vocab_size", "the tokenizer has %d ids, the model only %lld",
		                 (int)dataset_vocab(d), (long long)model_dims_ids(dims));
	return o->check ? o->check(d, dims, &t->options, err) : STATUS_OK;
}

static status check_carry(const trainer *t, error *err)
{
	const train_options *o = &t->options;
	if (!o->carry_state)
		return STATUS_OK;
	TRY(objective_check_carry(o, model_dimensions(t->model), err));
	if (o->batch_size * o->gradient_accumulation > dataset_records(t->train))
		return error_set(err, STATUS_INVALID, "gradient_accumulation",
		                 "times batch_size must be at most the training data's %lld records",
		                 (long long)dataset_records(t->train));
	return STATUS_OK;
}

static status check_ranks(const train_options *o, error *err)
{
	const int count = o->ranks ? o->ranks->count : 1;
	if (o->batch_size % count)
		return error_set(err, STATUS_INVALID, "batch_size", "must be a multiple of the %d ranks", count);
	if (count > 1 && (o->carry_state || o->gradient_noise))
		return error_set(err, STATUS_INVALID, o->carry_state ? "carry_state" : "gradient_noise",
		                 "is for a run of one process");
	return STATUS_OK;
}

static status trainer_new_check(const trainer *t, error *err)
{
	const train_options *o = &t->options;
	TRY(train_options_check(o, err));
	TRY(objective_check_model(o->objective, model_dimensions(t->model), err));
	if (o->sequence_length > model_dims_length(model_dimensions(t->model)))
		return error_set(err, STATUS_INVALID, "sequence_length", "must be at most the model's %lld positions",
		                 (long long)model_dims_length(model_dimensions(t->model)));
	if (train_options_source(o) > model_dimensions(t->model)->source)
		return error_set(err, STATUS_INVALID, "source_length", "must be at most the encoder's %lld positions",
		                 (long long)model_dimensions(t->model)->source);
	if (o->precision == PRECISION_BF16 && !model_backend(t->model)->bf16)
		return error_set(err, STATUS_UNSUPPORTED, "precision", "the %s backend computes in fp32 only",
		                 model_backend(t->model)->name);
	TRY(check_dataset(t, t->train, "training", err));
	if (o->batch_size > dataset_records(t->train))
		return error_set(err, STATUS_INVALID, "batch_size", "must be at most the training data's %lld records",
		                 (long long)dataset_records(t->train));
	TRY(check_carry(t, err));
	TRY(check_ranks(o, err));
	return t->valid ? check_dataset(t, t->valid, "validation", err) : train_options_check_unvalidated(o, err);
}

static status build_carry(carry **out, const trainer *t, const pass *p, int64_t batch, int64_t sets, error *err)
{
	return t->options.carry_state
	           ? carry_new(out, t->model, pass_plan(p), batch, t->options.sequence_length, sets, err)
	           : STATUS_OK;
}

static status build_evaluation(trainer *t, error *err)
{
	const train_options *o = &t->options;
	const model_dims *dims = model_dimensions(t->model);
	evaluation *e = &t->evaluation;
	int64_t records = dataset_records(t->valid);
	t->valid_hash = dataset_fingerprint(t->valid);
	e->data = t->valid;
	e->records = o->eval_blocks > 0 && o->eval_blocks < records ? o->eval_blocks : records;
	if (o->objective->tally_bytes) {
		t->tally_bytes = o->objective->tally_bytes(t->valid);
		e->tally = memory_new(1, t->tally_bytes);
		if (!e->tally)
			return error_set(err, STATUS_NOMEM, NULL, "out of memory");
		TRY(text_record_reserve(&e->record, dataset_room(t->valid), err));
	}
	t->valid_batch = o->batch_size < e->records ? o->batch_size : e->records;
	e->stride = o->carry_state ? trainer_valid_batches(t) : 1;
	const forward_spec spec = {.batch = t->valid_batch * objective_rows(o->objective),
	                           .length = o->sequence_length,
	                           .train.loss = true,
	                           .train.hits = o->objective->hits,
	                           .train.log_probabilities = o->objective->weigh,
	                           .train.carried = o->carry_state,
	                           .bf16 = o->precision == PRECISION_BF16,
	                           .out.logits = o->objective->logits};
	TRY(pass_new(&t->valid_pass, trainer_result(t), o, &spec, NULL, err));
	TRY(build_carry(&t->valid_carry, t, t->valid_pass, t->valid_batch, 1, err));
	if (o->objective->hits) {
		e->hits = memory_new((size_t)(t->valid_batch * o->sequence_length), sizeof *e->hits);
		if (!e->hits)
			return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	}
	return dims->form == &form_causal && !dims->parallel_only
	           ? preview_new(&t->preview, trainer_result(t), t->valid, o->seed, err)
	           : STATUS_OK;
}

static status trainer_new_build(trainer *t, error *err)
{
	const train_options *o = &t->options;
	const forward_spec spec = pass_training_spec(o, model_dimensions(t->model), o->batch_size / trainer_ranks(t));
	TRY(trainer_new_check(t, err));
	model_train_on(t->model, o->sequence_length);
	if (spec.bf16)
		TRY(model_update_bf16_copy(t->model, err));
	t->train_hash = dataset_fingerprint(t->train);
	TRY(optimizer_new(&t->optimizer, t->model, o, err));
	TRY(pass_new(&t->train_pass, t->model, o, &spec, optimizer_gradients(t->optimizer), err));
	if (o->ranks)
		TRY(gradient_sum_new(&t->sum, o->ranks, t->model,
		                     o->gradient_accumulation == 1 ? pass_plan(t->train_pass) : NULL,
		                     optimizer_step_gradients(t->optimizer), err));
	TRY(build_carry(&t->train_carry, t, t->train_pass, o->batch_size, o->gradient_accumulation, err));
	if (o->ema_decay > 0)
		TRY(weight_average_new(&t->average, t->model, o->ema_decay, err));
	if (t->average && spec.bf16)
		TRY(model_update_bf16_copy(trainer_result(t), err));
	if (o->keep_best && kept_weights_new(&t->best, trainer_result(t)) != STATUS_OK)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	if (o->objective->weigh)
		TRY(reference_new(&t->reference, dataset_records(t->train) * objective_rows(o->objective),
		                  t->valid ? dataset_records(t->valid) * objective_rows(o->objective) : 0, err));
	return t->valid ? build_evaluation(t, err) : STATUS_OK;
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
	t->shuffle = o->carry_state ? 0 : o->seed ? o->seed : UINT64_MAX; /* 0 means "not shuffled" to a dataset */
	t->progress = (train_progress){.total_steps = o->max_steps,
	                               .train_loss = NAN,
	                               .gradient_norm = NAN,
	                               .learning_rate = train_learning_rate(o, 0),
	                               .valid_loss = NAN,
	                               .best_valid_loss = NAN,
	                               .gradient_noise = NAN,
	                               .suggested_rate = NAN,
	                               .objective = o->objective,
	                               .byte_entropy = dataset_byte_entropy(train)};
	for (int i = 0; i < TRAIN_MAX_METRICS; i++)
		t->progress.metrics[i] = NAN;
	status s = trainer_new_build(t, err);
	if (s != STATUS_OK) {
		trainer_free(t);
		return s;
	}
	trainer_begin(t);
	*out = t;
	return STATUS_OK;
}

void trainer_free(trainer *t)
{
	if (!t)
		return;
	gradient_sum_free(t->sum);
	carry_free(t->train_carry);
	carry_free(t->valid_carry);
	pass_free(t->train_pass);
	pass_free(t->valid_pass);
	pass_free(t->reference_pass);
	reference_free(t->reference);
	preview_free(t->preview);
	kept_weights_free(t->best);
	free(t->evaluation.tally);
	free(t->evaluation.hits);
	text_record_fini(&t->evaluation.record);
	optimizer_free(t->optimizer);
	weight_average_free(t->average);
	model_free(t->model);
	free(t);
}
