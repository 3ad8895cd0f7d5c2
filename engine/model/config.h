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

#define CONFIG_TRAINED "trained_length" /* a key of every architecture */

typedef struct config_reader {
	const json_t *json; /* borrowed */
	error *err;
	status status;
} config_reader;

/* Checks that json is an object, that "model_type" (if there) names the architecture,
 * and that every other key is in `keys` (NULL-terminated), begins with "_", or is one
 * that the Hugging Face ecosystem adds to every config.json. CONFIG_TRAINED need not be among them. */
config_reader config_begin(const json_t *json, const architecture *a, const char *const *keys, error *err);

/* The value of a key, or the fallback when it is absent. Errors: wrong type, not
 * within min…max. */
int64_t config_integer(config_reader *r, const char *key, int64_t fallback, int64_t min, int64_t max);
double config_number(config_reader *r, const char *key, double fallback, double min, double max);
bool config_bool(config_reader *r, const char *key, bool fallback);

/* Errors, for d of an architecture under its own keys: heads that do not divide the hidden width; more parameters than
 * a model may have. */
void config_check_heads(config_reader *r, const model_dims *d, const char *heads, const char *hidden);
void config_check_parameters(config_reader *r, int64_t count);

/* "trained_length", the tokens of the longest sequence that a model was trained on: up to `max`, by default `fallback`.
 */
int64_t config_trained(config_reader *r, int64_t fallback, int64_t max);

/* The index of a key's value in choices (NULL-terminated), of which the first is the default. */
int config_choice(config_reader *r, const char *key, const char *const *choices);
/* "position_embedding": does the model have a table of positions ("learned") or none ("none")? */
bool config_positions(config_reader *r, bool fallback);

/* The classes of a head: "num_labels", 1…max, by default as many as "id2label" names, or 2. Errors: names that are not
 * one for each class, not empty and different from each other (class_names.h). */
int64_t config_classes(config_reader *r, int64_t max);

/* Give a key of an object a value (taken over, also on failure) unless it has one. False: out of memory. */
bool config_set_missing(json_t *json, const char *key, json_t *fallback);

/* The same for a number of a model's size, where it is given (not 0; a dropout: not negative). */
bool config_set_size(json_t *json, const char *key, int64_t n);
bool config_set_dropout(json_t *json, const char *key, double p);
/* The positions, under the architecture's key, and CONFIG_TRAINED. */
bool config_set_positions(json_t *json, const char *key, const model_size *size);

/* Keys of every architecture, no part of what a config_read reads: how conversations become text
 * (engine/text/chat_template.h), and the ids of the tokens that stand for one to be guessed and that a decoder's
 * sequences begin with. Copy them to a configuration that a config_write has made. False: out of memory. */
#define CONFIG_CHAT "chat_template"
#define CONFIG_MASK "mask_token_id"
#define CONFIG_START "decoder_start_token_id"
bool config_keep(json_t *to, const json_t *from);
/* The token id of such a key, of a model of so many ids; *out is -1 where it is absent or null. STATUS_INVALID names
 * the key. */
status config_token(const json_t *json, const char *key, int64_t inputs, int64_t *out, error *err);

/* Remember an error of the caller's own, unless there is one already. */
void config_fail(config_reader *r, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
