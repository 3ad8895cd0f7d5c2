/* model_files.h - names of a model's files beside those of model_files.def. */
#ifndef PROTO_MODEL_FILES_H
#define PROTO_MODEL_FILES_H

#define MODEL_WEIGHTS_INDEX "model.safetensors.index.json" /* which of several files holds which tensor */
#define MODEL_SUMS "SHA256SUMS"                            /* as sha256sum(1) writes it; compared, and not kept */

#endif
