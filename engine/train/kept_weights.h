/* kept_weights.h - a copy of a model's trained weights on the host. With keep_best it has the weights of the evaluation
 * with the lowest loss, with which the run ends. */
#ifndef ENGINE_TRAIN_KEPT_WEIGHTS_H
#define ENGINE_TRAIN_KEPT_WEIGHTS_H

#include "engine/base/manifest.h"
#include "engine/model/model.h"

typedef struct kept_weights kept_weights;

/* Borrows m. STATUS_NOMEM. */
status kept_weights_new(kept_weights **out, const model *m);
void kept_weights_free(kept_weights *b);
/* Copy the model's weights from the device, and back to it. */
status kept_weights_take(kept_weights *b);
status kept_weights_use(const kept_weights *b);
/* Write a safetensors file with "weights", in the layout of the trained part of the arena. */
status kept_weights_write(const kept_weights *b, const char *path, error *err);
/* STATUS_CORRUPT: wrong number of weights. STATUS_STORAGE as for safetensors_open_verified. */
status kept_weights_read(kept_weights *b, const char *path, const manifest *about, error *err);

#endif
