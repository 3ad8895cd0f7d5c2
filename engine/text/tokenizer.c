/* The lists of kinds and trainers, and what all kinds share: files, their recognition, roles, and the check against a
 * model's vocabulary. */
#include "engine/text/tokenizer.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/json_text.h"
#include "engine/base/manifest.h"
#include "engine/base/memory.h"
#include "engine/base/path.h"
#include "engine/text/long_text.h"
#include "engine/text/tokenizer_share.h"

enum { FILE_MAX_BYTES = 64 << 20 };

extern const tokenizer_kind bytes_kind, huggingface_kind, sentencepiece_kind;
/* The kinds whose tokenizer.json has a "type". */
static const tokenizer_kind *const kinds[] = {&bytes_kind};
static const tokenizer_trainer *const trainers[] = {&bpe_trainer, &sentencepiece_trainer};

/* The files that are kept. */
static const char *const names[] = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "generation_config.json",
                                    "chat_template.jinja",
                                    "tokenizer.model",
                                    "spiece.model",
                                    "sentencepiece.bpe.model",
                                    "vocab.json",
                                    "merges.txt",
                                    "vocab.txt",
                                    "added_tokens.json"};
/* Files of tokenizers that cannot be read, which without this list would count as no tokenizer at all. */
static const char *const unread[] = {
    "vocab.bpe",      "encoder.json",  "bpe.codes",           "source.spm",     "target.spm",          "spm.model",
    "tekken.json",    "vocab.model",   "vocab.json",          "merges.txt",     "vocab.txt",           "dict.txt",
    "tiktoken.model", "qwen.tiktoken", "sentencepiece.model", "spm_char.model", "prophetnet.tokenizer"};
_Static_assert(sizeof names / sizeof *names <= TOKENIZER_MAX_FILES, "room for every file");

static const tokenizer_kind *find_kind(const char *name)
{
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		if (strcmp(kinds[i]->name, name) == 0)
			return kinds[i];
	return NULL;
}

static const tokenizer_trainer *find_trainer(const json_t *spec)
{
	const char *name = json_string_value(json_object_get(spec, "type"));
	for (size_t i = 0; name && i < sizeof trainers / sizeof trainers[0]; i++)
		if (strcmp(trainers[i]->name, name) == 0)
			return trainers[i];
	return NULL;
}

/* --- files ------------------------------------------------------------------------------- */

status tokenizer_add_file(tokenizer *t, const char *name, char *data, size_t bytes, error *err)
{
	if (!data || t->n_files == TOKENIZER_MAX_FILES) {
		free(data);
		return error_set(err, STATUS_NOMEM, NULL, "no room for the file \"%s\"", name);
	}
	t->files[t->n_files++] = (tokenizer_file_data){name, data, bytes};
	return STATUS_OK;
}

const char *tokenizer_file(const tokenizer *t, const char *name, size_t *bytes)
{
	for (int i = 0; i < t->n_files; i++)
		if (strcmp(t->files[i].name, name) == 0) {
			if (bytes)
				*bytes = t->files[i].bytes;
			return t->files[i].data;
		}
	return NULL;
}

static status read_file(tokenizer *t, const manifest *about, const char *folder, const char *name, error *err)
{
	char *data;
	size_t bytes;
	error cause = ERROR_INIT;
	status s = manifest_read(about, folder, name, FILE_MAX_BYTES, &data, &bytes, &cause);
	if (s == STATUS_NOT_FOUND)
		return STATUS_OK;
	return s == STATUS_OK ? tokenizer_add_file(t, name, data, bytes, err)
	                      : error_set(err, s, NULL, "%s", error_message(&cause));
}

static bool is_ids(const json_t *value)
{
	bool good = json_is_integer(value) || json_array_size(value) > 0;
	for (size_t i = 0; i < json_array_size(value); i++)
		good &= json_is_integer(json_array_get(value, i));
	return good;
}

/* The configuration's part in a tokenizer: the type of model, and the ends of a text, which are in
 * generation_config.json where that file exists. The model's reader judges the rest of the file. */
