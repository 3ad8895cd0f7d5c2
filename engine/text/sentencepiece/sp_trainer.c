/* Training as an API object describes it. */
#include <stdio.h>
#include <string.h>

#include "engine/base/choice.h"
#include "engine/text/sentencepiece/sp_sample.h"
#include "engine/text/sentencepiece/sp_train.h"
#include "engine/text/tokenizer_kind.h"

enum { MAX_VOCAB = 1 << 20, DEFAULT_VOCAB = 8000, SPECIALS = 3 };

static const char *const model_types[] = {"unigram", "bpe", "char", "word", NULL};
static const char *const normalizations[] = {"nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity", NULL};

/* One of the names; the first is the default. */
static status read_name(const json_t *spec, const char *key, const char *const *names, const char **out, error *err)
{
	const json_t *value = json_object_get(spec, key);
	const char *name = json_string_value(value);
	*out = names[0];
	if (!value)
		return STATUS_OK;
	for (int i = 0; name && names[i]; i++)
		if (strcmp(name, names[i]) == 0) {
			*out = names[i];
			return STATUS_OK;
		}
	return choice_refuse(err, key, name, names);
}

static status read_numbers(const json_t *spec, sp_train_options *o, error *err)
{
	const json_t *vocab = json_object_get(spec, "vocab_size"),
	             *coverage = json_object_get(spec, "character_coverage"),
	             *bytes = json_object_get(spec, "byte_fallback");
	int least = SPECIALS + 1 + (json_is_true(bytes) ? 256 : 0);
	json_int_t size = vocab ? json_integer_value(vocab) : DEFAULT_VOCAB;
	*o = (sp_train_options){.vocab_size = (int)size,
	                        .at_most = !vocab,
	                        .character_coverage = coverage ? json_number_value(coverage) : 0.9995,
	                        .byte_fallback = json_is_true(bytes)};
	if (size < least || size > MAX_VOCAB)
		return error_set(err, STATUS_INVALID, "vocab_size", "must be from %d to %d", least, MAX_VOCAB);
	if (!(o->character_coverage >= 0.98 && o->character_coverage <= 1))
		return error_set(err, STATUS_INVALID, "character_coverage", "must be from 0.98 to 1");
	if (bytes && !json_is_boolean(bytes))
		return error_set(err, STATUS_INVALID, "byte_fallback", "must be true or false");
	return STATUS_OK;
}

static status read_spec(const json_t *spec, sp_train_options *o, error *err)
{
	static const char *const keys[] = {"type",          "model_type",   "vocab_size", "character_coverage",
	                                   "normalization", "byte_fallback"};
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)spec, key, value)
	{
		size_t i = 0;
		while (i < sizeof keys / sizeof *keys && strcmp(key, keys[i]) != 0)
			i++;
		if (i == sizeof keys / sizeof *keys)
			return error_set(err, STATUS_INVALID, key, "a SentencePiece model has no option \"%.40s\"",
			                 key);
	}
	TRY(read_numbers(spec, o, err));
	TRY(read_name(spec, "model_type", model_types, &o->model_type, err));
	return read_name(spec, "normalization", normalizations, &o->normalization, err);
}

static status sp_trainer_check(const json_t *spec, error *err)
{
	sp_train_options o;
	return read_spec(spec, &o, err);
}

static int32_t size(const json_t *spec)
{
	sp_train_options o;
	return read_numbers(spec, &o, NULL) == STATUS_OK ? o.vocab_size : 0;
}

static status gather(sp_sample *sample, const text_source *source, error *err)
{
	const char *text;
	size_t bytes;
	for (;;) {
		TRY(source->next(source->context, &text, &bytes, err));
		if (!text)
			return STATUS_OK;
		TRY(sp_sample_add(sample, text, bytes));
	}
}

/* The last number in a text; -1: none. */
static long last_number(const char *text)
{
	long found = -1;
	for (size_t n; *text; text += n)
		if ((n = strspn(text, "0123456789")) > 0)
			found = strtol(text, NULL, 10);
		else
			n = 1;
	return found;
}

/* Nearly all refusals of the library concern the number of pieces. `reason` ends with the number that it allows. */
static status sp_trainer_refuse(const char *reason, error *err)
{
	if (!reason[0])
		return error_set(err, STATUS_NOMEM, NULL, "out of memory for training a tokenizer");
	const long number = last_number(reason);
	if (strstr(reason, "too high") && number > 0)
		return error_set(err, STATUS_INVALID, "vocab_size",
		                 "must be at most %ld, as the text gives no more tokens", number);
	if (strstr(reason, "required_chars") && number > 0)
		return error_set(err, STATUS_INVALID, "vocab_size",
		                 "must be at least %ld for the characters of the text; or lower character_coverage",
		                 number);
	return error_set(err, STATUS_INVALID, strstr(reason, "ocabulary size") ? "vocab_size" : NULL,
	                 "SentencePiece cannot train a tokenizer on this text: %s", reason);
}

static status sp_trainer_train(tokenizer *t, const json_t *spec, const text_source *source, error *err)
{
	sp_sample sample = {0};
	sp_train_options o;
	char *model = NULL, reason[256] = "";
	size_t bytes = 0;
	TRY(read_spec(spec, &o, err));
	status s = gather(&sample, source, err);
	if (s == STATUS_OK && sample.count == 0)
		s = error_set(err, STATUS_INVALID, NULL, "there is no text to train a tokenizer on");
	o.tab = s == STATUS_OK && strncmp(o.normalization, "nmt_", 4) != 0 && memchr(sample.text, '\t', sample.bytes);
	if (s == STATUS_OK && !sp_train(&o, sp_sample_next, &sample, &model, &bytes, reason, sizeof reason))
		s = sp_trainer_refuse(reason, err);
	sp_sample_fini(&sample);
	return s == STATUS_OK ? tokenizer_add_file(t, "tokenizer.model", model, bytes, err) : s;
}

const tokenizer_trainer sentencepiece_trainer = {
    .name = "sentencepiece",
    .check = sp_trainer_check,
    .size = size,
    .train = sp_trainer_train,
};
