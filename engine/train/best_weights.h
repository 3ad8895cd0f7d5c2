/* best_weights.h - the trained weights as they were after one evaluation, on the host: those of the lowest validation
 * loss, which a run with keep_best ends with. */
#ifndef ENGINE_TRAIN_BEST_WEIGHTS_H
#define ENGINE_TRAIN_BEST_WEIGHTS_H

#include "engine/base/manifest.h"
#include "engine/model/model.h"

typedef struct best_weights best_weights;

/* Borrows m. STATUS_NOMEM. */
status best_weights_new(best_weights **out, const model *m);
void best_weights_free(best_weights *b);
/* Copy the model's weights out of the device, and back. */
status best_weights_keep(best_weights *b);
status best_weights_use(const best_weights *b);
/* As a safetensors file: "weights", laid out like the trained part of the arena. */
status best_weights_write(const best_weights *b, const char *path, error *err);
/* STATUS_CORRUPT: it has not so many. STATUS_STORAGE as safetensors_open_verified. */
status best_weights_read(best_weights *b, const char *path, const manifest *about, error *err);

#endif