static status read_configuration(tokenizer *t, const manifest *about, const char *folder, error *err)
{
	char *data;
	size_t bytes;
	status found = manifest_read(about, folder, "config.json", FILE_MAX_BYTES, &data, &bytes, NULL);
	if (found != STATUS_OK)
		return found == STATUS_NOMEM ? error_settle(err, found) : STATUS_OK;
	json_t *config;
	status s = json_read(&config, data, bytes, 0, NULL);
	free(data);
	if (s == STATUS_NOMEM)
		return error_settle(err, s);
	const char *type = json_string_value(json_object_get(config, "model_type"));
	json_t *ids = json_object_get(config, "eos_token_id");
	snprintf(t->model_type, sizeof t->model_type, "%s", type ? type : "");
	s = STATUS_OK; /* the model's reader refuses a configuration that is not JSON */
	if (is_ids(ids) && !tokenizer_file(t, "generation_config.json", NULL)) {
		json_t *file = json_pack("{s:O}", "eos_token_id", ids);
		char *text = file ? json_text(file, 0) : NULL;
		s = tokenizer_add_file(t, "generation_config.json", text, text ? strlen(text) : 0, err);
		json_decref(file);
	}
	json_decref(config);
	return s;
}

static status read_files(tokenizer *t, const char *folder, error *err)
{
	manifest *about;
	TRY(manifest_open_folder(&about, folder, err));
	status s = STATUS_OK;
	for (size_t i = 0; i < sizeof names / sizeof *names && s == STATUS_OK; i++)
		s = read_file(t, about, folder, names[i], err);
	if (s == STATUS_OK)
		s = read_configuration(t, about, folder, err);
	char path[PATH_MAX];
	for (size_t i = 0; i < sizeof unread / sizeof *unread && !t->unread; i++)
		if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, unread[i]) < sizeof path &&
		    access(path, F_OK) == 0)
			t->unread = unread[i];
	manifest_free(about);
	return s;
}

status tokenizer_save(const tokenizer *t, const char *folder, error *err)
{
	char path[PATH_MAX];
	for (int i = 0; i < t->n_files; i++) {
		const tokenizer_file_data *f = &t->files[i];
		TRY(path_join(path, folder, f->name, err));
		TRY(file_write(path, &(file_part){f->data, f->bytes}, 1, err));
	}
	return STATUS_OK;
}

/* --- opening ------------------------------------------------------------------------------- */

/* Find the special tokens with which published models begin and end calls of functions. An answer must show them. */
static void find_shown(tokenizer *t)
{
	static const char *const marks[TOKENIZER_MAX_SHOWN] = {"[TOOL_CALLS]", "<tool_call>", "</tool_call>"};
	char name[16];
	for (int32_t id = 0; id < t->size && t->n_shown < TOKENIZER_MAX_SHOWN; id++) {
		const size_t bytes = tokenizer_token_name(t, id, name, sizeof name);
		for (int i = 0; i < TOKENIZER_MAX_SHOWN; i++) {
			if (bytes != strlen(marks[i]) || memcmp(name, marks[i], bytes) != 0 ||
			    tokenizer_token_bytes(t, id, NULL, 0) > 0)
				continue;
			t->shown[t->n_shown++] = id;
			t->longest = t->longest > 0 && t->longest < bytes ? bytes : t->longest;
			break;
		}
	}
}

static status open_kind(tokenizer *t, const tokenizer_kind *kind, const json_t *json, error *err)
{
	t->kind = kind;
	TRY(kind->open(t, json, err));
	tokenizer_add_end(t, t->end);
	find_shown(t);
	json_t *file;
	TRY(tokenizer_file_json(t, "generation_config.json", &file, err));
	/* "eos_token_id": 5 or [5, 6]. */
	const json_t *ids = json_object_get(file, "eos_token_id");
	const size_t n = json_is_array(ids) ? json_array_size(ids) : 1;
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_is_array(ids) ? json_array_get(ids, i) : ids;
		if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < t->size)
			tokenizer_add_end(t, (int32_t)json_integer_value(id));
	}
	json_decref(file);
	return STATUS_OK;
}

