/* Results of the library for the models of tests/data/tokenizers (make.py there), and properties of texts of any
 * length. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/text/sentencepiece/sp_sample.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/support/folder.h"

#define DATA "tests/data/tokenizers/"
static const char *const models[] = {"unigram", "bpe", "char", "word", "suffix"};
enum { MODELS = sizeof models / sizeof *models };

static tokenizer *open_model(const char *name)
{
	char path[128];
	tokenizer *t;
	error err = ERROR_INIT;
	snprintf(path, sizeof path, DATA "%s", name);
	if (tokenizer_open(&t, path, INT32_MAX, &err) != STATUS_OK)
		fail_msg("%s: %s", path, error_message(&err));
	return t;
}

static json_t *read_cases(void)
{
	json_t *all = json_load_file(DATA "sentencepiece.json", 0, NULL);
	assert_non_null(all);
	return all;
}

static void encode(const tokenizer *t, const char *text, size_t bytes, token_list *out)
{
	assert_int_equal(tokenizer_encode(t, text, bytes, &(encode_options){.spans = true}, out, NULL), STATUS_OK);
}

static void assert_tokens(const token_list *got, const json_t *test, const char *model)
{
	const json_t *ids = json_object_get(test, "ids"), *spans = json_object_get(test, "spans");
	const char *text = json_string_value(json_object_get(test, "text"));
	if (got->count != json_array_size(ids))
		fail_msg("%s: \"%s\" has %zu tokens, not %zu", model, text, json_array_size(ids), got->count);
	for (size_t i = 0; i < got->count; i++) {
		const json_t *span = json_array_get(spans, i);
		if (got->ids[i] != json_integer_value(json_array_get(ids, i)))
			fail_msg("%s: \"%s\" has another token at %zu", model, text, i);
		if (got->spans[i].first != (size_t)json_integer_value(json_array_get(span, 0)) ||
		    got->spans[i].bytes != (size_t)json_integer_value(json_array_get(span, 1)))
			fail_msg("%s: \"%s\" has token %zu elsewhere", model, text, i);
	}
}

static void texts_become_the_librarys_tokens_with_their_spans(void **state)
{
	(void)state;
	json_t *all = read_cases();
	for (int m = 0; m < MODELS; m++) {
		tokenizer *t = open_model(models[m]);
		size_t i;
		json_t *test;
		json_array_foreach(json_object_get(all, models[m]), i, test)
		{
			const json_t *text = json_object_get(test, "text");
			token_list got;
			if (!text)
				continue;
			encode(t, json_string_value(text), json_string_length(text), &got);
			assert_tokens(&got, test, models[m]);
			token_list_fini(&got);
		}
		tokenizer_free(t);
	}
	json_decref(all);
}

static void tokens_decoded_one_by_one_give_the_librarys_text(void **state)
{
	(void)state;
	json_t *all = read_cases();
	char *out = malloc(64 * TEXT_STREAM_ROOM);
	for (int m = 0; m < MODELS; m++) {
		tokenizer *t = open_model(models[m]);
		size_t i, k;
		json_t *test, *id;
		json_array_foreach(json_object_get(all, models[m]), i, test)
		{
			text_stream s = {0};
			const json_t *ids = json_object_get(test, "ids"), *back = json_object_get(test, "back");
			size_t n = 0;
			out = realloc(out, (json_array_size(ids) + 1) * TEXT_STREAM_ROOM);
			json_array_foreach(ids, k, id) n +=
			    text_stream_token(&s, t, (int32_t)json_integer_value(id), false, out + n);
			n += text_stream_push(&s, "", 0, true, out + n);
			if (n != json_string_length(back) || memcmp(out, json_string_value(back), n) != 0)
				fail_msg("%s, case %zu: \"%.*s\", not \"%s\"", models[m], i, (int)n, out,
				         json_string_value(back));
		}
		tokenizer_free(t);
	}
	free(out);
	json_decref(all);
}

/* --- any length ------------------------------------------------------------------------------ */

