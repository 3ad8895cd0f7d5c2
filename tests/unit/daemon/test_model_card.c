/* Cards of models: contents, parents, bounds, imports, and the form of the page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json_text.h"
#include "engine/recipe/model_card.h"
#include "engine/recipe/model_card_page.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/folder.h"

typedef struct fixture {
	char folder[FOLDER_BYTES];
	char path[200];
} fixture;

static const char *const files[] = {"config.json", "LICENSE", "README.md", "model_card.json", NULL};

static const char *path_of(fixture *f, const char *name)
{
	snprintf(f->path, sizeof f->path, "%s/%s", f->folder, name);
	return f->path;
}

static void write_bytes(fixture *f, const char *name, const char *bytes, size_t count)
{
	assert_int_equal(file_write_scratch(path_of(f, name), bytes, count, NULL), STATUS_OK);
}

static void write_text(fixture *f, const char *name, const char *text)
{
	write_bytes(f, name, text, strlen(text));
}

/* malloc'ed. */
static char *read_text(fixture *f, const char *name)
{
	char *text;
	size_t bytes;
	assert_int_equal(file_read(path_of(f, name), MODEL_CARD_MAX_BYTES, &text, &bytes, NULL), STATUS_OK);
	return text;
}

static bool has_file(fixture *f, const char *name)
{
	return access(path_of(f, name), F_OK) == 0;
}

static json_t *read_card(fixture *f)
{
	char *text = read_text(f, MODEL_CARD_FILE);
	json_t *card;
	assert_int_equal(model_card_read(&card, text, strlen(text)), STATUS_OK);
	free(text);
	return card;
}

static const char *text_of(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static const json_t *entry_of(const json_t *card, const char *key, size_t i)
{
	return json_array_get(json_object_get(card, key), i);
}

static json_t *make_card(const char *id, const char *note)
{
	json_t *job =
	    json_pack("{s:s, s:I, s:{s:s, s:s}, s:{s:i}, s:{s:f, s:f, s:i}, s:i}", "id", "ftjob-1", "created_at",
	              (json_int_t)7, "recipe", "model", "additive", "note", note, "resolved", "max_steps", 3,
	              "additive", "train_loss", 1.5, "eta_seconds", 2.5, "step", 2, "trained_tokens", 20);
	json_t *card = model_card_of_job(id, job);
	assert_non_null(card);
	json_decref(job);
	return card;
}

static status finish(json_t *card, const char *folder)
{
	const train_progress p = {
	    .step = 3, .total_steps = 3, .result_step = 2, .tokens = 30, .train_loss = 1.25, .valid_loss = NAN};
	return model_card_finish(card, &p, folder, NULL);
}

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	folder_new(f->folder);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	assert_int_equal(file_remove_tree(f->folder, NULL), STATUS_OK);
	free(f);
	return 0;
}

static void a_card_has_the_job_its_files_and_its_results(void **state)
{
	fixture *f = *state;
	json_t *card = make_card("m", "x");
	const store_file known = {.id = "file-1", .filename = "a.txt", .bytes = 12, .sha256 = "ab"},
	                 deleted = {.id = "file-2"};
	json_t *results = json_object_get(card, "results");
	assert_true(json_real_value(json_object_get(results, "train_loss")) == 1.5 &&
	            json_integer_value(json_object_get(results, "tokens")) == 20 &&
	            !json_object_get(results, "eta_seconds"));
	assert_true(model_card_add_file(card, "training", &known) && model_card_add_file(card, "validation", &deleted));
	assert_int_equal(finish(card, f->folder), STATUS_OK);
	json_t *read = read_card(f);
	assert_true(json_equal(read, card));
	json_decref(card);
	results = json_object_get(read, "results");
	assert_true(json_real_value(json_object_get(results, "train_loss")) == 1.25 &&
	            json_is_null(json_object_get(results, "valid_loss")) &&
	            json_integer_value(json_object_get(results, "result_step")) == 2 &&
	            json_integer_value(json_object_get(results, "tokens")) == 30);
	assert_string_equal(text_of(read, "id"), "m");
	assert_string_equal(text_of(read, "source"), "training");
	assert_string_equal(text_of(json_object_get(read, "job"), "id"), "ftjob-1");
	assert_string_equal(text_of(entry_of(read, "files", 0), "sha256"), "ab");
	assert_true(json_is_null(json_object_get(entry_of(read, "files", 1), "filename")) &&
	            json_is_null(json_object_get(entry_of(read, "files", 1), "bytes")));
	assert_true(json_is_null(json_object_get(read, "license")) && !has_file(f, MODEL_CARD_LICENSE));
	json_decref(read);
}

