/* fuzz_tokenizer - the tokenizer's files of a model's folder, and a text: files are opened or refused with words. An
 * open tokenizer gives the same ids with spans and without, in one text or in two that are cut at a safe place; no more
 * than the text's size allows, all of its vocabulary; and each id has bounded bytes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "engine/base/file.h"
#include "engine/text/sentencepiece/sp_train.h"
#include "engine/text/tokenizer_kind.h"
#include "tests/fuzz/sections.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

static const struct {
	char letter;
	const char *name;
} files[] = {{'j', "tokenizer.json"},
             {'m', "tokenizer.model"},
             {'c', "tokenizer_config.json"},
             {'s', "special_tokens_map.json"},
             {'g', "generation_config.json"},
             {'f', "config.json"},
             {'v', "vocab.json"},
             {'r', "merges.txt"},
             {'w', "vocab.txt"},
             {'a', "added_tokens.json"}};
enum { FILES = sizeof files / sizeof *files, TEXT_MOST = 4096 };
static const char letters[] = "tjmcsgfvrwa";

/* Training is not fuzzed here. */
bool sp_train(const sp_train_options *o, sp_train_next *next, void *context, char **model, size_t *bytes, char *reason,
              size_t reason_bytes)
{
	(void)o;
	(void)next;
	(void)context;
	(void)reason_bytes;
	*model = NULL;
	*bytes = 0;
	reason[0] = 0;
	return false;
}

static void require(bool condition)
{
	if (!condition)
		abort();
}

/* --- one tokenizer ----------------------------------------------------------------------------------- */

static void check_list(const tokenizer *t, const token_list *list, size_t bytes, bool spans)
{
	require(list->count <= tokenizer_growth_limit(bytes) + 2 * TOKENIZER_FRAME_IDS);
	for (size_t i = 0; i < list->count; i++) {
		require(list->ids[i] >= 0 && list->ids[i] < tokenizer_size(t));
		if (spans)
			require(list->spans[i].first <= bytes && list->spans[i].bytes <= bytes - list->spans[i].first);
	}
}

static bool same(const token_list *a, const token_list *b)
{
	return a->count == b->count && (!a->count || memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0);
}

static status encode(const tokenizer *t, const char *text, size_t bytes, encode_options o, token_list *out)
{
	error err = ERROR_INIT;
	const status s = tokenizer_encode(t, text, bytes, &o, out, &err);
	require(s == STATUS_OK || (s == STATUS_TOO_LARGE && err.message[0] && out->count == 0));
	if (s == STATUS_OK)
		check_list(t, out, bytes, o.spans);
	return s;
}

static void check_cut(const tokenizer *t, const char *text, size_t bytes, const token_list *whole)
{
	const size_t cut = tokenizer_safe_cut(t, text, bytes);
	token_list parts[2];
	require(cut <= bytes);
	if (cut == 0 || encode(t, text, cut, (encode_options){0}, &parts[0]) != STATUS_OK)
		return;
	if (encode(t, text + cut, bytes - cut, (encode_options){.continues = true}, &parts[1]) == STATUS_OK) {
		require(parts[0].count + parts[1].count == whole->count);
		for (int i = 0; i < 2; i++)
			for (size_t k = 0; k < parts[i].count; k++)
				require(parts[i].ids[k] == whole->ids[k + (i ? parts[0].count : 0)]);
	}
	token_list_fini(&parts[0]);
	token_list_fini(&parts[1]);
}

static void check_text(const tokenizer *t, const char *text, size_t bytes)
{
	static char out[TEXT_STREAM_ROOM];
	const byte_range all = {0, bytes};
	token_list plain, other;
	text_stream stream = {0};
	if (encode(t, text, bytes, (encode_options){0}, &plain) == STATUS_OK) {
		check_cut(t, text, bytes, &plain);
		if (encode(t, text, bytes, (encode_options){.spans = true}, &other) == STATUS_OK)
			require(same(&plain, &other));
		token_list_fini(&other);
		for (size_t i = 0; i < plain.count; i++)
			require(text_stream_token(&stream, t, plain.ids[i], false, out) <= TEXT_STREAM_ROOM);
		text_stream_token(&stream, t, TOKEN_NONE, true, out);
		token_list_fini(&plain);
	}
	encode_options o = {.trusted = &all, .n_trusted = 1, .begin = true, .end = true};
	if (encode(t, text, bytes, o, &plain) != STATUS_OK)
		return;
	o.spans = true;
	if (encode(t, text, bytes, o, &other) == STATUS_OK)
		require(same(&plain, &other));
	token_list_fini(&plain);
	token_list_fini(&other);
}