static char *repeat(const char *unit, size_t times, size_t *bytes)
{
	size_t n = strlen(unit);
	char *text = malloc(n * times + 1);
	for (size_t i = 0; i < times; i++)
		memcpy(text + i * n, unit, n);
	*bytes = n * times;
	return text;
}

enum { LINES = 5000 };

/* A text of many runs is cut where no merge can cross: its tokens are those of its lines one after another. */
static void a_long_text_has_the_tokens_of_its_words(void **state)
{
	(void)state;
	static const char line[] = "The engine's models, tokenizers and sessions are tested: 123 of 456! ";
	for (int m = 0; m < 2; m++) {
		tokenizer *t = open_model(models[m]);
		token_list whole, one;
		size_t bytes;
		char *text = repeat(line, LINES, &bytes);
		encode(t, text, bytes - 1, &whole);
		encode(t, line, sizeof line - 2, &one);
		assert_int_equal(whole.count, LINES * one.count);
		for (size_t i = 0; i < LINES; i++)
			assert_memory_equal(whole.ids + i * one.count, one.ids, one.count * sizeof *one.ids);
		for (size_t i = 0; i < whole.count; i++)
			assert_int_equal(whole.spans[i].first % (sizeof line - 1) <= sizeof line - 2, 1);
		assert_int_equal(whole.spans[whole.count - 1].first + whole.spans[whole.count - 1].bytes, bytes - 1);
		token_list_fini(&whole);
		token_list_fini(&one);
		free(text);
		tokenizer_free(t);
	}
}

static void text_without_a_safe_cut_is_cut_at_a_limit(void **state)
{
	(void)state;
	for (int m = 0; m < MODELS; m++) {
		tokenizer *t = open_model(models[m]);
		static const char *const units[] = {"a", " ", "=", "ab", "\xE6\xBC\xA2"};
		for (int u = 0; u < 5; u++) {
			size_t bytes;
			char *text = repeat(units[u], 1200000 / strlen(units[u]), &bytes);
			token_list got;
			encode(t, text, bytes, &got);
			assert_true(got.count <= bytes + 3);
			if (got.count > 0)
				assert_true(got.spans[got.count - 1].first + got.spans[got.count - 1].bytes <= bytes);
			token_list_fini(&got);
			free(text);
		}
		tokenizer_free(t);
	}
}

/* --- special tokens ------------------------------------------------------------------------------ */

static bool has(const token_list *l, int32_t id)
{
	for (size_t i = 0; i < l->count; i++)
		if (l->ids[i] == id)
			return true;
	return false;
}

static int32_t id_of(const tokenizer *t, const char *name)
{
	char text[TOKEN_MAX_BYTES];
	for (int32_t i = 0; i < tokenizer_size(t); i++)
		if (tokenizer_token_name(t, i, text, sizeof text) == strlen(name) &&
		    memcmp(text, name, strlen(name)) == 0)
			return i;
	fail_msg("there is no token %s", name);
	return -1;
}

static void names_of_control_tokens_in_a_text_are_text_unless_trusted(void **state)
{
	(void)state;
	static const char text[] = "a <control> b <control>";
	for (int m = 0; m < 2; m++) {
		tokenizer *t = open_model(models[m]);
		int32_t control = id_of(t, "<control>");
		token_list got;
		assert_int_equal(tokenizer_encode(t, text, sizeof text - 1, NULL, &got, NULL), STATUS_OK);
		assert_false(has(&got, control));
		token_list_fini(&got);
		encode_options o = {.trusted = &(byte_range){2, 11}, .n_trusted = 1, .spans = true};
		assert_int_equal(tokenizer_encode(t, text, sizeof text - 1, &o, &got, NULL), STATUS_OK);
		assert_true(has(&got, control));
		assert_int_not_equal(got.ids[got.count - 1], control);
		for (size_t i = 0; i < got.count; i++)
			if (got.ids[i] == control)
				assert_true(got.spans[i].first == 2 && got.spans[i].bytes == 9);
		token_list_fini(&got);
		assert_int_equal(tokenizer_token_bytes(t, control, NULL, 0), 0);
		tokenizer_free(t);
	}
}

