/* Learning byte-level BPE: {"type": "bpe", "vocab_size": N, "min_frequency": 2, "special_tokens": ["<|endoftext|>"]}.
 *
 * The texts are cut into words as GPT-2's are. A word begins as its bytes; then the most frequent pair of neighbours
 * becomes a token, again and again, until the vocabulary has its size or no pair is frequent enough. Each merge touches
 * only the words that have the pair. Ids are: special tokens, the bytes in the order of their spelling, merges. No
 * merge spells a special token. The result is a tokenizer.json and a tokenizer_config.json that names the end of a
 * text. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/text/huggingface/pieces.h"
#include "engine/text/huggingface/pair_counts.h"
#include "engine/text/huggingface/pre_tokenizer.h"
#include "engine/text/huggingface/word_counts.h"
#include "engine/text/tokenizer_kind.h"

enum {
	BYTES = 256,
	MAX_SPECIALS = 64,
	DEFAULT_FREQUENCY = 2,
	DEFAULT_SIZE = 8000,
	MAX_TRAINED = 1 << 20,
	MAX_NAME = 256 /* bytes */
};

/* --- the spec --------------------------------------------------------------------------------- */

typedef struct plan {
	int64_t size, frequency;
	const json_t *specials; /* NULL: the default */
} plan;

static const char default_special[] = "<|endoftext|>";

static int64_t count_specials(const plan *p)
{
	return p->specials ? (int64_t)json_array_size(p->specials) : 1;
}

static const char *special(const plan *p, int64_t i)
{
	return p->specials ? json_string_value(json_array_get(p->specials, (size_t)i)) : default_special;
}

static status check_keys(const json_t *spec, error *err)
{
	static const char *const known[] = {"type", "vocab_size", "at_most", "min_frequency", "special_tokens"};
	const size_t n_known = sizeof known / sizeof *known;
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)(uintptr_t)spec, key, member)
	{
		size_t i = 0;
		while (i < n_known && strcmp(known[i], key) != 0)
			i++;
		if (i == n_known)
			return error_set(err, STATUS_INVALID, key, "a bpe tokenizer has no option \"%.40s\"", key);
	}
	return STATUS_OK;
}

static status check_specials(const json_t *list, error *err)
{
	static const char param[] = "special_tokens";
	if (!json_is_array(list) || json_array_size(list) > MAX_SPECIALS)
		return error_set(err, STATUS_INVALID, param, "must be an array of at most %d strings", MAX_SPECIALS);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *name = json_array_get(list, i);
		const size_t bytes = json_string_length(name);
		if (bytes < 2 || bytes > MAX_NAME || strlen(json_string_value(name)) != bytes)
			return error_set(err, STATUS_INVALID, param,
			                 "each must be a string of 2 to %d bytes, none of them NUL", MAX_NAME);
		size_t length;
		pieces_first(json_string_value(name), &length);
		if (length == bytes)
			return error_set(err, STATUS_INVALID, param, "each must have at least two characters");
		for (size_t k = 0; k < i; k++)
			if (json_equal(json_array_get(list, k), name))
				return error_set(err, STATUS_INVALID, param, "has \"%.40s\" twice",
				                 json_string_value(name));
	}
	return STATUS_OK;
}

static status read_spec(plan *p, const json_t *spec, error *err)
{
	const json_t *size = json_object_get(spec, "vocab_size"), *frequency = json_object_get(spec, "min_frequency");
	*p = (plan){.frequency = DEFAULT_FREQUENCY, .specials = json_object_get(spec, "special_tokens")};
	TRY(check_keys(spec, err));
	if (p->specials)
		TRY(check_specials(p->specials, err));
	const int64_t least = BYTES + count_specials(p);
	p->size = size ? json_integer_value(size) : DEFAULT_SIZE;
	if ((size && !json_is_integer(size)) || p->size < least || p->size > MAX_TRAINED)
		return error_set(err, STATUS_INVALID, "vocab_size", "must be an integer from %lld to %d",
		                 (long long)least, MAX_TRAINED);
	if (!frequency)
		return STATUS_OK;
	p->frequency = json_integer_value(frequency);
	if (!json_is_integer(frequency) || p->frequency < 1)
		return error_set(err, STATUS_INVALID, "min_frequency", "must be an integer of at least 1");
	return STATUS_OK;
}

static status bpe_trainer_check(const json_t *spec, error *err)
{
	plan p;
	return read_spec(&p, spec, err);
}

static int32_t size(const json_t *spec)
{
	plan p;
	return read_spec(&p, spec, NULL) == STATUS_OK ? (int32_t)p.size : 0;
}

/* --- words --------------------------------------------------------------------------------------- */

static json_t *pre_tokenizer_spec(void)
{
	return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
	                 "use_regex", 1);
}

static status count_word(void *context, const text_piece *word)
{
	return word_counts_add(context, word->text, word->bytes);
}

