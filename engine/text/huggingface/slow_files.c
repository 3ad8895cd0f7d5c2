/* The files of tokenizers from before tokenizer.json, as the tokenizer.json that they amount to.
 *
 *   vocab.json + merges.txt   byte-level BPE: GPT-2's, RoBERTa's and BART's, Qwen 2's
 *   vocab.txt                 WordPiece: BERT's
 *
 * tokenizer_config.json names the class and its options, or else config.json's model_type the class. Special tokens are
 * in it, in special_tokens_map.json and in added_tokens.json. */
#include "engine/text/tokenizer_kind.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/text/huggingface/pieces.h"

/* --- classes --------------------------------------------------------------------------------------------- */

typedef enum slow_form { SLOW_GPT2, SLOW_ROBERTA, SLOW_QWEN2, SLOW_BERT } slow_form;

/* Names of tokenizer classes without "Tokenizer" and "TokenizerFast". */
static const struct {
	const char *name;
	slow_form form;
} classes[] = {
    {"GPT2", SLOW_GPT2},          {"CodeGen", SLOW_GPT2},    {"Roberta", SLOW_ROBERTA},  {"Bart", SLOW_ROBERTA},
    {"Longformer", SLOW_ROBERTA}, {"LED", SLOW_ROBERTA},     {"MVP", SLOW_ROBERTA},      {"Qwen2", SLOW_QWEN2},
    {"Bert", SLOW_BERT},          {"DistilBert", SLOW_BERT}, {"Electra", SLOW_BERT},     {"MobileBert", SLOW_BERT},
    {"ConvBert", SLOW_BERT},      {"LayoutLM", SLOW_BERT},   {"SqueezeBert", SLOW_BERT}, {"Lxmert", SLOW_BERT}};

static const char *const qwen2_words =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+";

typedef struct slow {
	const tokenizer *t;
	slow_form form;
	json_t *config, *map, *names; /* tokenizer_config.json, special_tokens_map.json: may be NULL; {name: id} */
	json_t *added;                /* "added_tokens" in the making */
} slow;

static status choose_class(slow *s, bool words, error *err)
{
	const char *name = json_string_value(json_object_get(s->config, "tokenizer_class"));
	const char *end = name ? strstr(name, "Tokenizer") : NULL;
	s->form = words ? SLOW_BERT : SLOW_GPT2;
	for (size_t i = 0; !name && i < sizeof classes / sizeof *classes; i++)
		if (strcasecmp(classes[i].name, s->t->model_type) == 0 && (classes[i].form == SLOW_BERT) == words)
			s->form = classes[i].form;
	if (!name)
		return STATUS_OK;
	for (size_t i = 0; end && i < sizeof classes / sizeof *classes; i++)
		if (strlen(classes[i].name) == (size_t)(end - name) &&
		    strncmp(classes[i].name, name, (size_t)(end - name)) == 0 &&
		    (classes[i].form == SLOW_BERT) == words) {
			s->form = classes[i].form;
			return STATUS_OK;
		}
	return error_set(err, STATUS_UNSUPPORTED, "tokenizer_class",
	                 "the files of a %.40s (%s) cannot be read; save it with a tokenizer.json", name,
	                 words ? "vocab.txt" : "vocab.json");
}

/* --- vocabulary ------------------------------------------------------------------------------------------ */

/* The next line of a text; false: there is none. Line ends are "\n" or "\r\n". */
static bool next_line(const char **at, const char *end, const char **line, size_t *bytes)
{
	if (*at == end)
		return false;
	const char *stop = memchr(*at, '\n', (size_t)(end - *at));
	*line = *at;
	*bytes = (size_t)((stop ? stop : end) - *at);
	*at = stop ? stop + 1 : end;
	*bytes -= *bytes > 0 && (*line)[*bytes - 1] == '\r';
	return true;
}

