/* results.h - the tensors to be written, in the order in which they are added: f32, or i64 where a number has more
 * digits than that. */
#ifndef TESTS_GOLDEN_RESULTS_H
#define TESTS_GOLDEN_RESULTS_H

#include "engine/model/safetensors.h"
#include "engine/tensor/tensor.h"

/* A shape of any rank that a file may have. */
typedef struct extent {
	int rank;
	int64_t dim[SAFETENSORS_MAX_RANK];
} extent;
#define EXTENT(...) ((extent){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}})

extent extent_of(shape s);
int64_t extent_count(extent e);
bool extent_equal(extent a, extent b);
/* "[8, 512, 128]" into buf; returns buf. */
const char *extent_text(extent e, char *buf, size_t size);

/* Starts zeroed; names and data are owned. */
typedef struct results {
	safetensors_item *items;
	int count, capacity;
} results;

/* A zeroed tensor, valid until results_free; NULL when out of memory. */
float *results_add(results *r, extent e, const char *name);
int64_t *results_add_integers(results *r, extent e, const char *name);
void results_free(results *r);

#endif
