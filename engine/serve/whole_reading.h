/* whole_reading.h - a sequence read all at once, by the parallel form, for a model whose tokens depend on later ones.
 *
 * It runs in slices, of nodes of its plan and then of tokens of its log, so that other work can run in between.
 * Executor thread only. */
#ifndef ENGINE_SERVE_WHOLE_READING_H
#define ENGINE_SERVE_WHOLE_READING_H

#include "engine/serve/served_model.h"

/* Approximate time of a slice; a slice is at least one node, or WHOLE_READING_TOKENS rows of the log. */
enum { WHOLE_READING_SLICE_NS = 3000000, WHOLE_READING_TOKENS = 64 };

typedef struct whole_reading whole_reading;

/* Prepare to read n tokens (copied). log: [n][log_floats], borrowed until the reading is freed; its rows are filled in
 * order. STATUS_NOMEM and the errors of model_plan. */
status whole_reading_new(whole_reading **out, served_model *m, const int32_t *tokens, int64_t n, float *log,
                         error *err);
void whole_reading_free(whole_reading *w);
/* Run the next slice. *done: all tokens are read and the log is complete. STATUS_DEVICE. */
status whole_reading_step(whole_reading *w, bool *done);

#endif
