/* reference.h - the log-probabilities of a run's records before its first step.
 *
 * For every row of a record: the sum over the row's labels, by the model that the run starts from. An objective on
 * preferences compares the model with them (objective.h). They are computed once, and kept in checkpoints. */
#ifndef ENGINE_TRAIN_REFERENCE_H
#define ENGINE_TRAIN_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/manifest.h"

enum { REFERENCE_TRAIN, REFERENCE_VALID, REFERENCE_SETS };

typedef struct reference {
	int64_t numbers[REFERENCE_SETS]; /* records · rows */
	float *sums[REFERENCE_SETS];     /* [numbers], by the record's number in its dataset */
	bool complete;
} reference;

/* Create one that is not complete. STATUS_NOMEM. */
status reference_new(reference **out, int64_t train, int64_t valid, error *err);
void reference_free(reference *r);

/* Write a complete one to a safetensors file: "train" and, with validation data, "valid". */
status reference_write(const reference *r, const char *path, error *err);
/* STATUS_CORRUPT: numbers are missing. STATUS_STORAGE as for safetensors_open_verified. */
status reference_read(reference *r, const char *path, const manifest *about, error *err);

#endif