static status count_texts(word_counts *counts, const pre_tokenizer *words, const text_source *source, error *err)
{
	pattern_search search = {0};
	pre_tokenizer_run run = {.steps = words, .search = &search, .word = count_word, .context = counts};
	status s;
	for (;;) {
		const char *text = NULL;
		size_t bytes = 0;
		s = source->next(source->context, &text, &bytes, err);
		if (s != STATUS_OK || !text)
			break;
		const text_piece p = {.text = text, .bytes = bytes, .first = true};
		s = pre_tokenizer_apply(&run, &p, false);
		if (s != STATUS_OK)
			break;
	}
	pattern_search_fini(&search);
	pre_tokenizer_run_fini(&run);
	return s;
}

static status read_words(word_counts *counts, const text_source *source, error *err)
{
	pre_tokenizer words = {0};
	json_t *spec = pre_tokenizer_spec();
	status s = spec ? pre_tokenizer_read(&words, spec, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = count_texts(counts, &words, source, err);
	pre_tokenizer_fini(&words);
	json_decref(spec);
	return s;
}

/* --- merging -------------------------------------------------------------------------------------- */

typedef struct name {
	char *text; /* spelled as in the vocabulary */
	uint32_t bytes;
} name;

typedef struct training {
	plan plan;
	word_counts counts;
	int32_t *symbols;  /* symbols of word i: from its place in counts.text on */
	uint32_t *lengths; /* [counts.n]: how many symbols are left of a word */
	pair_counts pairs;
	name *names; /* [plan.size] */
	int32_t (*merges)[2];
	int64_t n_names, n_merges;
} training;

static void training_fini(training *t)
{
	for (int64_t i = 0; t->names && i < t->n_names; i++)
		free(t->names[i].text);
	free(t->names);
	free(t->merges);
	free(t->symbols);
	free(t->lengths);
	word_counts_fini(&t->counts);
	pair_counts_fini(&t->pairs);
}

static status add_name(training *t, const char *left, size_t n, const char *right, size_t m)
{
	char *text = memory_new(n + m + 1, 1);
	if (!text)
		return STATUS_NOMEM;
	memcpy(text, left, n);
	memcpy(text + n, right, m);
	t->names[t->n_names++] = (name){text, (uint32_t)(n + m)};
	return STATUS_OK;
}

/* The special tokens and the bytes; *first_byte: the ids of the bytes. */
static status add_first_names(training *t, int32_t byte[BYTES])
{
	t->names = memory_new((size_t)t->plan.size, sizeof *t->names);
	t->merges = memory_new((size_t)t->plan.size, sizeof *t->merges);
	if (!t->names || !t->merges)
		return STATUS_NOMEM;
	for (int64_t i = 0; i < count_specials(&t->plan); i++)
		TRY(add_name(t, special(&t->plan, i), strlen(special(&t->plan, i)), "", 0));
	for (uint32_t c = 0; c < 2 * BYTES; c++) /* every spelling is below */
		for (int b = 0; b < BYTES; b++)
			if (pieces_spelling(b) == c) {
				char spelling[4] = "";
				byte[b] = (int32_t)t->n_names;
				TRY(add_name(t, spelling, pieces_write(c, spelling), "", 0));
			}
	return STATUS_OK;
}

static status count_pairs(training *t, const int32_t byte[BYTES])
{
	t->symbols = memory_new(t->counts.used, sizeof *t->symbols);
	t->lengths = memory_new(t->counts.n, sizeof *t->lengths);
	if (!t->symbols || !t->lengths)
		return STATUS_NOMEM;
	for (size_t i = 0; i < t->counts.used; i++)
		t->symbols[i] = byte[(unsigned char)t->counts.text[i]];
	for (size_t w = 0; w < t->counts.n; w++) {
		const counted_word *word = &t->counts.words[w];
		const int32_t *s = t->symbols + word->first;
		t->lengths[w] = word->bytes;
		for (uint32_t i = 0; i + 1 < word->bytes; i++)
			TRY(pair_counts_add(&t->pairs, s[i], s[i + 1], word->count, (uint32_t)w));
	}
	return pair_counts_push(&t->pairs);
}

/* Merge a pair wherever the word has it, from the left. */
static status merge_in_word(training *t, uint32_t w, int32_t left, int32_t right, int32_t made)
{
	const counted_word *word = &t->counts.words[w];
	int32_t *s = t->symbols + word->first;
	const uint32_t n = t->lengths[w];
	uint32_t at = 0;
	for (uint32_t i = 0; i < n; at++) {
		if (i + 1 >= n || s[i] != left || s[i + 1] != right) {
			s[at] = s[i++];
			continue;
		}
		if (at > 0) {
			TRY(pair_counts_add(&t->pairs, s[at - 1], left, -word->count, w));
			TRY(pair_counts_add(&t->pairs, s[at - 1], made, word->count, w));
		}
		if (i + 2 < n) {
			TRY(pair_counts_add(&t->pairs, right, s[i + 2], -word->count, w));
			TRY(pair_counts_add(&t->pairs, made, s[i + 2], word->count, w));
		}
		s[at] = made;
		i += 2;
	}
	t->lengths[w] = at;
	return STATUS_OK;
}

/* True if two tokens may merge: the result must not be too long or spell a special token. */
static bool may_merge(const training *t, const name *left, const name *right)
{
	if (left->bytes + right->bytes > MAX_NAME)
		return false;
	for (int64_t i = 0; i < count_specials(&t->plan); i++) {
		const name *n = &t->names[i];
		if (n->bytes == left->bytes + right->bytes && memcmp(n->text, left->text, left->bytes) == 0 &&
		    memcmp(n->text + left->bytes, right->text, right->bytes) == 0)
			return false;
	}
	return true;
}

static status merge_pair(training *t, uint32_t number)
{
	counted_pair *p = &t->pairs.pairs[number];
	const int32_t left = p->left, right = p->right, made = (int32_t)t->n_names;
	uint32_t *words = p->words;
	const size_t n = p->n_words;
	p->words = NULL;
	p->n_words = p->capacity = 0;
	p->count = 0;
	status s = STATUS_OK;
	if (may_merge(t, &t->names[left], &t->names[right])) {
		s = add_name(t, t->names[left].text, t->names[left].bytes, t->names[right].text, t->names[right].bytes);
		t->merges[t->n_merges][0] = left;
		t->merges[t->n_merges++][1] = right;
		for (size_t i = 0; i < n && s == STATUS_OK; i++)
			s = merge_in_word(t, words[i], left, right, made);
		t->pairs.pairs[number].count =
		    0; /* overlapping pairs (a a a) were counted more often than they merge */
	}
	free(words);
	return s == STATUS_OK ? pair_counts_push(&t->pairs) : s;
}

static status learn(training *t)
{
	while (t->n_names < t->plan.size) {
		const uint32_t number = pair_counts_pop(&t->pairs);
		if (number == UINT32_MAX || t->pairs.pairs[number].count < t->plan.frequency)
			break;
		TRY(merge_pair(t, number));
	}
	return STATUS_OK;
}

/* --- the files ---------------------------------------------------------------------------------------- */

static json_t *list_merges(const training *t)
{
	json_t *list = json_array();
	for (int64_t i = 0; list && i < t->n_merges; i++) {
		char pair[2 * MAX_NAME + 2];
		const name *left = &t->names[t->merges[i][0]], *right = &t->names[t->merges[i][1]];
		memcpy(pair, left->text, left->bytes);
		pair[left->bytes] = ' ';
		memcpy(pair + left->bytes + 1, right->text, right->bytes);
		json_array_append_new(list, json_stringn(pair, left->bytes + 1 + right->bytes));
	}
	return list;
}

static json_t *list_vocabulary(const training *t)
{
	json_t *ids = json_object();
	for (int64_t i = 0; ids && i < t->n_names; i++)
		json_object_set_new(ids, t->names[i].text, json_integer(i));
	return ids;
}

static json_t *list_specials(const training *t)
{
	json_t *list = json_array();
	for (int64_t i = 0; list && i < count_specials(&t->plan); i++)
		json_array_append_new(list, json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i,
		                                      "content", special(&t->plan, i), "single_word", 0, "lstrip", 0,
		                                      "rstrip", 0, "normalized", 0, "special", 1));
	return list;
}

