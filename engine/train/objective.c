#include "engine/train/objective.h"

#include <math.h>
#include <string.h>

#include "engine/model/config.h"

static const objective *const objectives[] = {
#define OBJECTIVE(name) &objective_##name,
#include "gen/objectives.def"
#undef OBJECTIVE
};
enum { OBJECTIVES = sizeof objectives / sizeof objectives[0] };

const objective *objective_at(int index)
{
	return index >= 0 && index < OBJECTIVES ? objectives[index] : NULL;
}

const objective *objective_find(const char *name)
{
	for (int i = 0; i < OBJECTIVES; i++)
		if (strcmp(objectives[i]->name, name) == 0)
			return objectives[i];
	return NULL;
}

int64_t objective_rows(const objective *o)
{
	return o->rows ? o->rows : 1;
}

/* Return why the objective cannot be used; NULL: it can. */
static const char *find_fault(const objective *o, const model_dims *d)
{
	const model_form *form = d->form;
	return form->source && d->source == 0     ? "attends to rows that no job gives it,"
	       : form == o->form                  ? NULL
	       : form->source && !o->form->source ? "attends to a source, which there is none of,"
	       : o->form->source && !form->source ? "reads no source, as it would have to"
	       : form->head != o->form->head      ? "has no head"
	       : form->stepwise                   ? "sees no later tokens, as it would have to"
	                                          : "sees later tokens, as it must not";
}

status objective_check_model(const objective *o, const model_dims *dims, error *err)
{
	const char *fault = find_fault(o, dims);
	return fault ? error_set(err, STATUS_INVALID, "objective", "the model %s for %s", fault, o->name) : STATUS_OK;
}

status objective_check_carry(const train_options *o, const model_dims *dims, error *err)
{
	const objective *by = o->objective;
	if (!dims->carried)
		return error_set(err, STATUS_INVALID, "carry_state",
		                 "the model has no state that a block of text could leave to the next");
	if (by->records != RECORD_BLOCK || !by->form->stepwise)
		return error_set(err, STATUS_INVALID, "carry_state", "%s does not read a text from block to block",
		                 by->name);
	if (dims->carries_states && (o->recompute || o->precision == PRECISION_BF16))
		return error_set(err, STATUS_INVALID, o->recompute ? "recompute" : "precision",
		                 "the state of this model is carried in fp32, by activations that are kept");
	return STATUS_OK;
}

const objective *objective_usual(const model_dims *dims)
{
	int i = 0;
	while (objective_at(i) && find_fault(objective_at(i), dims))
		i++;
	return objective_at(i);
}

status objective_count_hits(const evaluation *e, plan *p, int64_t *hits)
{
	value v = port_find(plan_graph(p), PORT_HITS);
	int64_t n = shape_count(graph_value(plan_graph(p), v)->shape);
	*hits = 0;
	TRY(plan_read(p, v, e->hits));
	for (int64_t i = 0; i < n; i++)
		*hits += e->hits[i] != 0;
	return STATUS_OK;
}

void example_tokens(const example *x, int32_t *ids, int32_t *mask)
{
	int64_t count = x->record ? x->record->count : 0;
	if (x->record)
		memcpy(ids, x->record->ids, (size_t)count * sizeof *ids);
	for (int64_t i = count; i < x->length; i++)
		ids[i] = dataset_pad(x->data);
	for (int64_t i = 0; i < x->length && mask; i++)
		mask[i] = i == 0 || i < count;
}

void example_fill_source(const example *x, int64_t count, int32_t *source, int32_t *mask)
{
	for (int64_t i = count; i < x->source_length; i++)
		source[i] = dataset_pad(x->data);
	for (int64_t i = 0; i < x->source_length; i++)
		mask[i] = i == 0 || i < count;
}

/* Return the start token of a decoder: the model's, otherwise the tokenizer's. example_check_start verifies that it
 * exists. */
static int64_t example_start(const dataset *d, const model_dims *dims)
{
	return dims->start >= 0 ? dims->start : dataset_start(d);
}

void example_shift_labels(const example *x, int64_t count, int32_t *ids, int32_t *labels)
{
	ids[0] = (int32_t)example_start(x->data, x->dims);
	for (int64_t i = 1; i < x->length; i++)
		ids[i] = i < count ? labels[i - 1] : dataset_pad(x->data);
	for (int64_t i = count; i < x->length; i++)
		labels[i] = -1;
}

status example_check_start(const dataset *d, const model_dims *dims, error *err)
{
	return example_start(d, dims) >= 0 ? STATUS_OK
	                                   : error_set(err, STATUS_INVALID, CONFIG_START,
	                                               "neither the model nor its tokenizer has a start token");
}

int64_t example_mask(const dataset *d, const model_dims *dims)
{
	return dims->mask >= 0 ? dims->mask : dataset_mask(d);
}

status example_check_mask(const dataset *d, const model_dims *dims, error *err)
{
	return example_mask(d, dims) >= 0 ? STATUS_OK
	                                  : error_set(err, STATUS_INVALID, CONFIG_MASK,
	                                              "neither the model nor its tokenizer has a mask token");
}

status example_check_end(const dataset *d, error *err)
{
	return dataset_end(d) != TOKEN_NONE
	           ? STATUS_OK
	           : error_set(err, STATUS_INVALID, "tokenizer", "it has no token that ends a text, as a target must");
}

size_t objective_hits_bytes(const dataset *d)
{
	(void)d;
	return sizeof(int64_t);
}

status objective_tally_hits(evaluation *e, plan *p, int64_t first, int64_t rows)
{
	int64_t *hits = e->tally, more;
	(void)first, (void)rows;
	TRY(objective_count_hits(e, p, &more));
	*hits += more;
	return STATUS_OK;
}

void objective_measure_hits(const evaluation *e, double *metrics)
{
	const int64_t *hits = e->tally;
	metrics[0] = exp(e->nats / e->labels);
	metrics[1] = (double)*hits / e->labels;
}

bool objective_reads(const objective *o, const char *option)
{
	for (int i = 0; i < OBJECTIVES; i++)
		for (const char *const *name = objectives[i]->options; name && *name; name++)
			if ((!o || o == objectives[i]) && strcmp(*name, option) == 0)
				return true;
	return false;
}

double train_metric(const train_progress *p, const char *name)
{
	for (int i = 0; p->objective && p->objective->metrics[i]; i++)
		if (strcmp(p->objective->metrics[i], name) == 0)
			return p->metrics[i];
	return NAN;
}
