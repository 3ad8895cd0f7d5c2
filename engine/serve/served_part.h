/* served_part.h - one plan that reads tokens and then samples, with its inputs and outputs.
 *
 * A step of a served model runs on one part, or is cut into several that run in parallel, each with some of the rows.
 * Parts share only the weights and the state pool, and each changes only the states of its own rows.
 *
 * Executor thread, except served_part_run. */
#ifndef ENGINE_SERVE_SERVED_PART_H
#define ENGINE_SERVE_SERVED_PART_H

#include "engine/serve/served_model.h"

/* Size and kind of a step. `prompt`: rows of any lengths; otherwise rows of one token. `lora`: rows may have entries.
 */
typedef struct served_shape {
	int64_t rows, tokens;
	bool prompt, log, lora;
} served_shape;

typedef struct served_part served_part;

/* Bytes of the device block for a part's inputs and sampled tokens. Parts that share a block never run at the same
 * time. */
size_t served_part_block_bytes(const served_model *m);

/* Compile a plan for steps of at most this shape. */
status served_part_new(served_part **out, const served_model *m, const served_shape *most, char *block, error *err);
void served_part_free(served_part *p);
/* Return the device memory of its plans. */
size_t served_part_bytes(const served_part *p);

/* Prepare to sample with `adjusts` rows of tallies in total. STATUS_NOMEM. */
status served_part_prepare(served_part *p, int64_t adjusts, error *err);
/* Set the rows of the next run, which must fit. draws [n_rows] is NULL if nothing is sampled. Both are borrowed until
 * the run has ended. */
status served_part_load(served_part *p, const served_model *m, const served_row *rows, int n_rows,
                        const sample_row *draws);
/* Run. Any thread, one at a time. */
status served_part_run(served_part *p);
/* False if the last run failed before it changed a state or logits. */
bool served_part_has_changed(const served_part *p);
/* Copy the log of each row that has one to the host. */
status served_part_log(const served_part *p);
/* Return the device address of the sampled tokens [rows]. */
const int32_t *served_part_sampled(const served_part *p);
/* Return the device address of a row's logits. Valid until the next run. */
const float *served_part_logits(const served_part *p, int row);

#endif