/* --- files beside the model ---------------------------------------------------------------------- */

static status open_with(tokenizer **out, const char *config, error *err)
{
	char folder[FOLDER_BYTES], path[FOLDER_BYTES + 32];
	file_map map;
	folder_new(folder);
	assert_int_equal(file_map_open(&map, DATA "unigram/tokenizer.model", err), STATUS_OK);
	snprintf(path, sizeof path, "%s/spiece.model", folder);
	assert_int_equal(file_write(path, &(file_part){map.data, map.bytes}, 1, err), STATUS_OK);
	file_map_close(&map);
	snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
	assert_int_equal(file_write(path, &(file_part){config, strlen(config)}, 1, err), STATUS_OK);
	status s = tokenizer_open(out, folder, INT32_MAX, err);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	return s;
}

static void t5s_extra_ids_count_down_from_the_last_id(void **state)
{
	(void)state;
	static const char *const configs[] = {"{\"extra_ids\": 100}", "{\"tokenizer_class\": \"T5Tokenizer\"}"};
	for (int i = 0; i < 2; i++) {
		tokenizer *t, *plain = open_model("unigram");
		token_list got;
		encode_options o = {.trusted = &(byte_range){0, 100}, .n_trusted = 1, .begin = true, .end = true};
		assert_int_equal(open_with(&t, configs[i], NULL), STATUS_OK);
		assert_int_equal(tokenizer_size(t), tokenizer_size(plain) + 100);
		assert_int_equal(id_of(t, "<extra_id_0>"), tokenizer_size(t) - 1);
		assert_int_equal(id_of(t, "<extra_id_99>"), tokenizer_size(plain));
		int32_t sentinels[101];
		assert_int_equal(tokenizer_sentinels(t, sentinels, 101), 100);
		for (int k = 0; k < 100; k++)
			assert_int_equal(sentinels[k], tokenizer_size(t) - 1 - k);
		assert_int_equal(tokenizer_sentinels(t, sentinels, 7), 7);
		assert_int_equal(tokenizer_sentinels(plain, sentinels, 101), 0);
		assert_int_equal(tokenizer_encode(t, "a<extra_id_1>", 13, &o, &got, NULL), STATUS_OK);
		assert_true(has(&got, tokenizer_size(t) - 2));
		assert_int_equal(got.ids[got.count - 1] == tokenizer_end(t), i); /* T5 texts end with it */
		token_list_fini(&got);
		assert_int_equal(tokenizer_token_bytes(t, tokenizer_size(t) - 1, NULL, 0), 0);
		tokenizer_free(t);
		tokenizer_free(plain);
	}
}

