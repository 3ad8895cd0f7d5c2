/* config.h - reading the keys of a config.json with types, ranges and defaults.
 *
 *   config_reader r = config_begin(json, &architecture_additive, keys, err);
 *   c->heads = config_integer(&r, "n_heads", 4, 1, c->hidden);
 *   …
 *   return r.status;
 *
 * A reader remembers its first error, in r.err with the key as param, and reads
 * defaults after it, so keys are read in sequence without tests in between. */
#ifndef ENGINE_MODEL_CONFIG_H
#define ENGINE_MODEL_CONFIG_H

#include <stdbool.h>

#include "engine/model/architecture.h"

#define CONFIG_TRAINED "trained_length" /* common to all architectures */

typedef struct config_reader {
	const json_t *json; /* borrowed */
	error *err;
	status status;
} config_reader;

/* Start reading. Check that json is an object and that "model_type" (if present) names the architecture. Every other
 * key must be in `keys` (NULL-terminated), begin with "_", or be one that the Hugging Face ecosystem adds to every
 * config.json. CONFIG_TRAINED need not be in `keys`. */
config_reader config_begin(const json_t *json, const architecture *a, const char *const *keys, error *err);

/* Return the value of a key, or the fallback if it is absent. Errors: wrong type, not within min…max. */
int64_t config_integer(config_reader *r, const char *key, int64_t fallback, int64_t min, int64_t max);
double config_number(config_reader *r, const char *key, double fallback, double min, double max);
bool config_bool(config_reader *r, const char *key, bool fallback);

/* Errors, naming the architecture's own keys: the heads do not divide the hidden width; the model exceeds the maximum
 * number of parameters. */
void config_check_heads(config_reader *r, const model_dims *d, const char *heads, const char *hidden);
void config_check_parameters(config_reader *r, int64_t count);

/* Read "trained_length", the tokens of the longest training sequence: at most `max`, default `fallback`. */
int64_t config_trained(config_reader *r, int64_t fallback, int64_t max);

/* Return the index of a key's value in choices (NULL-terminated); the first is the default. */
int config_choice(config_reader *r, const char *key, const char *const *choices);
/* "cache_dtype" is the type of the keys and values that sessions keep in the ring of softmax_stream. It belongs to the
 * model, since the layout of a state is fixed for the model's life. Its choices: "f32" (the default) and "bf16". */
#define CONFIG_CACHE "cache_dtype"
extern const char *const config_cache_dtypes[];
enum { CONFIG_CACHE_F32, CONFIG_CACHE_BF16 };
/* Read "position_embedding": true if the model has a table of positions ("learned"), false for "none". */
bool config_positions(config_reader *r, bool fallback);

/* Read the number of classes of a head: "num_labels", 1…max, by default the number of names in "id2label", or 2.
 * Errors: the names are not one for each class, non-empty and distinct (class_names.h). */
int64_t config_classes(config_reader *r, int64_t max);

/* Set a key of an object unless it exists; the value is taken over, also on failure. False: out of memory. */
bool config_set_missing(json_t *json, const char *key, json_t *fallback);

/* Set a number of a model's size in the same way, if it is given (not 0; for a dropout, not negative). */
bool config_set_size(json_t *json, const char *key, int64_t n);
bool config_set_dropout(json_t *json, const char *key, double p);
/* Set the positions, under the architecture's key, and CONFIG_TRAINED. */
bool config_set_positions(json_t *json, const char *key, const model_size *size);

/* Keys that all architectures share and that config_read does not read: the chat template
 * (engine/text/chat_template.h), and the ids of the mask token and of a decoder's start token. Copy them to a
 * configuration that config_write has made. False: out of memory. */
#define CONFIG_CHAT "chat_template"
#define CONFIG_MASK "mask_token_id"
#define CONFIG_START "decoder_start_token_id"
bool config_keep(json_t *to, const json_t *from);
/* Read the token id of such a key for a model with `ids` token ids; *out is -1 if it is absent or null. STATUS_INVALID
 * names the key. */
status config_token(const json_t *json, const char *key, int64_t inputs, int64_t *out, error *err);

/* Record an error of the caller, unless one is recorded. */
void config_fail(config_reader *r, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
