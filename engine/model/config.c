/* config.c - unknown keys are checked first, so a misspelt key is reported instead of silently using its default. */
#include "engine/base/choice.h"
#include "engine/model/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_PARAMETERS ((int64_t)1 << 34)

/* Keys that the reference ecosystem writes to any model's config.json. They describe how to load or prompt a model, not
 * its computation, and are ignored. */
static const char *const bookkeeping[] = {
    "add_cross_attention",
    "architectures",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    CONFIG_CHAT,
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    CONFIG_START,
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    CONFIG_MASK,
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tie_word_embeddings",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
    "xla_device",
    NULL,
};

static bool listed(const char *key, const char *const *keys)
{
	for (; *keys; keys++)
		if (strcmp(key, *keys) == 0)
			return true;
	return false;
}

void config_fail(config_reader *r, const char *key, const char *format, ...)
{
	if (r->status != STATUS_OK)
		return;
	char message[sizeof r->err->message];
	va_list args;
	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	r->status = error_set(r->err, STATUS_INVALID, key, "%s", message);
}

config_reader config_begin(const json_t *json, const architecture *a, const char *const *keys, error *err)
{
	config_reader r = {json, err, STATUS_OK};
	if (!json_is_object(json)) {
		config_fail(&r, NULL, "a model's configuration must be a JSON object");
		return r;
	}
	const json_t *type = json_object_get(r.json, "model_type");
	const char *text = json_string_value(type);
	if (type && (!text || (strcmp(text, a->model_type) != 0 && strcmp(text, a->name) != 0)))
		config_fail(&r, "model_type", "model_type must be \"%s\"", a->model_type);
	/* jansson's signature lacks the const; the iterator does not change the object. */
	json_t *object = (json_t *)(uintptr_t)json;
	for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
		const char *key = json_object_iter_key(i);
		bool ours = strcmp(key, "model_type") == 0 || strcmp(key, CONFIG_TRAINED) == 0;
		if (key[0] != '_' && !ours && !listed(key, keys) && !listed(key, bookkeeping)) {
			char meant[80];
			choice_suggest(key, keys, meant, sizeof meant);
			config_fail(&r, key, "\"%.60s\" is not a configuration key of the architecture %s%s", key,
			            a->name, meant);
		}
	}
	return r;
}

int64_t config_integer(config_reader *r, const char *key, int64_t fallback, int64_t min, int64_t max)
{
	const json_t *json = json_object_get(r->json, key);
	if (r->status != STATUS_OK || !json)
		return fallback;
	int64_t x = json_integer_value(json);
	if (json_is_integer(json) && x >= min && x <= max)
		return x;
	config_fail(r, key, "%s must be an integer from %" PRId64 " to %" PRId64, key, min, max);
	return fallback;
}

double config_number(config_reader *r, const char *key, double fallback, double min, double max)
{
	const json_t *json = json_object_get(r->json, key);
	if (r->status != STATUS_OK || !json)
		return fallback;
	double x = json_number_value(json);
	if (json_is_number(json) && x >= min && x <= max)
		return x;
	config_fail(r, key, "%s must be a number from %g to %g", key, min, max);
	return fallback;
}

bool config_bool(config_reader *r, const char *key, bool fallback)
{
	const json_t *json = json_object_get(r->json, key);
	if (r->status != STATUS_OK || !json)
		return fallback;
	if (json_is_boolean(json))
		return json_is_true(json);
	config_fail(r, key, "%s must be true or false", key);
	return fallback;
}

/* Check that there is one name for each of n classes. */
static void check_class_names(config_reader *r, const json_t *names, int64_t n)
{
	json_t *seen = json_object();
	char key[32];
	if (!json_is_object(names) || (int64_t)json_object_size(names) != n)
		config_fail(r, "id2label", "id2label must be an object with %" PRId64 " names", n);
	for (int64_t i = 0; seen && r->status == STATUS_OK && i < n; i++) {
		snprintf(key, sizeof key, "%" PRId64, i);
		const char *name = json_string_value(json_object_get(names, key));
		if (!name || !name[0])
			config_fail(r, "id2label", "id2label must have a name \"%s\", a string that is not empty", key);
		else if (json_object_get(seen, name))
			config_fail(r, "id2label", "id2label has the name \"%.100s\" twice", name);
		else if (json_object_set_new(seen, name, json_true()) != 0)
			r->status = error_set(r->err, STATUS_NOMEM, NULL, "out of memory");
	}
	if (!seen && r->status == STATUS_OK)
		r->status = error_set(r->err, STATUS_NOMEM, NULL, "out of memory");
	json_decref(seen);
}