/* A name that is in the file twice keeps its last line, as it does in the library. */
static status read_lines(slow *s, const char *text, size_t size, error *err)
{
	const char *at = text, *line;
	size_t bytes;
	s->names = json_object();
	for (json_int_t id = 0; next_line(&at, text + size, &line, &bytes); id++) {
		if (bytes > 0 &&
		    (memchr(line, 0, bytes) || json_object_setn_new(s->names, line, bytes, json_integer(id)) != 0))
			return error_set(err, STATUS_INVALID, NULL, "vocab.txt, line %lld: not a token in UTF-8",
			                 (long long)id + 1);
	}
	return STATUS_OK;
}

static status read_merges(const char *text, size_t size, json_t *out, error *err)
{
	const char *at = text, *line;
	size_t bytes;
	for (int number = 1; next_line(&at, text + size, &line, &bytes); number++) {
		if (bytes == 0 || (bytes >= 8 && memcmp(line, "#version", 8) == 0))
			continue;
		if (json_array_append_new(out, json_stringn(line, bytes)) != 0)
			return error_set(err, STATUS_INVALID, NULL, "merges.txt, line %d: not UTF-8", number);
	}
	return STATUS_OK;
}

/* Byte-level vocabularies have a token for each byte; others of the same two files cut words in other ways. */
static status check_bytes(const slow *s, error *err)
{
	for (int byte = 0; byte < 256; byte++) {
		char name[5] = "";
		name[pieces_write(pieces_spelling(byte), name)] = 0;
		if (!json_object_get(s->names, name))
			return error_set(
			    err, STATUS_UNSUPPORTED, "tokenizer",
			    "vocab.json is not of a byte-level tokenizer: it has no \"%s\"; save the tokenizer "
			    "with a tokenizer.json",
			    name);
	}
	return STATUS_OK;
}

/* --- added tokens ----------------------------------------------------------------------------------------- */

static json_t *find_added(const slow *s, const char *name)
{
	size_t i;
	json_t *token;
	json_array_foreach(s->added, i, token)
	{
		if (strcmp(json_string_value(json_object_get(token, "content")), name) == 0)
			return token;
	}
	return NULL;
}

static bool flag(const json_t *object, const char *key, bool fallback)
{
	const json_t *value = json_object_get(object, key);
	return json_is_boolean(value) ? json_is_true(value) : fallback;
}

/* about: an object with the token's options, or anything else. */
static status slow_files_add(slow *s, json_int_t id, const char *name, const json_t *about, bool special, error *err)
{
	json_t *before = find_added(s, name);
	if (before) {
		if (special)
			json_object_set_new(before, "special", json_true());
		return STATUS_OK;
	}
	json_t *token = json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", name, "single_word",
	                          flag(about, "single_word", false), "lstrip", flag(about, "lstrip", false), "rstrip",
	                          flag(about, "rstrip", false), "normalized", flag(about, "normalized", !special),
	                          "special", special);
	return json_array_append_new(s->added, token) == 0 ? STATUS_OK
	                                                   : error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* {"50257": {"content": "<x>", "special": true, …}, …} */
static status read_decoder(slow *s, error *err)
{
	const char *key;
	json_t *token;
	json_object_foreach(json_object_get(s->config, "added_tokens_decoder"), key, token)
	{
		char *end;
		const long long id = strtoll(key, &end, 10);
		const char *name = json_string_value(json_object_get(token, "content"));
		if (*end || end == key || id < 0 || !name || !name[0])
			return error_set(err, STATUS_INVALID, "added_tokens_decoder",
			                 "\"%.40s\" is not an id with its \"content\"", key);
		TRY(slow_files_add(s, id, name, token, flag(token, "special", false), err));
	}
	return STATUS_OK;
}

/* added_tokens.json: {"<x>": 50257, …} */
static status read_added(slow *s, error *err)
{
	json_t *file, *id;
	const char *name;
	TRY(tokenizer_file_json(s->t, "added_tokens.json", &file, err));
	status result = STATUS_OK;
	json_object_foreach(file, name, id)
	{
		if (result != STATUS_OK)
			break;
		result = json_is_integer(id) && json_integer_value(id) >= 0 && name[0]
		             ? slow_files_add(s, json_integer_value(id), name, NULL, false, err)
		             : error_set(err, STATUS_INVALID, NULL, "added_tokens.json: \"%.40s\" has no id", name);
	}
	json_decref(file);
	return result;
}

