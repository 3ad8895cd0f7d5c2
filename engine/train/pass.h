/* pass.h - one batch of records through the model: a plan and its inputs.
 *
 * Records are numbered without end: record q of a dataset of n is record q mod n of epoch ⌊q / n⌋. A position in the
 * data is therefore one number, and batches continue past the end of an epoch. */
#ifndef ENGINE_TRAIN_PASS_H
#define ENGINE_TRAIN_PASS_H

#include "engine/train/objective.h"

typedef struct pass pass;

/* Return the spec of a forward and backward for a training batch of o->objective. batch: in records. */
forward_spec pass_training_spec(const train_options *o, const model_dims *d, int64_t batch);
/* Create a pass for o->objective; the options are borrowed. spec: a forward with loss over batch × length tokens, with
 * objective_rows rows for each record, to which the inputs of the objective are added. gradients: as in model_plan. */
status pass_new(pass **out, const model *m, const train_options *o, const forward_spec *spec, float *gradients,
                error *err);
void pass_free(pass *p);

plan *pass_plan(const pass *p);

/* Record b < count of a batch is first + b · stride of the data. Others are not counted. */
typedef struct pass_rows {
	int64_t first, stride, count;
	bool begin; /* no row continues what its lane (carry.h) has read */
} pass_rows;

/* Load records. shuffle: the seed for dataset_record. Errors are those of dataset_record. */
status pass_load(pass *p, const dataset *d, uint64_t shuffle, pass_rows rows, error *err);
/* Load in host memory only, which is what pass_labels needs. */
status pass_read(pass *p, const dataset *d, uint64_t shuffle, pass_rows rows, error *err);
/* Return [records]: the rows that continue what their lanes have read. */
const bool *pass_continues(const pass *p);
/* Return the number of labels of the rows last loaded or read. */
int64_t pass_labels(const pass *p);
/* Set the random numbers of this run (no effect without dropout). A batch of a step may be divided into equal parts,
 * numbered from 0. */
status pass_seed(pass *p, uint64_t seed, uint32_t step, uint32_t part);
/* Return the device address of a run's mean loss. */
const float *pass_loss(const pass *p);
/* After a run: return the mean loss and the number of labels. */
status pass_result(pass *p, double *loss, double *count);

/* For an objective with `weigh`, whose spec has log_probabilities. */
/* Return the node before which a run stops for pass_weigh; without `weighted`, the number of nodes. */
int pass_stop(const pass *p);
/* After these nodes: add the log-probabilities of each row's labels: sums [records loaded, objective_rows]. */
status pass_sums(pass *p, float *sums);
/* After these nodes: return the mean loss over the records loaded and, if the spec is weighted, write the weights of
 * the labels. reference: of the dataset, by the numbers of the records (reference.h). tally: of an evaluation, or NULL.
 */
status pass_weigh(pass *p, const float *reference, void *tally, double *loss);

#endif
