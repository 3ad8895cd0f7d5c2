/* served_part.h - one plan that reads tokens and then samples, with its inputs and outputs.
 *
 * A step of a served model runs on one part, or is cut into several parts that run in parallel, each with some of the
 * rows. Parts share only the weights and the states; each part touches only the states of its rows.
 *
 * Executor thread, except served_part_run. */
#ifndef ENGINE_SERVE_SERVED_PART_H
#define ENGINE_SERVE_SERVED_PART_H

#include "engine/serve/served_model.h"

/* Rows, tokens in all and kind. prompt: rows of any lengths, else of one token. */
typedef struct served_shape {
	int64_t rows, tokens;
	bool prompt, log;
} served_shape;

typedef struct served_part served_part;

/* Size of a device block for the inputs and sampled tokens of a part. Parts that share a block never run at the same
 * time. */
size_t served_part_block_bytes(const served_model *m);

/* Compile the plan for steps of at most this shape. */
status served_part_new(served_part **out, const served_model *m, const served_shape *most, char *block, error *err);
void served_part_free(served_part *p);

/* Prepare to sample with `adjusts` rows of tallies in all. STATUS_NOMEM. */
status served_part_prepare(served_part *p, int64_t adjusts, error *err);
/* Set the rows of the next run, which must fit; draws [n_rows] or NULL: nothing is sampled. Both are borrowed until it
 * has run. */
status served_part_load(served_part *p, const served_model *m, const served_row *rows, int n_rows,
                        const sample_row *draws);
/* Any thread, one at a time. */
status served_part_run(served_part *p);
/* Fetch the log of the rows that have one. */
status served_part_log(const served_part *p);
/* The sampled tokens, [rows] on the device. */
const int32_t *served_part_sampled(const served_part *p);
/* Device address of a row's logits, valid until the next run. */
const float *served_part_logits(const served_part *p, int row);

#endif
