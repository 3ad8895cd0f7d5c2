/* trainer_save.c - a run as a folder: checkpoints, the model alone, and resuming from a checkpoint. */
#include "engine/train/trainer_private.h"

#include "engine/train/checkpoint.h"
#include "engine/train/optimizer_file.h"

status trainer_gather(trainer *t, bool *complete, error *err)
{
	*complete = false;
	TRY(trainer_settle(t, err));
	return optimizer_gather(t->optimizer, complete);
}

status trainer_save(trainer *t, const tokenizer *tok, const char *folder, const char *id, const json_t *about,
                    error *err)
{
	TRY(trainer_settle(t, err));
	if (!optimizer_is_whole(t->optimizer))
		return error_set(err, STATUS_UNAVAILABLE, NULL,
		                 "the optimizer's states of the other ranks are not available");
	json_t *state = trainer_state_write(t);
	if (!state)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	const checkpoint_parts parts = {.model = trainer_result(t),
	                                .trained = t->average ? t->model : NULL,
	                                .optimizer = t->optimizer,
	                                .carry = t->train_carry,
	                                .reference = t->reference && t->reference->complete ? t->reference : NULL,
	                                .best = t->progress.best_step > 0 ? t->best : NULL,
	                                .step = t->progress.step};
	status s = checkpoint_write(folder, &parts, tok, state, id, about, err);
	json_decref(state);
	return s;
}

status trainer_save_model(const trainer *t, const tokenizer *tok, const char *folder, error *err)
{
	TRY(model_save(trainer_model(t), folder, err));
	TRY(tokenizer_save(tok, folder, err));
	return optimizer_measure(t->optimizer) ? optimizer_file_write(folder, t->optimizer, err) : STATUS_OK;
}

status trainer_continue(trainer *t, const char *folder, error *err)
{
	return optimizer_file_continue(folder, t->optimizer, err);
}

status trainer_resume(trainer *t, const char *folder, error *err)
{
	json_t *saved, *own = trainer_state_write(t);
	status s =
	    own ? checkpoint_read_state(folder, &saved, err) : error_set(err, STATUS_NOMEM, NULL, "out of memory");
	if (s == STATUS_OK) {
		s = trainer_state_check(saved, own, err);
		if (s == STATUS_OK)
			s = checkpoint_load(folder, saved, trainer_result(t), t->optimizer, err);
		if (s == STATUS_OK && t->average)
			s = checkpoint_load_trained(folder, t->model, err);
		if (s == STATUS_OK && t->options.precision == PRECISION_BF16)
			s = model_update_bf16_copy(t->model, err);
		if (s == STATUS_OK)
			s = trainer_state_read(t, saved, err);
		if (s == STATUS_OK)
			s = checkpoint_load_carry(folder, t->train_carry, t->progress.step, err);
		if (s == STATUS_OK && t->progress.step > 0) /* without a step the weights are still the first */
			s = checkpoint_load_reference(folder, t->reference, err);
		if (s == STATUS_OK && t->progress.best_step > 0)
			s = checkpoint_load_best(folder, t->best, err);
		json_decref(saved);
	}
	json_decref(own);
	TRY(s);
	t->failed = (error)ERROR_INIT;
	t->finish_reported = false;
	t->issued = t->progress.step;
	t->micro = 0;
	t->n_awaited = 0; /* discard the step in progress */
	t->loss_sum = 0;
	t->pending_events = 0;
	if (trainer_evaluation_is_due(t, t->progress.step))
		trainer_begin_evaluation(t);
	else
		trainer_begin(t);
	return STATUS_OK;
}
