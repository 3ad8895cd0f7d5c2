/* whole_reading.h - a sequence read all at once, by the parallel form, for a model whose tokens depend on later ones.
 *
 * It runs in slices, of nodes of its plan and then of tokens of its log, so that other work has its turn in between.
 * Executor thread only. */
#ifndef ENGINE_SERVE_WHOLE_READING_H
#define ENGINE_SERVE_WHOLE_READING_H

#include "engine/serve/served_model.h"

/* What one slice takes, about: at least one node, or WHOLE_READING_TOKENS of the log. */
enum { WHOLE_READING_SLICE_NS = 3000000, WHOLE_READING_TOKENS = 64 };

typedef struct whole_reading whole_reading;

/* Get ready to read n tokens (copied). log: [n][log_floats], stays with the caller until the reading is freed; its rows
 * are filled in order. STATUS_NOMEM and what model_plan says. */
status whole_reading_new(whole_reading **out, served_model *m, const int32_t *tokens, int64_t n, float *log,
                         error *err);
void whole_reading_free(whole_reading *w);
/* The next slice. *done: all has been read. STATUS_DEVICE. */
status whole_reading_step(whole_reading *w, bool *done);

#endif