static status add_json(tokenizer *t, const char *file, json_t *json, error *err)
{
	char *text = json ? json_text(json, JSON_INDENT(1)) : NULL;
	json_decref(json);
	return tokenizer_add_file(t, file, text, text ? strlen(text) : 0, err);
}

static status write_files(const training *t, tokenizer *out, error *err)
{
	json_t *model =
	    json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
	              "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
	              "ignore_merges", 0, "vocab", list_vocabulary(t), "merges", list_merges(t));
	json_t *json =
	    json_pack("{s:s, s:n, s:n, s:o, s:n, s:o, s:n, s:o, s:o}", "version", "1.0", "truncation", "padding",
	              "added_tokens", list_specials(t), "normalizer", "pre_tokenizer", pre_tokenizer_spec(),
	              "post_processor", "decoder", pre_tokenizer_spec(), "model", model);
	TRY(add_json(out, "tokenizer.json", json, err));
	if (count_specials(&t->plan) == 0)
		return STATUS_OK;
	return add_json(
	    out, "tokenizer_config.json",
	    json_pack("{s:s, s:s}", "tokenizer_class", "PreTrainedTokenizerFast", "eos_token", special(&t->plan, 0)),
	    err);
}

static status bpe_trainer_train(tokenizer *out, const json_t *spec, const text_source *source, error *err)
{
	training t = {0};
	int32_t byte[BYTES];
	TRY(read_spec(&t.plan, spec, err));
	status s = read_words(&t.counts, source, err);
	if (s == STATUS_OK)
		s = add_first_names(&t, byte);
	if (s == STATUS_OK)
		s = count_pairs(&t, byte);
	if (s == STATUS_OK)
		s = learn(&t);
	if (s == STATUS_OK)
		s = write_files(&t, out, err);
	training_fini(&t);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "the tokenizer cannot be trained: %s", status_text(s));
}

const tokenizer_trainer bpe_trainer = {
    .name = "bpe", .check = bpe_trainer_check, .size = size, .train = bpe_trainer_train};