/* A token with a role is special, if the vocabulary or the added tokens have it. */
static status add_role(slow *s, const json_t *value, const char *usual, bool left, error *err)
{
	const char *name = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
	name = name ? name : usual;
	if (!name || !name[0])
		return STATUS_OK;
	const json_t *id = json_object_get(s->names, name);
	json_t *about = json_is_object(value) ? json_incref((json_t *)(uintptr_t)value)
	                                      : json_pack("{s:b, s:b}", "lstrip", left, "normalized", false);
	status result = STATUS_OK;
	if (id || find_added(s, name))
		result = slow_files_add(s, json_integer_value(id), name, about, true, err);
	json_decref(about);
	return result;
}

static status read_roles(slow *s, error *err)
{
	static const struct {
		const char *key, *usual[4]; /* by form */
	} roles[] = {{"bos_token", {"<|endoftext|>", "<s>", NULL, NULL}},
	             {"eos_token", {"<|endoftext|>", "</s>", "<|endoftext|>", NULL}},
	             {"unk_token", {"<|endoftext|>", "<unk>", "<|endoftext|>", "[UNK]"}},
	             {"pad_token", {NULL, "<pad>", "<|endoftext|>", "[PAD]"}},
	             {"cls_token", {NULL, "<s>", NULL, "[CLS]"}},
	             {"sep_token", {NULL, "</s>", NULL, "[SEP]"}},
	             {"mask_token", {NULL, "<mask>", NULL, "[MASK]"}}};
	for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
		const json_t *value = json_object_get(s->config, roles[i].key);
		value = value && !json_is_null(value) ? value : json_object_get(s->map, roles[i].key);
		const bool left = s->form == SLOW_ROBERTA && i + 1 == sizeof roles / sizeof *roles;
		TRY(add_role(s, value, roles[i].usual[s->form], left, err));
	}
	const json_t *lists[] = {json_object_get(s->config, "additional_special_tokens"),
	                         json_object_get(s->map, "additional_special_tokens")};
	for (int k = 0; k < 2; k++)
		for (size_t i = 0; i < json_array_size(lists[k]); i++)
			TRY(add_role(s, json_array_get(lists[k], i), NULL, false, err));
	return STATUS_OK;
}

/* --- the parts --------------------------------------------------------------------------------------------- */

/* The name of a role, or the usual one. */
static const char *name_of(const slow *s, const char *key, const char *usual)
{
	const json_t *value = json_object_get(s->config, key);
	value = value && !json_is_null(value) ? value : json_object_get(s->map, key);
	const char *name = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
	return name ? name : usual;
}

/* ["<s>", 0]; null: the vocabulary does not have it. */
static json_t *token_with_id(const slow *s, const char *name)
{
	const json_t *added = find_added(s, name),
	             *id = added ? json_object_get(added, "id") : json_object_get(s->names, name);
	return id ? json_pack("[s, I]", name, json_integer_value(id)) : NULL;
}

static json_t *processor(const slow *s)
{
	if (s->form == SLOW_ROBERTA || s->form == SLOW_BERT) {
		const bool bert = s->form == SLOW_BERT;
		json_t *begin = token_with_id(s, name_of(s, "cls_token", bert ? "[CLS]" : "<s>")),
		       *end = token_with_id(s, name_of(s, "sep_token", bert ? "[SEP]" : "</s>"));
		if (begin && end)
			return json_pack("{s:s, s:o, s:o}", "type", bert ? "BertProcessing" : "RobertaProcessing",
			                 "cls", begin, "sep", end);
		json_decref(begin);
		json_decref(end);
		return json_null();
	}
	const char *name = name_of(s, "bos_token", "<|endoftext|>");
	json_t *begin = s->form == SLOW_GPT2 && flag(s->config, "add_bos_token", false) ? token_with_id(s, name) : NULL;
	if (!begin)
		return json_null();
	const json_int_t id = json_integer_value(json_array_get(begin, 1));
	json_decref(begin);
	return json_pack("{s:s, s:[{s:{s:s}}, {s:{s:s}}], s:[], s:{s:{s:[I]}}}", "type", "TemplateProcessing", "single",
	                 "SpecialToken", "id", name, "Sequence", "id", "A", "pair", "special_tokens", name, "ids", id);
}

