/* model_files.h - names of a model's files, in addition to model_files.def. */
#ifndef PROTO_MODEL_FILES_H
#define PROTO_MODEL_FILES_H

#define MODEL_WEIGHTS_INDEX "model.safetensors.index.json" /* maps each tensor to its file */
#define MODEL_SUMS                                                                                                     \
	"SHA256SUMS" /* as sha256sum(1) writes it; verified on import, and not                                         \
	              * kept */

#endif
