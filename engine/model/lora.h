/* lora.h - a low-rank adapter: small matrices beside those of linear layers, learned while the model's weights are
 * fixed (Hu et al. 2021). A layer y = x Wᵀ + b becomes
 *
 *   y + alpha / rank (x Aᵀ) Bᵀ       A [rank, inputs], B [outputs, rank]
 *
 * A starts uniform with the bound 1 / √inputs, B with zeros, so a new adapter changes nothing.
 *
 * Like a state adapter (adapter.h) it is a model whose parameters are these and that reads the weights of its base. The
 * parameters and the files of a folder are those of PEFT:
 *
 *   base_model.model.MODULE.lora_A.weight [rank, inputs]
 *   base_model.model.MODULE.lora_B.weight [outputs, rank]
 *   adapter_config.json             "r", "lora_alpha", "target_modules", …
 *   adapter_model.safetensors
 *
 * MODULE is the name of a layer's matrix without ".weight". Tables and heads have none (parameter_spec.hidden).
 *
 * Sessions with different adapters share a step (forward_spec.adapters). Their adapters are LORA_ENTRIES entries, and
 * each token has the number of its entry; entry 0 is empty. Their numbers are in the strips of a bank. A strip has a
 * row of A and one of Bᵀ, times alpha / rank, for each linear layer (op_lora). An entry has a strip for each of its
 * rank, in any place. */
#ifndef ENGINE_MODEL_LORA_H
#define ENGINE_MODEL_LORA_H

#include "engine/base/manifest.h"
#include "engine/model/builder.h"
#include "engine/model/model.h"

enum { LORA_ENTRIES = 65, LORA_STRIPS = 512 };

#define LORA_CONFIG_FILE "adapter_config.json"
enum { LORA_CONFIG_BYTES = 4 << 20 }; /* the most that is read */
#define LORA_FILE "adapter_model.safetensors"

typedef struct lora_options {
	int64_t rank;    /* 1 … LORA_MAX_RANK */
	double alpha;    /* above 0, at most LORA_MAX_ALPHA */
	json_t *targets; /* array of names: MODULE, or its end after a dot; borrowed. NULL: all linear layers */
} lora_options;

#define LORA_MAX_ALPHA 1e4

/* Return the options in {"rank", "alpha", "targets"?}; they borrow its targets. */
lora_options lora_options_of(const json_t *json);
/* Create an adapter of `base`, which is borrowed, with initial values from `seed`. STATUS_INVALID names the option:
 * "rank", "alpha", "targets". STATUS_UNSUPPORTED "targets": the layer does not compute such a product. */
status model_new_lora(model **out, model *base, const lora_options *o, uint64_t seed, error *err);
/* Check options for a configuration in the same way, and that sessions of the model can share steps. */
status lora_check(const architecture *a, const json_t *config, const lora_options *o, error *err);
/* Return the options of a low-rank adapter; NULL: the model is none. */
const lora_options *model_lora(const model *m);

/* Read the options of adapter_config.json; they borrow its targets. STATUS_INVALID names the key: it is not one of a
 * low-rank adapter, or changes the equation above. */
status lora_read_config(lora_options *o, const json_t *config, error *err);
/* Write adapter_config.json of an adapter to an existing folder, atomically. */
status lora_write_config(const model *adapter, const char *folder, error *err);
/* Open an adapter's folder. about: its manifest, or NULL. Errors also as for model_new_lora and adapter_read. */
status lora_open(model **out, model *base, const char *folder, const manifest *about, error *err);

/* Set what the linear layers of a graph need; scale: alpha / rank if the adapter's matrices are parameters. */
void lora_begin(builder *b, float scale);
/* Append the adapters of a layer: y = x Wᵀ + b of the matrix of this name. */
value lora_layer(const builder *b, value x, value y, const char *matrix);

/* --- the bank ------------------------------------------------------------------------- */

#define LORA_BANK "adapters.bank"     /* [LORA_STRIPS, lora_strip_floats] */
#define LORA_RANKS "adapters.ranks"   /* [LORA_ENTRIES, parts] */
#define LORA_PLACES "adapters.strips" /* [LORA_ENTRIES, LORA_MAX_RANK]: strips of an entry */

/* Return the floats of a strip, and the linear layers. */
int64_t lora_strip_floats(const model *base);
int64_t lora_parts(const model *base);
/* STATUS_UNSUPPORTED "model": sessions cannot have adapters, since the model has rows that are no tokens, or none. */
status lora_check_sessions(const model *base, error *err);
/* An adapter in host memory, as strips. Immutable. */
typedef struct lora_image lora_image;
status lora_image_new(lora_image **out, const model *adapter, error *err);
void lora_image_free(lora_image *i); /* any thread; NULL is legal */
uint64_t lora_image_hash(const lora_image *i);
size_t lora_image_bytes(const lora_image *i);
int64_t lora_image_rank(const lora_image *i);
/* Device memory of a bank. */
typedef struct lora_tables {
	float *bank;
	int32_t *ranks, *places;
} lora_tables;
/* Write it to an entry, and to these strips, as many as its rank. STATUS_DEVICE. */
status lora_image_write(const lora_image *i, backend *b, const lora_tables *to, int entry, const int32_t *strips);

#endif
