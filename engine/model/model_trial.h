/* model_trial.h - checks that a configuration can run by building the graphs that requests and jobs will need.
 *
 * A trial needs no weights and no device, and takes as long as building a few graphs. A configuration that passes can
 * still be refused for features that it lacks (STATUS_UNSUPPORTED), such as sessions of an encoder. */
#ifndef ENGINE_MODEL_MODEL_TRIAL_H
#define ENGINE_MODEL_MODEL_TRIAL_H

#include "engine/model/model.h"

/* Maximum bytes of one session, or of one step, besides MODEL_TRIAL_SHARE times the weights. */
enum { MODEL_TRIAL_BYTES = 256 << 20, MODEL_TRIAL_SHARE = 4 };

/* Build every graph that serving, embedding, explaining and training this model can need, at small sizes.
 * STATUS_INVALID: one cannot be built, or a session or step would need too much memory; the message gives the size. m
 * may come from model_describe. */
status model_trial(const model *m, error *err);
/* Check a configuration in the same way, and `training`, the forward of a job (NULL: none). */
status model_trial_config(const architecture *a, const json_t *config, const forward_spec *training, error *err);

#endif
