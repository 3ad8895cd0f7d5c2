/* trainer_evaluation.c - the stages of an evaluation: the validation records batch by batch, then the preview's text
 * token by token, if the model can generate. */
#include "engine/train/trainer_private.h"

#include <math.h>
#include <string.h>

static const stage evaluate_stage, preview_stage;

void trainer_begin_evaluation(trainer *t)
{
	t->valid_at = 0;
	t->evaluation.nats = t->evaluation.labels = 0;
	if (t->evaluation.tally)
		memset(t->evaluation.tally, 0, t->tally_bytes);
	trainer_go(t, &evaluate_stage);
}

static plan *evaluate_plan(const trainer *t)
{
	return pass_plan(t->valid_pass);
}

/* Rows as in training: consecutive records, or lanes. */
static pass_rows evaluate_rows(const trainer *t)
{
	const int64_t batch = t->valid_batch, records = t->evaluation.records, stride = t->evaluation.stride;
	const int64_t first = t->valid_carry ? t->valid_at : t->valid_at * batch;
	const int64_t left = (records - first + stride - 1) / stride;
	return (pass_rows){
	    .first = first, .stride = stride, .count = left < batch ? left : batch, .begin = t->valid_at == 0};
}

static status evaluate_enter(trainer *t)
{
	if (t->valid_at == 0 && t->average && model_bf16_weights(t->model))
		TRY(model_update_bf16_copy(trainer_result(t), &t->failed));
	TRY(pass_load(t->valid_pass, t->valid, 0, evaluate_rows(t), &t->failed));
	return t->valid_carry ? carry_load(t->valid_carry, t->valid_at, 0, pass_continues(t->valid_pass)) : STATUS_OK;
}

/* The numbers of the evaluation are reported together with its text. A run saved between the two repeats both. */
static status finish_evaluation(trainer *t, unsigned *events)
{
	const evaluation *e = &t->evaluation;
	train_progress *p = &t->progress;
	const double loss = e->nats / e->labels;
	const bool best = isfinite(loss) && (p->best_step == 0 || loss < p->best_valid_loss);
	if (best && t->best)
		TRY(kept_weights_take(t->best));
	if (best) {
		p->best_step = p->step;
		p->best_valid_loss = loss;
	}
	t->stale = best ? 0 : t->stale + (e->labels > 0);
	p->valid_loss = loss;
	t->options.objective->measure(e, p->metrics);
	t->valid_step = p->step;
	*events |= TRAIN_EVAL | trainer_checkpoint_event(t);
	trainer_begin_step(t);
	return STATUS_OK;
}

static status evaluate_leave(trainer *t, unsigned *events, error *err)
{
	(void)err;
	const objective *o = t->options.objective;
	evaluation *e = &t->evaluation;
	const pass_rows rows = evaluate_rows(t);
	double loss, count;
	if (o->weigh) {
		TRY(pass_weigh(t->valid_pass, t->reference->sums[REFERENCE_VALID], e->tally, &loss));
		count = (double)rows.count;
	} else {
		TRY(pass_result(t->valid_pass, &loss, &count));
	}
	e->nats += loss * count;
	e->labels += count;
	if (o->tally)
		TRY(o->tally(e, pass_plan(t->valid_pass), rows.first, rows.count));
	if (t->valid_carry)
		TRY(carry_keep(t->valid_carry, t->valid_at, 0));
	t->valid_at++;
	if (t->valid_at < trainer_valid_batches(t)) {
		trainer_go(t, &evaluate_stage);
	} else if (t->preview) {
		preview_begin(t->preview);
		trainer_go(t, &preview_stage);
	} else {
		return finish_evaluation(t, events);
	}
	return STATUS_OK;
}

static const stage evaluate_stage = {evaluate_plan, evaluate_enter, trainer_device_is_idle, evaluate_leave};

static plan *write_plan(const trainer *t)
{
	return preview_plan(t->preview);
}

static status write_enter(trainer *t)
{
	return preview_enter(t->preview);
}

static status write_leave(trainer *t, unsigned *events, error *err)
{
	bool more;
	(void)err;
	TRY(preview_leave(t->preview, &more));
	if (!more)
		return finish_evaluation(t, events);
	trainer_go(t, &preview_stage);
	return STATUS_OK;
}

static const stage preview_stage = {write_plan, write_enter, trainer_device_is_idle, write_leave};
