/* A text or a pair of texts, and its class. Rows are padded, and padding is masked. An evaluation takes the class with
 * the largest logit, the first of equals.
 *
 *   accuracy   share of the records whose class was found
 *   macro_f1   mean of 2 tp / (2 tp + fp + fn) over the classes that occur or were taken
 *   matthews   correlation of taken and true classes (Gorodkin 2004):
 *              (c s - Σ_k p_k t_k) / √((s² - Σ_k p_k²) (s² - Σ_k t_k²)), 0 for 0 / 0;
 *              s records, c of them right, p_k taken for class k, t_k of class k */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/labelled.h"
#include "engine/train/objective.h"

static status classification_check(const dataset *d, const model_dims *dims, const train_options *o, error *err)
{
	(void)o;
	int classes = labelled_class_count(d);
	if (classes == dims->outputs)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "num_labels", "the data has %d labels, the model's head is for %lld",
	                 classes, (long long)dims->outputs);
}

static void classification_make_example(const example *x, void *const *values)
{
	int32_t *label = values[2];
	example_tokens(x, values[0], values[1]);
	*label = x->record ? x->record->label : -1;
}

/* The tally of one class. */
typedef struct class_count {
	int64_t truly, taken, both; /* records of the class, taken for it, and both */
} class_count;

static size_t classification_tally_bytes(const dataset *d)
{
	return (size_t)labelled_class_count(d) * sizeof(class_count);
}

static status classification_tally(evaluation *e, plan *p, int64_t first, int64_t rows)
{
	value logits = port_find(plan_graph(p), PORT_LOGITS);
	shape s = graph_value(plan_graph(p), logits)->shape;
	int64_t classes = shape_last(s);
	class_count *counts = e->tally;
	text_record *r = &e->record;
	float *z = memory_new((size_t)shape_count(s), sizeof *z);
	if (!z)
		return STATUS_NOMEM;
	status read = plan_read(p, logits, z);
	for (int64_t b = 0; b < rows && read == STATUS_OK; b++) {
		int64_t taken = 0;
		for (int64_t k = 1; k < classes; k++)
			taken = z[b * classes + k] > z[b * classes + taken] ? k : taken;
		read = dataset_record(e->data, 0, 0, first + b * e->stride, r, NULL);
		if (read != STATUS_OK)
			break;
		counts[r->label].truly++;
		counts[taken].taken++;
		counts[r->label].both += r->label == taken;
	}
	free(z);
	return read;
}

static void classification_measure(const evaluation *e, double *metrics)
{
	const class_count *counts = e->tally;
	double all = 0, right = 0, f1 = 0, present = 0, chance = 0, taken2 = 0, truly2 = 0;
	for (int k = 0; k < labelled_class_count(e->data); k++) {
		double truly = (double)counts[k].truly, taken = (double)counts[k].taken, both = (double)counts[k].both;
		all += truly;
		right += both;
		present += truly + taken > 0;
		f1 += truly + taken > 0 ? 2 * both / (truly + taken) : 0;
		chance += taken * truly;
		taken2 += taken * taken;
		truly2 += truly * truly;
	}
	double spread = sqrt((all * all - taken2) * (all * all - truly2));
	metrics[0] = right / all;
	metrics[1] = f1 / present;
	metrics[2] = spread > 0 ? (right * all - chance) / spread : 0;
}

/* A guess has correlation 0, and over n records a deviation of 1/√n. */
static bool at_chance(const train_progress *p)
{
	return train_metric(p, "matthews") < 0.1;
}

const objective objective_classification = {
    .name = "classification",
    .model = "linear_encoder",
    .form = &form_classifier,
    .records = RECORD_LABELLED,
    .ports = {PORT_TOKENS, PORT_MASK, PORT_LABELS},
    .n_ports = 3,
    .check = classification_check,
    .example = classification_make_example,
    .metrics = {"accuracy", "macro_f1", "matthews"},
    .measure = classification_measure,
    .at_chance = at_chance,
    .logits = LOGITS_LAST,
    .tally_bytes = classification_tally_bytes,
    .tally = classification_tally,
};