static void a_card_is_written_in_the_same_bytes_each_time(void **state)
{
	fixture *f = *state;
	static const char *const names[] = {MODEL_CARD_FILE, MODEL_CARD_PAGE};
	char *first[2];
	for (int round = 0; round < 2; round++) {
		json_t *card = make_card("m", "x");
		assert_int_equal(finish(card, f->folder), STATUS_OK);
		json_decref(card);
		for (int i = 0; i < 2; i++) {
			char *text = read_text(f, names[i]);
			if (round == 0) {
				first[i] = text;
				continue;
			}
			assert_string_equal(text, first[i]);
			free(text);
			free(first[i]);
		}
	}
}

static void text_from_elsewhere_is_only_inside_code(void **state)
{
	fixture *f = *state;
	static const struct {
		const char *name, *line;
	} rows[] = {{"a|b*<script>\n# x", "- training: ` a|b*<script> # x `, 1 bytes\n"},
	            {"a`b``c", "- training: ``` a`b``c ```, 1 bytes\n"},
	            {"`", "- training: `` ` ``, 1 bytes\n"},
	            {"  ", "- training: `  `, 1 bytes\n"}};
	static const char head[] = "---\nlibrary_name: additive\n---\n\n# ` m `\n";
	json_t *card = make_card("m", "```\n# heading\n````<b>");
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		store_file file = {.bytes = 1};
		snprintf(file.filename, sizeof file.filename, "%s", rows[i].name);
		assert_true(model_card_add_file(card, "training", &file));
	}
	assert_true(model_card_add_base(card, "ft:a\"\n---", NULL));
	assert_int_equal(finish(card, f->folder), STATUS_OK);
	json_decref(card);
	char *page = read_text(f, MODEL_CARD_PAGE);
	assert_int_equal(strncmp(page, head, strlen(head)), 0);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		assert_non_null(strstr(page, rows[i].line));
	assert_non_null(strstr(page, "\n- trained from ` ft:a\" --- `\n"));
	assert_non_null(strstr(page, "\n`````json\n{\n"));
	assert_null(strstr(page, "\n# heading"));
	free(page);
}

static void only_a_parent_with_the_form_of_a_hub_id_is_in_the_front_matter(void **state)
{
	static const struct {
		const char *name;
		bool is;
	} rows[] = {{"gpt2", true},  {"1e3", true}, {"a.b-c_d", true}, {"ft:additive:x", false}, {"a--b", false},
	            {"a..b", false}, {"a.", false}, {"-a", false},     {"a\nb: c", false},       {"", false}};
	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char expected[64];
		json_t *card = make_card("m", "x");
		assert_true(model_card_add_base(card, rows[i].name, NULL));
		char *page = model_card_page(card);
		snprintf(expected, sizeof expected, "---\nlibrary_name: additive\nbase_model: \"%s\"\n---\n",
		         rows[i].name);
		assert_int_equal(strncmp(page, expected, strlen(expected)) == 0, rows[i].is);
		assert_int_equal(strstr(page, "base_model") != NULL, rows[i].is);
		free(page);
		json_decref(card);
	}
}

static void parents_are_those_of_the_base_and_bounded(void **state)
{
	char id[32];
	json_t *base = make_card("m0", "x");
	(void)state;
	for (int i = 1; i <= MODEL_CARD_MAX_PARENTS + 5; i++) {
		snprintf(id, sizeof id, "m%d", i);
		json_t *card = make_card(id, "x");
		assert_true(model_card_add_base(card, text_of(base, "id"), base));
		json_decref(base);
		base = card;
	}
	assert_int_equal(json_array_size(json_object_get(base, "parents")), MODEL_CARD_MAX_PARENTS);
	assert_string_equal(text_of(entry_of(base, "parents", 0), "model"), "m68");
	assert_string_equal(text_of(entry_of(base, "parents", MODEL_CARD_MAX_PARENTS - 1), "model"), "m5");
	json_decref(base);
}