static void only_a_token_that_never_comes_from_text_is_the_mask(void **state)
{
	(void)state;
	static const struct {
		const char *config, *name;
	} cases[] = {
	    {"{}", NULL},
	    {"{\"mask_token\": \"<control>\"}", "<control>"},
	    {"{\"mask_token\": \"a\"}", NULL},         /* a token that comes from text */
	    {"{\"mask_token\": \"<nowhere>\"}", NULL}, /* allowed in ALBERT's files */
	    {"{\"added_tokens_decoder\": {\"900\": {\"content\": \"[MASK]\"}}}", "[MASK]"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		tokenizer *t;
		assert_int_equal(open_with(&t, cases[i].config, NULL), STATUS_OK);
		assert_int_equal(tokenizer_mask(t), cases[i].name ? id_of(t, cases[i].name) : TOKEN_NONE);
		tokenizer_free(t);
	}
}

static void roles_are_those_of_the_configuration(void **state)
{
	(void)state;
	tokenizer *t;
	assert_int_equal(
	    open_with(&t,
	              "{\"eos_token\": \"<control>\", \"pad_token\": {\"content\": \"<new>\"}, \"bos_token\": \"</s>\","
	              "\"add_bos_token\": true, \"added_tokens_decoder\": {\"900\": {\"content\": \"<new>\"}}}",
	              NULL),
	    STATUS_OK);
	assert_int_equal(tokenizer_size(t), 901);
	assert_int_equal(tokenizer_pad(t), 900);
	assert_int_equal(tokenizer_end(t), id_of(t, "<control>"));
	assert_int_equal(tokenizer_begin(t), id_of(t, "</s>"));
	assert_int_equal(tokenizer_start(t), id_of(t, "</s>"));
	assert_true(tokenizer_ends(t, tokenizer_end(t)));
	token_list got;
	assert_int_equal(tokenizer_encode(t, "a", 1, &(encode_options){.begin = true, .end = true}, &got, NULL),
	                 STATUS_OK);
	assert_int_equal(got.ids[0], tokenizer_begin(t));
	assert_int_equal(got.count, 2);
	token_list_fini(&got);
	tokenizer_free(t);
}

static void missing_parts_are_refused_by_name(void **state)
{
	(void)state;
	static const struct {
		const char *config, *param, *word;
		status s;
	} cases[] = {
	    {"{\"tokenizer_class\": \"XLMRobertaTokenizer\"}", "tokenizer_class", "XLMRoberta", STATUS_UNSUPPORTED},
	    {"{\"eos_token\": \"<none>\"}", "eos_token", "<none>", STATUS_INVALID},
	    {"{\"added_tokens_decoder\": {\"900\": {\"content\": \"x\", \"special\": false}}}", "added_tokens_decoder",
	     "not special", STATUS_UNSUPPORTED},
	    {"{\"added_tokens_decoder\": {\"x\": {\"content\": \"x\"}}}", "added_tokens_decoder", "\"x\"",
	     STATUS_INVALID},
	    {"{\"extra_ids\": -1}", "extra_ids", "0 to", STATUS_INVALID},
	    {"{", "", "tokenizer_config.json, line 1", STATUS_INVALID},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		tokenizer *t;
		error err = ERROR_INIT;
		assert_int_equal(open_with(&t, cases[i].config, &err), cases[i].s);
		assert_null(t);
		assert_string_equal(err.param, cases[i].param);
		assert_non_null(strstr(error_message(&err), cases[i].word));
	}
}

/* Every prefix of a model, and every model with a broken byte, opens or is refused. */
static void a_damaged_model_is_refused_or_harmless(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES], path[FOLDER_BYTES + 32];
	file_map map;
	folder_new(folder);
	snprintf(path, sizeof path, "%s/tokenizer.model", folder);
	assert_int_equal(file_map_open(&map, DATA "unigram/tokenizer.model", NULL), STATUS_OK);
	unsigned char *copy = malloc(map.bytes);
	int refused = 0;
	for (size_t i = 0; i < 600; i++) {
		size_t at = map.bytes * i / 600;
		bool cut = i % 2;
		memcpy(copy, map.data, map.bytes);
		copy[at] = (unsigned char)(copy[at] + 1 + i % 255);
		tokenizer *t;
		token_list got;
		assert_int_equal(file_write(path, &(file_part){copy, cut ? at : map.bytes}, 1, NULL), STATUS_OK);
		if (tokenizer_open(&t, folder, INT32_MAX, NULL) != STATUS_OK) {
			refused++;
			continue;
		}
		encode(t, "The tokenizer\xEF\xAC\x81 e\xCC\x81 === \xC2\xBD\xE2\x80\x8B\xC2\xB4\xE3\x8C\x80 models", 42,
		       &got);
		token_list_fini(&got);
		tokenizer_free(t);
	}
	assert_true(refused > 200);
	file_map_close(&map);
	free(copy);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void a_saved_tokenizer_has_the_bytes_of_its_files(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES], path[FOLDER_BYTES + 32];
	file_map before, after;
	tokenizer *t = open_model("bpe");
	folder_new(folder);
	assert_int_equal(tokenizer_save(t, folder, NULL), STATUS_OK);
	snprintf(path, sizeof path, "%s/tokenizer.model", folder);
	assert_int_equal(file_map_open(&before, DATA "bpe/tokenizer.model", NULL), STATUS_OK);
	assert_int_equal(file_map_open(&after, path, NULL), STATUS_OK);
	assert_int_equal(before.bytes, after.bytes);
	assert_memory_equal(before.data, after.data, before.bytes);
	file_map_close(&before);
	file_map_close(&after);
	tokenizer_free(t);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

/* --- training ------------------------------------------------------------------------------------- */

typedef struct lines {
	int at, count;
	char text[128];
} lines;

static status next_line(void *context, const char **text, size_t *bytes, error *err)
{
	static const char *const words[] = {"engine", "model", "token", "state", "session", "scores", "training"};
	lines *l = context;
	(void)err;
	int i = l->at++;
	snprintf(l->text, sizeof l->text, "the %s of the %s reads %d %ss\nand %s\n", words[i % 7], words[i / 7 % 7], i,
	         words[i / 3 % 7], words[i / 2 % 7]);
	*text = l->at <= l->count ? l->text : NULL;
	*bytes = strlen(l->text);
	return STATUS_OK;
}

static status train(tokenizer **out, const char *spec, int count, error *err)
{
	json_t *json = json_loads(spec, 0, NULL);
	assert_non_null(json);
	text_source source = {next_line, &(lines){.count = count}};
	status s = tokenizer_train(out, json, &source, err);
	json_decref(json);
	return s;
}

static void a_trained_tokenizer_has_the_requested_ids_and_restores_its_texts(void **state)
{
	(void)state;
	static const char *const specs[] = {
	    "{\"type\":\"sentencepiece\",\"vocab_size\":70}",
	    ("{\"type\":\"sentencepiece\",\"model_type\":\"bpe\",\"vocab_size\":400,\"byte_fallback\":true,"
	     "\"normalization\":\"identity\",\"character_coverage\":1}"),
	    "{\"type\":\"sentencepiece\",\"model_type\":\"char\",\"vocab_size\":30}",
	    "{\"type\":\"sentencepiece\",\"model_type\":\"word\",\"vocab_size\":20}",
	};
	static const int sizes[] = {70, 400, 30, 20};
	for (int i = 0; i < 4; i++) {
		tokenizer *t, *again;
		error err = ERROR_INIT;
		size_t bytes, more;
		if (train(&t, specs[i], 500, &err) != STATUS_OK)
			fail_msg("%s: %s", specs[i], error_message(&err));
		assert_int_equal(tokenizer_size(t), sizes[i]);
		assert_string_equal(tokenizer_type(t), "sentencepiece");
		assert_int_equal(tokenizer_pad(t), 0);
		assert_int_equal(tokenizer_end(t), 1);
		assert_int_equal(tokenizer_unknown(t), 2);
		assert_int_equal(train(&again, specs[i], 500, NULL), STATUS_OK);
		const char *file = tokenizer_file(t, "tokenizer.model", &bytes),
		           *same = tokenizer_file(again, "tokenizer.model", &more);
		assert_int_equal(bytes, more);
		assert_memory_equal(file, same, bytes);
		tokenizer_free(again);
		tokenizer_free(t);
	}
}

static void without_normalization_line_feeds_and_spaces_are_kept(void **state)
{
	(void)state;
	tokenizer *t;
	token_list got;
	static const char text[] = "the  model\nand the token\n";
	char back[32 * TEXT_STREAM_ROOM];
	text_stream s = {0};
	size_t n = 0;
	assert_int_equal(
	    train(&t, "{\"type\":\"sentencepiece\",\"vocab_size\":75,\"normalization\":\"identity\"}", 500, NULL),
	    STATUS_OK);
	encode(t, text, sizeof text - 1, &got);
	assert_true(got.count < 30);
	for (size_t i = 0; i < got.count; i++)
		n += text_stream_token(&s, t, got.ids[i], false, back + n);
	assert_int_equal(n, sizeof text - 1);
	assert_memory_equal(back, text, n);
	token_list_fini(&got);
	tokenizer_free(t);
}

static status next_table(void *context, const char **text, size_t *bytes, error *err)
{
	(void)err;
	int *left = context;
	*text = (*left)-- > 0 ? "the\tmodel\tof 5\t\tthe token\nthe model\t7\n" : NULL;
	*bytes = *text ? strlen(*text) : 0;
	return STATUS_OK;
}

static void a_tab_that_normalization_keeps_is_a_piece(void **state)
{
	(void)state;
	static const char *const types[] = {"unigram", "bpe", "char", "word"};
	static const char text[] = "the\tmodel\t\t5\n";
	for (int i = 0; i < 4; i++) {
		json_t *spec =
		    json_pack("{s:s, s:s, s:i, s:s}", "type", "sentencepiece", "model_type", types[i], "vocab_size",
		              i == 2   ? 18
		              : i == 3 ? 6
		                       : 21,
		              "normalization", "identity");
		int left = 200;
		tokenizer *t;
		token_list got;
		error err = ERROR_INIT;
		char back[32 * TEXT_STREAM_ROOM];
		text_stream s = {0};
		size_t n = 0;
		if (tokenizer_train(&t, spec, &(text_source){next_table, &left}, &err) != STATUS_OK)
			fail_msg("%s: %s", types[i], error_message(&err));
		assert_int_equal(tokenizer_token_name(t, 3, back, sizeof back), 1);
		assert_int_equal(back[0], '\t');
		encode(t, text, i == 3 ? 4 : sizeof text - 1, &got);
		for (size_t k = 0; k < got.count; k++)
			n += text_stream_token(&s, t, got.ids[k], false, back + n);
		if (i < 3) {
			assert_int_equal(n, sizeof text - 1);
			assert_memory_equal(back, text, n);
		}
		token_list_fini(&got);
		tokenizer_free(t);
		json_decref(spec);
	}
}

static void options_that_do_not_fit_the_text_are_refused_with_their_field(void **state)
{
	(void)state;
	static const struct {
		const char *spec, *param, *word;
	} cases[] = {
	    {"{\"type\":\"sentencepiece\",\"vocab_size\":5000}", "vocab_size", "must be at most"},
	    {"{\"type\":\"sentencepiece\",\"model_type\":\"bpe\",\"vocab_size\":5000}", "vocab_size",
	     "must be at most"},
	    {"{\"type\":\"sentencepiece\",\"model_type\":\"char\",\"vocab_size\":8000}", "vocab_size",
	     " ids, fewer than 8000"},
	    {"{\"type\":\"sentencepiece\",\"vocab_size\":5}", "vocab_size", "must be at least"},
	    {"{\"type\":\"sentencepiece\",\"vocab_size\":2}", "vocab_size", "from 4"},
	    {"{\"type\":\"sentencepiece\",\"model_type\":\"wordpiece\"}", "model_type", "unigram"},
	    {"{\"type\":\"sentencepiece\",\"normalization\":\"nfd\"}", "normalization", "nmt_nfkc"},
	    {"{\"type\":\"sentencepiece\",\"character_coverage\":0.5}", "character_coverage", "0.98"},
	    {"{\"type\":\"sentencepiece\",\"lowercase\":true}", "lowercase", "lowercase"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		tokenizer *t;
		error err = ERROR_INIT;
		assert_int_equal(train(&t, cases[i].spec, 300, &err), STATUS_INVALID);
		assert_null(t);
		if (strcmp(err.param, cases[i].param) != 0 || !strstr(error_message(&err), cases[i].word))
			fail_msg("%s: %s: %s", cases[i].spec, err.param, error_message(&err));
	}
	tokenizer *t;
	assert_int_equal(train(&t, cases[0].spec, 0, NULL), STATUS_INVALID);
}

static void without_a_requested_number_the_text_decides_how_many_ids_there_are(void **state)
{
	(void)state;
	static const char *const specs[] = {"{\"type\":\"sentencepiece\"}",
	                                    "{\"type\":\"sentencepiece\",\"model_type\":\"char\"}",
	                                    "{\"type\":\"bpe\",\"vocab_size\":8000,\"at_most\":true}"};
	for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
		tokenizer *t;
		error err = ERROR_INIT;
		if (train(&t, specs[i], 300, &err) != STATUS_OK)
			fail_msg("%s: %s", specs[i], error_message(&err));
		assert_in_range(tokenizer_size(t), 20, 1000);
		tokenizer_free(t);
	}
}

static void a_sample_of_a_long_text_is_bounded_and_reproducible(void **state)
{
	(void)state;
	sp_sample samples[2] = {{0}};
	size_t bytes;
	char *text = repeat("a line of text that is sampled\n", 1 << 15, &bytes);
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < 40; i++) /* 40 MiB */
			for (size_t at = 0, n; at < bytes; at += n) {
				n = k ? bytes : 31 * 1024;
				assert_int_equal(sp_sample_add(&samples[k], text + at, n < bytes - at ? n : bytes - at),
				                 STATUS_OK);
			}
	assert_true(samples[0].bytes <= SP_SAMPLE_BYTES && samples[0].bytes > SP_SAMPLE_BYTES / 3);
	assert_int_equal(samples[0].count, samples[1].count);
	assert_memory_equal(samples[0].sentences, samples[1].sentences, samples[0].count * sizeof(sp_sentence));
	sp_sample_fini(&samples[0]);
	sp_sample_fini(&samples[1]);
	free(text);
}