static json_t *byte_level(const slow *s)
{
	const bool space = flag(s->config, "add_prefix_space", false);
	if (s->form != SLOW_QWEN2)
		return json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", space, "use_regex", true);
	return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s, s:b, s:b}]}", "type", "Sequence", "pretokenizers", "type",
	                 "Split", "pattern", "Regex", qwen2_words, "behavior", "Isolated", "type", "ByteLevel",
	                 "add_prefix_space", space, "use_regex", false);
}

static status make_bpe(slow *s, json_t **out, error *err)
{
	size_t bytes;
	const char *text = tokenizer_file(s->t, "merges.txt", &bytes);
	json_t *list = json_array();
	status result = read_merges(text, bytes, list, err);
	if (result == STATUS_OK)
		*out = json_pack("{s:{s:s, s:O, s:O}, s:O, s:o, s:o, s:{s:s}, s:o}", "model", "type", "BPE", "vocab",
		                 s->names, "merges", list, "added_tokens", s->added, "pre_tokenizer", byte_level(s),
		                 "post_processor", processor(s), "decoder", "type", "ByteLevel", "normalizer",
		                 s->form == SLOW_QWEN2 ? json_pack("{s:s}", "type", "NFC") : json_null());
	json_decref(list);
	return result;
}

static status make_wordpiece(slow *s, json_t **out, error *err)
{
	const json_t *accents = json_object_get(s->config, "strip_accents");
	if (!flag(s->config, "do_basic_tokenize", true))
		return error_set(err, STATUS_UNSUPPORTED, "do_basic_tokenize", "must be true to read a vocab.txt");
	*out = json_pack("{s:{s:s, s:O, s:s}, s:O, s:{s:s, s:b, s:b, s:O?}, s:{s:s}, s:o, s:{s:s}}", "model", "type",
	                 "WordPiece", "vocab", s->names, "unk_token", name_of(s, "unk_token", "[UNK]"), "added_tokens",
	                 s->added, "normalizer", "type", "BertNormalizer", "lowercase",
	                 flag(s->config, "do_lower_case", true), "handle_chinese_chars",
	                 flag(s->config, "tokenize_chinese_chars", true), "strip_accents", accents, "pre_tokenizer",
	                 "type", "BertPreTokenizer", "post_processor", processor(s), "decoder", "type", "WordPiece");
	return STATUS_OK;
}

/* --- reading -------------------------------------------------------------------------------------------------- */

static status read_all(slow *s, bool words, json_t **out, error *err)
{
	size_t bytes;
	TRY(tokenizer_file_json(s->t, "tokenizer_config.json", &s->config, err));
	TRY(tokenizer_file_json(s->t, "special_tokens_map.json", &s->map, err));
	TRY(choose_class(s, words, err));
	if (words) {
		const char *text = tokenizer_file(s->t, "vocab.txt", &bytes);
		TRY(read_lines(s, text, bytes, err));
	} else {
		TRY(tokenizer_file_json(s->t, "vocab.json", &s->names, err));
		TRY(check_bytes(s, err));
	}
	s->added = json_array();
	TRY(read_decoder(s, err));
	TRY(read_added(s, err));
	TRY(read_roles(s, err));
	TRY(words ? make_wordpiece(s, out, err) : make_bpe(s, out, err));
	return *out ? STATUS_OK : error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

status slow_files_read(const tokenizer *t, json_t **out, error *err)
{
	slow s = {.t = t};
	*out = NULL;
	const bool pair = tokenizer_file(t, "vocab.json", NULL) && tokenizer_file(t, "merges.txt", NULL);
	if (!pair && !tokenizer_file(t, "vocab.txt", NULL))
		return STATUS_OK;
	const status result = read_all(&s, !pair, out, err);
	json_decref(s.config);
	json_decref(s.map);
	json_decref(s.names);
	json_decref(s.added);
	return result;
}
