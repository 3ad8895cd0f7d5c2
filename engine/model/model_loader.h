/* model_loader.h - reading a model folder in steps, so that one thread can load a model and do other work in between.
 *
 *   model_loader *l;
 *   TRY(model_loader_new(&l, folder, weights, b, err));
 *   while (s == STATUS_OK && !done)
 *       s = model_loader_step(l, &done, err);      // about a megabyte of weights
 *   model *m = s == STATUS_OK ? model_loader_take(l) : NULL;
 *   model_loader_free(l);
 *
 * Where the folder has a manifest, everything is verified before it is used: damage is STATUS_STORAGE. The files are
 * read with read(2), so a file that is truncated while it is read is an error, not a SIGBUS. A loader is
 * used on the thread of its backend; without a backend, by one thread at a time. With a backend it has threads of its
 * own, which read ahead; their number changes no bit and no error. */
#ifndef ENGINE_MODEL_MODEL_LOADER_H
#define ENGINE_MODEL_MODEL_LOADER_H

#include "engine/model/model.h"

typedef struct model_loader model_loader;

/* Read the configuration and the names and shapes of all tensors; errors as for model_open. b NULL: only check the
 * weights; there is no model to take. On error *out is NULL. */
status model_loader_new(model_loader **out, const char *folder, dtype weights, backend *b, error *err);
/* Upload the next piece, after waiting for it to be read and converted. *done: it was the last. After an error only
 * model_loader_free is legal. */
status model_loader_step(model_loader *l, bool *done, error *err);
/* Return the model, which the caller then owns, once all is done. */
model *model_loader_take(model_loader *l);
/* Free the loader, and the model unless it was taken. NULL is legal. */
void model_loader_free(model_loader *l);

#endif
