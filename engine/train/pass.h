/* pass.h - one batch of records through the model: a plan and its inputs.
 *
 * Records are numbered without end: record q of a dataset of n is record q mod n of
 * epoch ⌊q / n⌋. So a position in the data is one number, and batches run over the end of
 * an epoch. */
#ifndef ENGINE_TRAIN_PASS_H
#define ENGINE_TRAIN_PASS_H

#include "engine/train/objective.h"

typedef struct pass pass;

/* The forward and backward of a training batch of o->objective. */
forward_spec pass_training_spec(const train_options *o, const model_dims *d, int64_t batch);
/* For o->objective; the options stay. spec: a forward with loss over batch × length tokens; what the objective's ports
 * need is added. gradients: as in model_plan. */
status pass_new(pass **out, const model *m, const train_options *o, const forward_spec *spec, float *gradients,
                error *err);
void pass_free(pass *p);

plan *pass_plan(const pass *p);

/* Row b < count, which is at most the batch, holds record first + b · stride. Rows that are left over count for
 * nothing. */
typedef struct pass_rows {
	int64_t first, stride, count;
	bool begin; /* no row continues what its lane (carry.h) has read before */
} pass_rows;

/* Put records in place. shuffle: the seed for dataset_record, and errors are its own. */
status pass_load(pass *p, const dataset *d, uint64_t shuffle, pass_rows rows, error *err);
/* The same in host memory only: what pass_labels needs. */
status pass_read(pass *p, const dataset *d, uint64_t shuffle, pass_rows rows, error *err);
/* [batch]: which of these rows continue what their lanes have read before. */
const bool *pass_continues(const pass *p);
/* Labels of the rows that were put in place or read last. */
int64_t pass_labels(const pass *p);
/* Set the random numbers of this run (nothing happens without dropout): those of a part of the batch of a step, parts
 * of equal size, of which the first is 0. */
status pass_seed(pass *p, uint64_t seed, uint32_t step, uint32_t part);
/* Where a run leaves its mean loss, on the device. */
const float *pass_loss(const pass *p);
/* After a run: the mean loss and the number of labels it is the mean of. */
status pass_result(pass *p, double *loss, double *count);

#endif
