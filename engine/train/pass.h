/* pass.h - one batch of blocks through the model: a plan and its inputs.
 *
 * Blocks are numbered without end: block q of a dataset of n blocks is block q mod n of
 * epoch ⌊q / n⌋. So a position in the data is one number, and batches run over the end of
 * an epoch. */
#ifndef ENGINE_TRAIN_PASS_H
#define ENGINE_TRAIN_PASS_H

#include "engine/model/model.h"
#include "engine/text/dataset.h"

typedef struct pass pass;

/* spec: a forward with loss over batch × length tokens. gradients: as in model_plan. */
status pass_new(pass **out, const model *m, const forward_spec *spec, float *gradients, error *err);
void pass_free(pass *p);

plan *pass_plan(const pass *p);

/* Put blocks first … first + count - 1 (count <= batch) in place; rows that are left
 * over have no labels. shuffle: the seed for dataset_block. */
status pass_load(pass *p, const dataset *d, uint64_t shuffle, int64_t first, int64_t count);
/* Set the random numbers of this run (nothing happens without dropout). */
status pass_seed(pass *p, uint64_t seed, uint32_t step);
/* Where a run leaves its mean loss, on the device. */
const float *pass_loss(const pass *p);
/* After a run: the mean loss and the number of tokens it is the mean of. */
status pass_result(pass *p, double *loss, double *count);

#endif