static void a_long_line_becomes_sentences_cut_between_characters(void **state)
{
	(void)state;
	static const char *const units[] = {"\xE6\xBC\xA2", "word ", "x"};
	for (int u = 0; u < 3; u++) {
		sp_sample s = {0};
		size_t bytes, n, all = 0;
		const char *one;
		char *text = repeat(units[u], 50000, &bytes);
		assert_int_equal(sp_sample_add(&s, text, bytes), STATUS_OK);
		while (sp_sample_next(&s, &one, &n)) {
			assert_true(n <= SP_SAMPLE_SENTENCE);
			assert_int_equal(n % strlen(units[u]), 0);
			all += n;
		}
		assert_int_equal(all, bytes);
		sp_sample_fini(&s);
		free(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(texts_become_the_librarys_tokens_with_their_spans),
	    cmocka_unit_test(tokens_decoded_one_by_one_give_the_librarys_text),
	    cmocka_unit_test(a_long_text_has_the_tokens_of_its_words),
	    cmocka_unit_test(text_without_a_safe_cut_is_cut_at_a_limit),
	    cmocka_unit_test(names_of_control_tokens_in_a_text_are_text_unless_trusted),
	    cmocka_unit_test(t5s_extra_ids_count_down_from_the_last_id),
	    cmocka_unit_test(only_a_token_that_never_comes_from_text_is_the_mask),
	    cmocka_unit_test(roles_are_those_of_the_configuration),
	    cmocka_unit_test(missing_parts_are_refused_by_name),
	    cmocka_unit_test(a_damaged_model_is_refused_or_harmless),
	    cmocka_unit_test(a_saved_tokenizer_has_the_bytes_of_its_files),
	    cmocka_unit_test(a_trained_tokenizer_has_the_requested_ids_and_restores_its_texts),
	    cmocka_unit_test(without_normalization_line_feeds_and_spaces_are_kept),
	    cmocka_unit_test(a_tab_that_normalization_keeps_is_a_piece),
	    cmocka_unit_test(options_that_do_not_fit_the_text_are_refused_with_their_field),
	    cmocka_unit_test(without_a_requested_number_the_text_decides_how_many_ids_there_are),
	    cmocka_unit_test(a_sample_of_a_long_text_is_bounded_and_reproducible),
	    cmocka_unit_test(a_long_line_becomes_sentences_cut_between_characters),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
