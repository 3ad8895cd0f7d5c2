/* explain_rows.h - functions shared by explainers whose weights are a softmax over scores of single keys. */
#ifndef ENGINE_MODEL_MIXERS_EXPLAIN_ROWS_H
#define ENGINE_MODEL_MIXERS_EXPLAIN_ROWS_H

#include "engine/model/explainer.h"

/* Σ_d a_d b_d in double. */
double explain_dot(const float *a, const float *b, int64_t n);
/* Convert scores to weights, in place. */
void explain_softmax(double *scores, int64_t n);

#endif
