/* weight_average.h - an average of a model's weights over the steps of a run (Polyak and Juditsky 1992, with
 * exponentially falling weights). It is a second model on the same backend:
 *
 *   a = a + (1 - d_n) (w - a) after step n,   d_n = min(decay, (1 + n) / (10 + n))
 *
 * It starts as the weights; the bound on d_n lets it forget them during the first steps. */
#ifndef ENGINE_TRAIN_WEIGHT_AVERAGE_H
#define ENGINE_TRAIN_WEIGHT_AVERAGE_H

#include "engine/model/model.h"

typedef struct weight_average weight_average;

/* Borrows m. */
status weight_average_new(weight_average **out, const model *m, double decay, error *err);
void weight_average_free(weight_average *a);
/* Return the averaged model, which belongs to `a`. The caller updates its bf16 copy, if it has one. */
model *weight_average_model(const weight_average *a);
/* Update after step n (from 1). An asynchronous backend runs this after the work issued before. */
status weight_average_take(weight_average *a, int64_t n);

#endif