/* The kind of a spec, or of a tokenizer.json of ours. */
static status choose_kind(const tokenizer_kind **out, const json_t *json, error *err)
{
	const char *name = json_string_value(json_object_get(json, "type"));
	if (!name)
		return error_set(err, STATUS_INVALID, "type", "must be given as a string, the kind of tokenizer");
	*out = find_kind(name);
	if (*out)
		return STATUS_OK;
	return error_set(err, STATUS_UNSUPPORTED, "type",
	                 find_trainer(json) ? "a tokenizer of type \"%.40s\" has to be trained on a text"
	                                    : "there is no tokenizer of type \"%.40s\"",
	                 name);
}

/* A tokenizer that is described by a spec has it as its only file. */
static status open_spec(tokenizer *t, const json_t *spec, error *err)
{
	const tokenizer_kind *kind = &bytes_kind;
	if (spec)
		TRY(choose_kind(&kind, spec, err));
	TRY(open_kind(t, kind, spec, err));
	json_t *text = spec ? json_incref((json_t *)(uintptr_t)spec) : json_pack("{s:s}", "type", kind->name);
	char *data = text ? json_text(text, JSON_INDENT(2)) : NULL;
	json_decref(text);
	return tokenizer_add_file(t, "tokenizer.json", data, data ? strlen(data) : 0, err);
}

status tokenizer_file_json(const tokenizer *t, const char *name, json_t **out, error *err)
{
	size_t bytes;
	json_error_t where;
	const char *text = tokenizer_file(t, name, &bytes);
	*out = NULL;
	if (!text)
		return STATUS_OK;
	status s = json_read(out, text, bytes, JSON_REJECT_DUPLICATES, &where);
	if (s == STATUS_INVALID &&
	    json_error_code(&where) == json_error_numeric_overflow) /* "model_max_length": 10^30 */
		s = json_read(out, text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &where);
	if (s == STATUS_NOMEM)
		return error_settle(err, s);
	if (s != STATUS_OK)
		return error_set(err, STATUS_INVALID, NULL, "%s, line %d: %s", name, where.line, where.text);
	if (json_is_object(*out))
		return STATUS_OK;
	json_decref(*out);
	*out = NULL;
	return error_set(err, STATUS_INVALID, NULL, "%s is not an object", name);
}

/* Without a file that can be read: bytes, unless something else says that there is another tokenizer. */
static status open_none(tokenizer *t, error *err)
{
	json_t *config;
	if (t->unread)
		return error_set(err, STATUS_UNSUPPORTED, "tokenizer",
		                 "\"%s\" belongs to a tokenizer that cannot be read; save it with a tokenizer.json",
		                 t->unread);
	TRY(tokenizer_file_json(t, "tokenizer_config.json", &config, err));
	const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
	status s = STATUS_OK;
	if (name && strcmp(name, "ByT5Tokenizer") != 0)
		s = error_set(err, STATUS_INVALID, "tokenizer",
		              "tokenizer_config.json describes a %.40s, but no file has its vocabulary", name);
	json_decref(config);
	return s == STATUS_OK ? open_spec(t, NULL, err) : s;
}

/* By the content of its files. */
static status open_files(tokenizer *t, error *err)
{
	const tokenizer_kind *kind;
	json_t *json;
	TRY(tokenizer_file_json(t, "tokenizer.json", &json, err));
	for (int i = 0; !json && sentencepiece_files[i]; i++)
		if (tokenizer_file(t, sentencepiece_files[i], NULL))
			return open_kind(t, &sentencepiece_kind, NULL, err);
	if (!json)
		TRY(slow_files_read(t, &json, err));
	if (!json)
		return open_none(t, err);
	status s = STATUS_OK;
	if (json_is_object(json_object_get(json, "model")))
		kind = &huggingface_kind;
	else
		s = choose_kind(&kind, json, err);
	if (s == STATUS_OK)
		s = open_kind(t, kind, json, err);
	json_decref(json);
	return s;
}