static void check_tokens(const tokenizer *t)
{
	char bytes[TOKEN_MAX_BYTES];
	int32_t sentinels[4];
	const int32_t size = tokenizer_size(t);
	const int32_t roles[] = {tokenizer_pad(t), tokenizer_end(t), tokenizer_begin(t), tokenizer_unknown(t), tokenizer_mask(t)};
	for (int i = 0; i < 5; i++)
		require(roles[i] >= TOKEN_NONE && roles[i] < size);
	for (int32_t id = 0; id < size && id < 4096; id++)
		require(tokenizer_token_bytes(t, id, bytes, sizeof bytes) <= TOKEN_MAX_BYTES);
	tokenizer_sentinels(t, sentinels, 4);
	for (int pair = 0; pair < 2; pair++) {
		const tokenizer_frame f = tokenizer_frame_of(t, pair);
		for (int i = 0; i < f.n_behind; i++)
			require(f.behind[i] >= 0 && f.behind[i] < size);
	}
}

/* --- a folder ------------------------------------------------------------------------------------------ */

static char path[64];

static void remove_folder(void)
{
	file_remove_tree(path, NULL);
}

static const char *folder(void)
{
	if (!path[0]) {
		snprintf(path, sizeof path, "/dev/shm/fuzz_tokenizer.%d", (int)getpid());
		mkdir(path, 0700);
		atexit(remove_folder);
	}
	return path;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	section all[SECTIONS_MOST];
	const int n = sections_read(all, letters, data, size);
	char name[128];
	for (int i = 0; i < FILES; i++) {
		const section *s = sections_find(all, n, files[i].letter);
		snprintf(name, sizeof name, "%s/%s", folder(), files[i].name);
		FILE *file = s ? fopen(name, "wb") : NULL;
		if (file) {
			fwrite(s->data, 1, s->bytes, file);
			fclose(file);
		} else {
			unlink(name);
		}
	}
	tokenizer *t;
	error err = ERROR_INIT;
	const status s = tokenizer_open(&t, folder(), INT64_MAX, &err);
	require(s == STATUS_OK || (err.message[0] && !t));
	require(s != STATUS_NOMEM && s != STATUS_INTERNAL && s != STATUS_IO);
	if (s != STATUS_OK)
		return 0;
	const section *text = sections_find(all, n, 't');
	check_tokens(t);
	if (text)
		check_text(t, text->data, text->bytes < TEXT_MOST ? text->bytes : TEXT_MOST);
	tokenizer_free(t);
	return 0;
}

/* --- mutations that leave JSON well-formed ----------------------------------------------------------------- */

