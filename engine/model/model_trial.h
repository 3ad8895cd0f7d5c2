/* model_trial.h - check that a configuration can run: build the graphs that requests and jobs will ask for.
 *
 * A trial needs no weights and no device, and takes as long as building a few graphs. A configuration that passes can
 * still be refused for what it does not offer (STATUS_UNSUPPORTED), such as sessions of an encoder. */
#ifndef ENGINE_MODEL_MODEL_TRIAL_H
#define ENGINE_MODEL_MODEL_TRIAL_H

#include "engine/model/model.h"

/* Bytes that one session, or one step of it, may need beside MODEL_TRIAL_SHARE times the weights. */
enum { MODEL_TRIAL_BYTES = 256 << 20, MODEL_TRIAL_SHARE = 4 };

/* Build every graph that serving, embedding, explaining and training this model can need, at small sizes.
 * STATUS_INVALID: one of them cannot be built, or a session or a step would need too much memory; the message says how
 * much. m may have been described only. */
status model_trial(const model *m, error *err);
/* The same for a configuration, and for `training`, the forward of a job (NULL: none). */
status model_trial_config(const architecture *a, const json_t *config, const forward_spec *training, error *err);

#endif