static void a_licence_stays_byte_for_byte_and_is_that_of_what_is_trained_from_the_model(void **state)
{
	fixture *f = *state, child = {0};
	static const char license[] = "Do as \xff you\0like.\n";
	folder_new(child.folder);
	write_bytes(f, MODEL_CARD_LICENSE, license, sizeof license - 1);
	assert_int_equal(model_card_import("base", f->folder, files, NULL), STATUS_OK);
	char *kept = read_text(f, MODEL_CARD_LICENSE);
	assert_memory_equal(kept, license, sizeof license);
	free(kept);
	json_t *base = read_card(f), *card = make_card("m", "x");
	assert_true(model_card_add_base(card, "base", base));
	assert_int_equal(finish(card, child.folder), STATUS_OK);
	json_decref(base);
	json_decref(card);
	char *text = read_text(&child, MODEL_CARD_LICENSE), *page = read_text(&child, MODEL_CARD_PAGE);
	assert_string_equal(text, "Do as ? you?like.\n");
	assert_non_null(strstr(page, "\nlicense: other\nlicense_name: license-file\nlicense_link: LICENSE\n---\n"));
	free(text);
	free(page);
	assert_int_equal(file_remove_tree(child.folder, NULL), STATUS_OK);
}

static void an_exported_model_becomes_a_parent_of_its_import(void **state)
{
	fixture *f = *state;
	json_t *card = make_card("first", "x");
	assert_true(model_card_add_base(card, "base", NULL));
	assert_int_equal(finish(card, f->folder), STATUS_OK);
	write_text(f, "config.json", "{}");
	assert_int_equal(model_card_import("second", f->folder, files, NULL), STATUS_OK);
	assert_int_equal(model_card_import("third", f->folder, files, NULL), STATUS_OK);
	json_t *read = read_card(f);
	assert_string_equal(text_of(read, "source"), "import");
	assert_string_equal(text_of(read, "id"), "third");
	assert_int_equal(json_array_size(json_object_get(read, "parents")), 3);
	assert_string_equal(text_of(entry_of(read, "parents", 0), "model"), "second");
	assert_string_equal(text_of(entry_of(read, "parents", 1), "model"), "first");
	assert_string_equal(text_of(entry_of(read, "parents", 1), "relation"), "imported from");
	assert_string_equal(text_of(entry_of(read, "parents", 2), "relation"), "trained from");
	assert_true(json_equal(json_object_get(read, "origin"), card));
	assert_int_equal(json_array_size(json_object_get(read, "files")), 1);
	assert_string_equal(text_of(entry_of(read, "files", 0), "filename"), "config.json");
	/* sha256sum of "{}" */
	assert_string_equal(text_of(entry_of(read, "files", 0), "sha256"),
	                    "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
	json_decref(card);
	json_decref(read);
	char *page = read_text(f, MODEL_CARD_PAGE);
	assert_non_null(strstr(page, "\n# ` third `\n"));
	free(page);
}

static void entries_of_another_form_in_an_imported_card_are_left_out(void **state)
{
	fixture *f = *state;
	write_text(f, MODEL_CARD_FILE,
	           "{\"object\": \"model.card\", \"id\": \"a\", \"parents\": [1, {\"model\": \"b\"}, "
	           "{\"model\": \"c\", \"relation\": \"# x\"}, {\"model\": \"d\", \"relation\": \"trained from\"}]}");
	assert_int_equal(model_card_import("m", f->folder, files, NULL), STATUS_OK);
	json_t *read = read_card(f);
	assert_int_equal(json_array_size(json_object_get(read, "parents")), 2);
	assert_string_equal(text_of(entry_of(read, "parents", 1), "model"), "d");
	json_decref(read);
}

static void an_import_keeps_its_own_page_and_a_wrong_card_is_refused(void **state)
{
	fixture *f = *state;
	static const char *const wrong[] = {"",
	                                    "{",
	                                    "[]",
	                                    "{}",
	                                    "{\"object\": \"model.card\"}",
	                                    "{\"object\": \"model\", \"id\": \"a\"}",
	                                    "{\"object\": \"model.card\", \"object\": \"model.card\", \"id\": \"a\"}"};
	write_text(f, MODEL_CARD_PAGE, "theirs");
	assert_int_equal(model_card_import("m", f->folder, files, NULL), STATUS_OK);
	char *page = read_text(f, MODEL_CARD_PAGE);
	assert_string_equal(page, "theirs");
	free(page);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		error err = ERROR_INIT;
		write_text(f, MODEL_CARD_FILE, wrong[i]);
		assert_int_equal(model_card_import("m", f->folder, files, &err), STATUS_INVALID);
		assert_string_equal(err.param, MODEL_CARD_FILE);
	}
}