static tokenizer *tokenizer_make(error *err)
{
	tokenizer *t = memory_new(1, sizeof *t);
	if (t)
		t->pad = t->end = t->begin = t->unknown = t->mask = t->raiser = TOKEN_NONE;
	else
		error_set(err, STATUS_NOMEM, NULL, "out of memory");
	return t;
}

/* Hand over t, or free it. */
static status tokenizer_finish(tokenizer **out, tokenizer *t, status s)
{
	if (s != STATUS_OK) {
		tokenizer_free(t);
		return s;
	}
	*out = t;
	return STATUS_OK;
}

status tokenizer_new(tokenizer **out, const json_t *spec, error *err)
{
	*out = NULL;
	tokenizer *t = tokenizer_make(err);
	return t ? tokenizer_finish(out, t, open_spec(t, spec, err)) : STATUS_NOMEM;
}

static status check_size(const tokenizer *t, int64_t vocab, error *err)
{
	if (t->size <= vocab)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "vocab_size", "the %s tokenizer has %d ids, the model only %lld",
	                 t->kind->name, (int)t->size, (long long)vocab);
}

/* Put an open tokenizer in the place of *t, whose files have been read: one of the same files that is open already, or
 * else itself. */
static status share(tokenizer **t, error *err)
{
	tokenizer *files = *t, *found = files->n_files > 0 ? tokenizer_share_find(files) : NULL;
	if (!found) {
		TRY(open_files(files, err));
		found = tokenizer_share_add(files);
	}
	if (found != files)
		tokenizer_free(files);
	*t = found;
	return STATUS_OK;
}

