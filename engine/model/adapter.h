/* adapter.h - a state adapter: the state from which a model reads a text, learned while the model's weights are fixed.
 *
 * In each layer it is the state after one token that no text has. In additive attention (mixer_additive) that token
 * stays in the mean of every later one, with the sums s and z of the text and the weight e^{l_0}:
 *
 *   g = (s + e^{l_0} g_0) / (z + e^{l_0})
 *
 *   layers.L.ROUND.initial.score [heads]     l_0     ROUND: query, key
 *   layers.L.ROUND.initial.mean [hidden]     g_0
 *
 * A layer with a window forgets it, so it has none. Linear attention (mixer_linear) has as many such tokens as a head has
 * channels. Its sums S and z start from theirs:
 *
 *   layers.L.initial.keys, layers.L.initial.values [channels of a head, hidden]
 *
 * Attention that forgets (mixer_forgetting) has the recurrence
 *
 *   l_t = log(e^{l_{t-1} + f_t} + e^{a_t}),   g_t = g_{t-1} + e^{a_t - l_t} (v_t - g_{t-1})
 *
 * and starts from l_0 and g_0, instead of the empty sum:
 *
 *   layers.L.initial.score [heads]      l_0
 *   layers.L.initial.mean [hidden]      g_0
 *
 * An adapter is a model (model_new_adapter) whose parameters are these. It reads the weights of its base, which has
 * neither a copy nor gradients. In the parallel form the state is a row before each sequence, or op_additive_initial.
 * In the recurrent form it is in the slot before the first token (adapter_slot), and PORT_STARTED says so. A step
 * therefore costs the same with and without, and its rows may have different adapters. */
#ifndef ENGINE_MODEL_ADAPTER_H
#define ENGINE_MODEL_ADAPTER_H

#include "engine/base/manifest.h"
#include "engine/model/model.h"

/* STATUS_OK if a model can have an adapter. STATUS_UNSUPPORTED names the attention that has no initial state. */
status adapter_check(const model *base, error *err);

/* Check a configuration in the same way, which may have no weights yet. */
status adapter_check_architecture(const architecture *a, const void *config, error *err);

/* Name of its file in a folder. */
#define ADAPTER_FILE "adapter.safetensors"
/* Return the name of the file of an adapter of any kind: ADAPTER_FILE or LORA_FILE. The functions below are for all
 * kinds. */
const char *adapter_file(const model *adapter);

/* Write its tensors to that file of an existing folder, atomically, after LORA_CONFIG_FILE of a low-rank adapter. */
status adapter_save(const model *adapter, const char *folder, error *err);
/* Read them, or only check them for an adapter that is only described. about: the manifest of the file's folder, or
 * NULL. STATUS_INVALID names the tensor: missing, extra, misshapen, or with a number that is not finite; the adapter is
 * unchanged. STATUS_CORRUPT, STATUS_STORAGE as for safetensors_open_verified. */
status adapter_read(model *adapter, const char *path, const manifest *about, error *err);
/* Copy the arena to host memory, which the caller frees. */
status adapter_download(const model *adapter, float **out, error *err);
/* Write the slot from which a session with this adapter starts: slot [model_state_floats], in host memory.
 * STATUS_NOMEM. STATUS_DEVICE. */
status adapter_slot(const model *adapter, float *slot, error *err);

#endif