/* Clients read fewer levels than the engine does. */
static void a_card_of_more_than_64_levels_is_refused(void **state)
{
	fixture *f = *state;
	char text[256];
	error err = ERROR_INIT;
	for (int arrays = 63; arrays <= 64; arrays++) {
		int n = snprintf(text, sizeof text, "{\"object\": \"model.card\", \"id\": \"a\", \"x\": ");
		memset(text + n, '[', (size_t)arrays);
		memset(text + n + arrays, ']', (size_t)arrays);
		strcpy(text + n + 2 * arrays, "}");
		write_text(f, MODEL_CARD_FILE, text);
		assert_int_equal(model_card_import("m", f->folder, files, &err),
		                 arrays == 63 ? STATUS_OK : STATUS_INVALID);
	}
	assert_string_equal(err.param, MODEL_CARD_FILE);
	assert_non_null(strstr(err.message, "levels"));
}

static void a_card_that_is_too_large_loses_its_recipe(void **state)
{
	fixture *f = *state;
	char *note = malloc(MODEL_CARD_MAX_BYTES + 1);
	memset(note, 'x', MODEL_CARD_MAX_BYTES);
	note[MODEL_CARD_MAX_BYTES] = 0;
	json_t *card = make_card("m", note);
	free(note);
	assert_int_equal(finish(card, f->folder), STATUS_OK);
	json_decref(card);
	card = read_card(f);
	assert_true(json_is_null(json_object_get(card, "recipe")) && json_is_object(json_object_get(card, "resolved")));
	json_decref(card);
}

static void each_allocation_may_fail(void **state)
{
	fixture *f = *state;
	json_t *base = make_card("base", "x");
	json_object_set_new(base, "license", json_string("as you like"));
	bool refused = true;
	for (int64_t n = 0; refused; n++) {
		json_t *card = make_card("m", "x");
		allocations_fail(n, false);
		status s = model_card_add_base(card, "base", base) ? STATUS_OK : STATUS_NOMEM;
		if (s == STATUS_OK)
			s = finish(card, f->folder);
		unlink(path_of(f, MODEL_CARD_FILE)); /* jansson's parser reports a shortage as malformed text */
		if (s == STATUS_OK)
			s = model_card_import("again", f->folder, files, NULL);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_true(s == STATUS_OK ? !refused : s == STATUS_NOMEM && refused);
		json_decref(card);
		assert_int_equal(file_remove_tree(f->folder, NULL), STATUS_OK);
		assert_int_equal(file_make_folders(f->folder, NULL), STATUS_OK);
	}
	json_decref(base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_card_has_the_job_its_files_and_its_results, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_card_is_written_in_the_same_bytes_each_time, setup, teardown),
	    cmocka_unit_test_setup_teardown(text_from_elsewhere_is_only_inside_code, setup, teardown),
	    cmocka_unit_test_setup_teardown(only_a_parent_with_the_form_of_a_hub_id_is_in_the_front_matter, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(parents_are_those_of_the_base_and_bounded, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_licence_stays_byte_for_byte_and_is_that_of_what_is_trained_from_the_model,
	                                    setup, teardown),
	    cmocka_unit_test_setup_teardown(an_exported_model_becomes_a_parent_of_its_import, setup, teardown),
	    cmocka_unit_test_setup_teardown(entries_of_another_form_in_an_imported_card_are_left_out, setup, teardown),
	    cmocka_unit_test_setup_teardown(an_import_keeps_its_own_page_and_a_wrong_card_is_refused, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_card_of_more_than_64_levels_is_refused, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_card_that_is_too_large_loses_its_recipe, setup, teardown),
	    cmocka_unit_test_setup_teardown(each_allocation_may_fail, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