static const char *const parts[] = {
    "{\"type\":\"NFC\"}",
    "{\"type\":\"NFKD\"}",
    "{\"type\":\"NFD\"}",
    "{\"type\":\"StripAccents\"}",
    "{\"type\":\"Lowercase\"}",
    "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}",
    "{\"type\":\"Prepend\",\"prepend\":\"ab\"}",
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaaaaaaaaaaaaaaaa\"}",
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\"},\"content\":\"▁\"}",
    "{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,\"strip_accents\":null,\"lowercase\":true}",
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"▁\"}]}",
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}",
    "{\"type\":\"Metaspace\",\"replacement\":\"▁\",\"prepend_scheme\":\"always\",\"split\":true}",
    "{\"type\":\"Metaspace\",\"replacement\":\"x\",\"prepend_scheme\":\"first\",\"split\":false}",
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\".\"},\"behavior\":\"Isolated\",\"invert\":false}",
    "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithNext\",\"invert\":true}",
    "{\"type\":\"Digits\",\"individual_digits\":true}",
    "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}",
    "{\"type\":\"Whitespace\"}",
    "{\"type\":\"WhitespaceSplit\"}",
    "{\"type\":\"BertPreTokenizer\"}",
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"},{\"type\":\"Digits\"}]}",
    "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"▁\":3,\"Ġ\":4},\"merges\":[\"a b\"],\"unk_token\":\"a\"}",
    "{\"type\":\"WordPiece\",\"vocab\":{\"[UNK]\":0,\"a\":1,\"##b\":2},\"unk_token\":\"[UNK]\"}",
    "{\"type\":\"WordLevel\",\"vocab\":{\"[UNK]\":0,\"a\":1,\"b\":2},\"unk_token\":\"[UNK]\"}",
    "{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1.5],[\"b\",-2],[\"ab\",-2.5]],\"unk_id\":0}",
    "{\"type\":\"Fuse\"}",
    "{\"type\":\"ByteFallback\"}",
    "{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}",
    "{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}",
    "{\"id\":5,\"content\":\"<x>\",\"single_word\":false,\"lstrip\":true,\"rstrip\":true,\"normalized\":true,\"special\":false}",
    "{\"type\":\"BertProcessing\",\"sep\":[\"a\",0],\"cls\":[\"b\",1]}",
    "{\"max_length\":2}",
    "16777215",
    "-1",
    "\"\"",
    "\"\\u0000\"",
    "null",
    "true",
    "[]",
};
enum { PARTS = sizeof parts / sizeof *parts, NODES = 256 };

typedef struct nodes {
	json_t *parent[NODES], *node[NODES];
	const char *key[NODES]; /* NULL: an element of an array */
	size_t index[NODES];
	int n;
} nodes;

static void gather(nodes *all, json_t *parent)
{
	const char *key;
	json_t *value;
	size_t i;
	json_object_foreach(parent, key, value)
	{
		if (all->n == NODES)
			return;
		all->parent[all->n] = parent;
		all->key[all->n] = key;
		all->node[all->n++] = value;
		gather(all, value);
	}
	json_array_foreach(parent, i, value)
	{
		if (all->n == NODES)
			return;
		all->parent[all->n] = parent;
		all->key[all->n] = NULL;
		all->index[all->n] = i;
		all->node[all->n++] = value;
		gather(all, value);
	}
}

static void mutate_json(json_t *root, unsigned seed)
{
	nodes all = {.n = 0};
	gather(&all, root);
	if (all.n == 0)
		return;
	const int at = (int)(seed >> 4) % all.n, from = (int)(seed >> 14) % all.n;
	json_t *made = seed & 1 ? json_loads(parts[(seed >> 8) % PARTS], JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
	                        : json_deep_copy(all.node[from]);
	if (json_is_array(all.node[at]) && seed & 2)
		json_array_append_new(all.node[at], made);
	else if (all.key[at])
		json_object_set_new(all.parent[at], all.key[at], made);
	else
		json_array_set_new(all.parent[at], all.index[at], made);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
	section all[SECTIONS_MOST];
	const section *s = sections_find(all, sections_read(all, letters, data, size), 'j');
	json_t *root = s && seed % 3 ? json_loadb(s->data, s->bytes, JSON_ALLOW_NUL, NULL) : NULL;
	char *text = NULL;
	size_t made = 0;
	if (root) {
		mutate_json(root, seed / 3);
		text = json_dumps(root, JSON_COMPACT);
		made = text ? strlen(text) : 0;
		json_decref(root);
	}
	if (!text || size - s->bytes + made > most) {
		free(text);
		return LLVMFuzzerMutate(data, size, most);
	}
	uint8_t *at = data + (s->data - (const char *)data), *after = at + s->bytes;
	const size_t rest = size - (size_t)(after - data);
	memmove(at + made, after, rest);
	memcpy(at, text, made);
	free(text);
	return (size_t)(at - data) + made + rest;
}
