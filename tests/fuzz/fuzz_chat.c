/* fuzz_chat - a model's chat template (a declared form, a program, the names of its tokens), a conversation and
 * functions. It is refused with a message, or becomes a text of bounded size. The template's ranges in it are in order,
 * and every other byte is from a message. */
#include <stdint.h>
#include <stdlib.h>

#include "engine/text/chat_template.h"
#include "engine/text/sentencepiece/sp_train.h"
#include "engine/text/tokenizer_kind.h"
#include "tests/fuzz/sections.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
	if (!condition)
		abort();
}

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

/* A character needs six bytes at most where a template quotes it. */
static size_t given_bytes(const json_t *json)
{
	char *text = json_dumps(json, JSON_ENCODE_ANY | JSON_COMPACT);
	const size_t bytes = text ? 6 * strlen(text) : 0;
	free(text);
	return bytes;
}

static void check(const chat_template *t, const json_t *messages, const json_t *tools, bool continues, bool answers)
{
	chat_text x;
	error err = ERROR_INIT;
	const status s = chat_template_render(t, messages, tools, continues, answers, &x, &err);
	require(s == STATUS_OK || ((s == STATUS_INVALID || s == STATUS_TOO_LARGE) && err.message[0] && !x.text));
	if (s != STATUS_OK)
		return;
	size_t at = 0, trusted = 0;
	for (size_t i = 0; i < x.n_trusted; i++) {
		require(x.trusted[i].bytes > 0 && (i == 0 || x.trusted[i].first > at));
		at = x.trusted[i].first + x.trusted[i].bytes;
		trusted += x.trusted[i].bytes;
		require(at <= x.bytes);
	}
	require(x.bytes - trusted <= given_bytes(messages) + given_bytes(tools));
	require(x.text[x.bytes] == 0 && x.closing <= x.bytes && x.shared <= x.bytes);
	chat_text_fini(&x);
}

static void read_file(tokenizer *t, const section *s, const char *name)
{
	char *data = s ? malloc(s->bytes + 1) : NULL;
	if (!data)
		return;
	memcpy(data, s->data, s->bytes);
	data[s->bytes] = 0;
	require(tokenizer_add_file(t, name, data, s->bytes, NULL) == STATUS_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	section all[SECTIONS_MOST];
	const int n = sections_read(all, "fcspmt", data, size);
	const section *config = sections_find(all, n, 'f'), *talk = sections_find(all, n, 'm');
	json_t *json = config ? json_loadb(config->data, config->bytes, 0, NULL) : NULL;
	json_t *messages = talk ? json_loadb(talk->data, talk->bytes, JSON_ALLOW_NUL, NULL) : NULL;
	const section *list = sections_find(all, n, 't');
	json_t *tools = list ? json_loadb(list->data, list->bytes, 0, NULL) : NULL;
	tokenizer files = {0};
	chat_template *t;
	error err = ERROR_INIT;
	read_file(&files, sections_find(all, n, 'c'), "tokenizer_config.json");
	read_file(&files, sections_find(all, n, 's'), "special_tokens_map.json");
	read_file(&files, sections_find(all, n, 'p'), "chat_template.jinja");
	const status s = chat_template_open(&t, &files, json, &err);
	require(s == STATUS_OK || ((s == STATUS_INVALID || s == STATUS_UNSUPPORTED) && err.message[0] && !t));
	for (int i = 0; i < 4 && s == STATUS_OK; i++)
		check(t, messages, tools, i & 1, i & 2);
	chat_template_free(s == STATUS_OK ? t : NULL);
	for (int i = 0; i < files.n_files; i++)
		free(files.files[i].data);
	json_decref(messages);
	json_decref(tools);
	json_decref(json);
	return 0;
}