status tokenizer_open(tokenizer **out, const char *folder, int64_t vocab, error *err)
{
	*out = NULL;
	tokenizer *t = tokenizer_make(err);
	status s = t ? read_files(t, folder, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = share(&t, err);
	if (s == STATUS_OK)
		s = check_size(t, vocab, err);
	return tokenizer_finish(out, t, s);
}

/* A copy with the name that its content deserves. */
static status add_recognised(tokenizer *t, const char *data, size_t bytes, error *err)
{
	size_t first = 0;
	while (first < bytes && strchr(" \t\r\n", data[first]) && data[first])
		first++;
	bool json = first < bytes && data[first] == '{';
	if (!json && !sentencepiece_recognise(data, bytes))
		return error_set(err, STATUS_INVALID, NULL,
		                 "expected a tokenizer.json (a JSON object) or a SentencePiece model");
	char *copy = memory_new(bytes + 1, 1);
	if (copy)
		memcpy(copy, data, bytes);
	return tokenizer_add_file(t, json ? "tokenizer.json" : sentencepiece_files[0], copy, bytes, err);
}

status tokenizer_open_data(tokenizer **out, const char *data, size_t bytes, error *err)
{
	*out = NULL;
	tokenizer *t = tokenizer_make(err);
	status s = t ? add_recognised(t, data, bytes, err) : STATUS_NOMEM;
	return tokenizer_finish(out, t, s == STATUS_OK ? open_files(t, err) : s);
}

bool tokenizer_trains(const json_t *spec)
{
	return find_trainer(spec);
}

status tokenizer_check(const json_t *spec, error *err)
{
	const tokenizer_trainer *trainer = find_trainer(spec);
	tokenizer *t = NULL;
	status s = trainer ? trainer->check(spec, err) : tokenizer_new(&t, spec, err);
	tokenizer_free(t);
	return s;
}

int32_t tokenizer_trained_size(const json_t *spec)
{
	const tokenizer_trainer *trainer = find_trainer(spec);
	if (trainer && trainer->size)
		return trainer->size(spec);
	return trainer ? (int32_t)json_integer_value(json_object_get(spec, "vocab_size")) : 0;
}

status tokenizer_train(tokenizer **out, const json_t *spec, const text_source *source, error *err)
{
	const tokenizer_trainer *trainer = find_trainer(spec);
	*out = NULL;
	if (!trainer)
		return tokenizer_new(out, spec, err);
	TRY(trainer->check(spec, err));
	tokenizer *t = tokenizer_make(err);
	status s = t ? trainer->train(t, spec, source, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = open_files(t, err);
	const int32_t asked = tokenizer_trained_size(spec);
	const bool at_most = !json_object_get(spec, "vocab_size") || json_is_true(json_object_get(spec, "at_most"));
	if (s == STATUS_OK && !at_most && t->size < asked)
		s = error_set(err, STATUS_INVALID, "vocab_size", "the text gives a tokenizer of %d ids, fewer than %d",
		              (int)t->size, (int)asked);
	return tokenizer_finish(out, t, s);
}

void tokenizer_free(tokenizer *t)
{
	if (!t || !tokenizer_share_leave(t))
		return;
	if (t->kind && t->kind->close)
		t->kind->close(t);
	for (int i = 0; i < t->n_files; i++)
		free(t->files[i].data);
	free(t);
}

/* --- what it is ------------------------------------------------------------------------------ */

const char *tokenizer_type(const tokenizer *t)
{
	return t->kind->name;
}

/* The files in any order: theirs is that of a folder, or of what made them. */
uint64_t tokenizer_digest(const tokenizer *t)
{
	uint64_t sum = digest_bytes(t->kind->name, strlen(t->kind->name)) + (uint64_t)t->size;
	for (int i = 0; i < t->n_files; i++)
		sum += (digest_bytes(t->files[i].name, strlen(t->files[i].name)) | 1) *
		       digest_bytes(t->files[i].data, t->files[i].bytes);
	return sum;
}

int32_t tokenizer_size(const tokenizer *t)
{
	return t->size;
}

int64_t tokenizer_least_tokens(const tokenizer *t, size_t bytes)
{
	return t->longest ? (int64_t)(bytes / t->longest) : 0;
}

int32_t tokenizer_pad(const tokenizer *t)
{
	return t->pad;
}

int32_t tokenizer_end(const tokenizer *t)
{
	return t->end;
}

tokenizer_frame tokenizer_frame_of(const tokenizer *t, bool pair)
{
	tokenizer_frame f = {0};
	if (t->kind->frame && t->kind->frame(t, pair, &f))
		return f;
	const int ends = t->end == TOKEN_NONE ? 0 : 1;
	f = (tokenizer_frame){.n_between = pair ? ends : 0, .n_behind = ends};
	f.between[0] = f.behind[0] = t->end;
	return f;
}

/* The tokens of an empty text. */
static status read_around(const tokenizer *t, const encode_options *o, int32_t *ids, int *n, error *err)
{
	token_list list;
	TRY(tokenizer_encode(t, "", 0, o, &list, err));
	const bool fits = list.count <= TOKENIZER_FRAME_IDS;
	for (size_t i = 0; fits && i < list.count; i++)
		ids[i] = list.ids[i];
	*n = fits ? (int)list.count : 0;
	token_list_fini(&list);
	return fits ? STATUS_OK
	            : error_set(err, STATUS_UNSUPPORTED, "tokenizer", "puts more than %d tokens around a text",
	                        TOKENIZER_FRAME_IDS);
}

status tokenizer_source_frame(const tokenizer *t, tokenizer_frame *out, error *err)
{
	*out = (tokenizer_frame){0};
	TRY(read_around(t, &(encode_options){.begin = true}, out->before, &out->n_before, err));
	return read_around(t, &(encode_options){.end = true}, out->behind, &out->n_behind, err);
}

int32_t tokenizer_begin(const tokenizer *t)
{
	return t->begin;
}

int32_t tokenizer_unknown(const tokenizer *t)
{
	return t->unknown;
}

int32_t tokenizer_mask(const tokenizer *t)
{
	return t->mask;
}

int32_t tokenizer_start(const tokenizer *t)
{
	return t->begin != TOKEN_NONE ? t->begin : t->pad != TOKEN_NONE ? t->pad : t->end;
}

/* The number of a sentinel by its name; -1: it is none. */
static int sentinel_number(const char *name)
{
	char again[32];
	int number;
	if (sscanf(name, "<extra_id_%4d>", &number) != 1)
		return -1;
	snprintf(again, sizeof again, "<extra_id_%d>", number);
	return strcmp(name, again) == 0 ? number : -1;
}

int tokenizer_sentinels(const tokenizer *t, int32_t *ids, int room)
{
	int n = 0;
	for (int i = 0; i < room; i++)
		ids[i] = TOKEN_NONE;
	for (int32_t id = 0; id < t->size; id++) {
		char name[32];
		size_t bytes = tokenizer_token_name(t, id, name, sizeof name - 1);
		name[bytes < sizeof name ? bytes : 0] = 0;
		int k = sentinel_number(name);
		if (k >= 0 && k < room)
			ids[k] = id;
	}
	while (n < room && ids[n] != TOKEN_NONE)
		n++;
	return n;
}

int32_t tokenizer_filler(const tokenizer *t)
{
	return t->pad != TOKEN_NONE ? t->pad : t->end != TOKEN_NONE ? t->end : 0;
}

status tokenizer_refuse_growth(size_t bytes, error *err)
{
	return error_set(err, STATUS_TOO_LARGE, NULL,
	                 "the tokenizer's rules make the text grow too much: from %zu to more than %zu bytes", bytes,
	                 tokenizer_growth_limit(bytes));
}

void tokenizer_add_end(tokenizer *t, int32_t id)
{
	if (id >= 0 && id < t->size && !tokenizer_ends(t, id) && t->n_ends < TOKENIZER_MAX_ENDS)
		t->ends[t->n_ends++] = id;
}

bool tokenizer_ends(const tokenizer *t, int32_t id)
{
	for (int i = 0; i < t->n_ends; i++)
		if (t->ends[i] == id)
			return true;
	return false;
}

/* --- encoding and decoding ---------------------------------------------------------------------- */

void token_list_fini(token_list *list)
{
	free(list->ids);
	free(list->spans);
	*list = (token_list){0};
}

status tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, const encode_options *o, token_list *out,
                        error *err)
{
	static const encode_options plain = {0};
	*out = (token_list){0};
	o = o ? o : &plain;
	const bool shared = bytes >= LONG_TEXT_BYTES && o->threads != 1 && o->n_trusted == 0 && t->kind->cut;
	status s =
	    shared ? long_text_encode(t, text, bytes, o, out, err) : t->kind->encode(t, text, bytes, o, out, err);
	if (s != STATUS_OK)
		token_list_fini(out);
	return s;
}

size_t tokenizer_safe_cut(const tokenizer *t, const char *text, size_t bytes)
{
	return t->kind->cut ? t->kind->cut(t, text, bytes) : 0;
}

size_t tokenizer_cut(const tokenizer *t, const char *text, size_t bytes)
{
	const size_t safe = tokenizer_safe_cut(t, text, bytes);
	const char *newline = safe ? NULL : memrchr(text, '\n', bytes);
	return newline ? (size_t)(newline - text) + 1 : safe;
}

bool tokenizer_is_mark(const tokenizer *t, int32_t id)
{
	for (int i = 0; i < t->n_shown; i++)
		if (t->shown[i] == id)
			return true;
	return false;
}

bool tokenizer_has_marks(const tokenizer *t)
{
	return t->n_shown > 0;
}

size_t tokenizer_text_bytes(const tokenizer *t, int32_t id, bool first, char *out, size_t size)
{
	if (tokenizer_is_mark(t, id))
		return tokenizer_token_name(t, id, out, size);
	return id >= 0 && id < t->size ? t->kind->token_bytes(t, id, first, out, size) : 0;
}

size_t tokenizer_token_bytes(const tokenizer *t, int32_t id, char *out, size_t size)
{
	return tokenizer_text_bytes(t, id, false, out, size);
}

size_t tokenizer_token_name(const tokenizer *t, int32_t id, char *out, size_t size)
{
	return id >= 0 && id < t->size && t->kind->token_name ? t->kind->token_name(t, id, out, size) : 0;
}