int64_t config_classes(config_reader *r, int64_t max)
{
	const json_t *names = json_object_get(r->json, "id2label");
	int64_t named = (int64_t)json_object_size(names);
	int64_t n = config_integer(r, "num_labels", named > 0 ? named : 2, 1, max);
	if (names && r->status == STATUS_OK)
		check_class_names(r, names, n);
	const json_t *problem = json_object_get(r->json, "problem_type");
	const char *kind = json_string_value(problem);
	if (problem && !json_is_null(problem) && (!kind || strcmp(kind, "single_label_classification") != 0))
		config_fail(r, "problem_type",
		            "problem_type must be \"single_label_classification\": a text has one class of several");
	return n;
}

void config_check_heads(config_reader *r, const model_dims *d, const char *heads, const char *hidden)
{
	if (d->hidden % d->heads != 0)
		config_fail(r, heads, "%s must divide %s", heads, hidden);
}

void config_check_parameters(config_reader *r, int64_t count)
{
	if (count > MAX_PARAMETERS)
		config_fail(r, NULL, "the configuration is too large: more than %lld parameters",
		            (long long)MAX_PARAMETERS);
}

int64_t config_trained(config_reader *r, int64_t fallback, int64_t max)
{
	return config_integer(r, CONFIG_TRAINED, fallback, 1, max);
}

static int config_choose(config_reader *r, const char *key, const char *const *choices, int fallback)
{
	const json_t *json = json_object_get(r->json, key);
	const char *name = json ? json_string_value(json) : choices[fallback];
	for (int i = 0; name && choices[i]; i++)
		if (strcmp(name, choices[i]) == 0)
			return i;
	error refused = ERROR_INIT;
	choice_refuse(&refused, key, name, choices);
	config_fail(r, key, "%s %s", key, refused.message);
	return fallback;
}

int config_choice(config_reader *r, const char *key, const char *const *choices)
{
	return config_choose(r, key, choices, 0);
}

const char *const config_cache_dtypes[] = {"f32", "bf16", NULL};

bool config_positions(config_reader *r, bool fallback)
{
	static const char *const kinds[] = {"none", "learned", NULL};
	return config_choose(r, "position_embedding", kinds, fallback) == 1;
}

bool config_set_missing(json_t *json, const char *key, json_t *fallback)
{
	if (!json_object_get(json, key))
		return json_object_set_new(json, key, fallback) == 0;
	json_decref(fallback);
	return true;
}

bool config_keep(json_t *to, const json_t *from)
{
	static const char *const keys[] = {CONFIG_CHAT, CONFIG_MASK, CONFIG_START};
	bool whole = true;
	for (size_t i = 0; i < sizeof keys / sizeof *keys && whole; i++) {
		json_t *kept = json_object_get(from, keys[i]);
		whole = !kept || json_object_set(to, keys[i], kept) == 0;
	}
	return whole;
}

status config_token(const json_t *json, const char *key, int64_t inputs, int64_t *out, error *err)
{
	const json_t *id = json_object_get(json, key);
	*out = -1;
	if (!id || json_is_null(id))
		return STATUS_OK;
	if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= inputs)
		return error_set(err, STATUS_INVALID, key, "%s must be one of the model's %" PRId64 " token ids", key,
		                 inputs);
	*out = json_integer_value(id);
	return STATUS_OK;
}

bool config_set_size(json_t *json, const char *key, int64_t n)
{
	return n == 0 || config_set_missing(json, key, json_integer(n));
}

bool config_set_dropout(json_t *json, const char *key, double p)
{
	return p < 0 || config_set_missing(json, key, json_real(p));
}

bool config_set_positions(json_t *json, const char *key, const model_size *size)
{
	if (!config_set_size(json, key, size->positions))
		return false;
	json_int_t positions = json_integer_value(json_object_get(json, key));
	return size->length >= positions || config_set_size(json, CONFIG_TRAINED, size->length);
}
