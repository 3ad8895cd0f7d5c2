/* weight_average.h - an average of a model's weights over the steps of a run (Polyak and Juditsky 1992, with weights
 * that fall exponentially), as a second model beside it on the same backend:
 *
 *   a = a + (1 - d_n) (w - a) after step n,   d_n = min(decay, (1 + n) / (10 + n))
 *
 * It begins as the weights; the bound on d_n lets it leave them behind in the first steps. */
#ifndef ENGINE_TRAIN_WEIGHT_AVERAGE_H
#define ENGINE_TRAIN_WEIGHT_AVERAGE_H

#include "engine/model/model.h"

typedef struct weight_average weight_average;

/* Borrows m. */
status weight_average_new(weight_average **out, const model *m, double decay, error *err);
void weight_average_free(weight_average *a);
/* The averaged model, which goes with `a`. Its bf16 copy, where it has one, is made anew by the caller. */
model *weight_average_model(const weight_average *a);
/* After step n (from 1); an asynchronous backend does it behind what was issued before. */
status weight_average_take(weight_average *a, int64_t n);

#endif
