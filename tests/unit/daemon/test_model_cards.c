/* Cards of models that an earlier version has stored, and of checkpoints: what the ledger still knows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/daemon/catalog/model_cards.h"
#include "engine/recipe/model_card.h"
#include "tests/unit/support/folder.h"

#define JOB "ftjob-0123456789abcdef01234567"
#define CHECKPOINT "ckpt-0123456789abcdef01234567-4"

typedef struct fixture {
	char folder[FOLDER_BYTES];
	store *store;
} fixture;

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	folder_new(f->folder);
	assert_int_equal(store_open(&f->store, f->folder, NULL), STATUS_OK);
	*state = f;
	return 0;
}

enum { FINISHED = 9 }; /* when the job of add_job ended */

static int teardown(void **state)
{
	fixture *f = *state;
	store_close(f->store);
	assert_int_equal(file_remove_tree(f->folder, NULL), STATUS_OK);
	free(f);
	return 0;
}

/* Add a model with one file, which was created at this time. */
static void add_model_of(fixture *f, const char *id, int64_t created, const char *file, const char *text)
{
	char folder[PATH_MAX], path[PATH_MAX + 32];
	store_model m = {.owned_by = "t", .architecture = "a", .created = created};
	snprintf(m.id, sizeof m.id, "%s", id);
	store_temporary_path(f->store, folder);
	snprintf(path, sizeof path, "%s/%s", folder, file);
	assert_int_equal(file_make_folders(folder, NULL), STATUS_OK);
	assert_int_equal(file_write_scratch(path, text, strlen(text), NULL), STATUS_OK);
	assert_int_equal(store_model_add(f->store, &m, folder, NULL), STATUS_OK);
}

static void add_model(fixture *f, const char *id, const char *file, const char *text)
{
	add_model_of(f, id, 0, file, text);
}

/* Add an uploaded file and return it. */
static store_file add_file(fixture *f, const char *name)
{
	char path[PATH_MAX];
	store_file file = {.purpose = "fine-tune", .format = "auto"};
	snprintf(file.filename, sizeof file.filename, "%s", name);
	store_temporary_path(f->store, path);
	assert_int_equal(file_write_scratch(path, name, strlen(name), NULL), STATUS_OK);
	assert_int_equal(store_file_add(f->store, &file, path, NULL), STATUS_OK);
	return file;
}

/* Add the job that made `made` from `base` (or NULL), with two files. */
static void add_job(fixture *f, const char *made, const char *base, const char *training, const char *validation)
{
	json_t *job =
	    json_pack("{s:s, s:s, s:I, s:i, s:s, s:{s:s}, s:{s:i}, s:{s:f, s:f}, s:i, s:{s:s?, s:[{s:s}], s:s, s:{s:s}}}",
	              "id", JOB, "object", "fine_tuning.job", "created_at", (json_int_t)7, "finished_at", FINISHED, "fine_tuned_model", made,
	              "recipe", "model", "additive", "resolved", "seed", 3, "additive", "train_loss", 1.5,
	              "eta_seconds", 0.5, "trained_tokens", 20, "request", "base", base, "training_files", "file",
	              training, "validation_file", validation, "tokenizer", "file", "file-none");
	assert_non_null(job);
	assert_int_equal(store_job_put(f->store, JOB, "succeeded", job, NULL), STATUS_OK);
	json_decref(job);
}

static json_t *find(fixture *f, const char *id)
{
	json_t *card;
	assert_int_equal(model_cards_find(&card, f->store, id, NULL), STATUS_OK);
	assert_string_equal(json_string_value(json_object_get(card, "id")), id);
	return card;
}

static const char *entry_of(const json_t *card, const char *list, size_t i, const char *key)
{
	return json_string_value(json_object_get(json_array_get(json_object_get(card, list), i), key));
}

static void the_card_of_an_earlier_model_is_made_from_its_job(void **state)
{
	fixture *f = *state;
	store_file a = add_file(f, "a.txt"), b = add_file(f, "b.txt");
	add_model(f, "other", "config.json", "{}");
	add_model(f, "m", "config.json", "{}");
	add_job(f, "m", NULL, a.id, b.id);
	assert_int_equal(store_file_delete(f->store, b.id, NULL), STATUS_OK);
	json_t *card = find(f, "m");
	assert_string_equal(json_string_value(json_object_get(card, "source")), "training");
	assert_string_equal(json_string_value(json_object_get(json_object_get(card, "job"), "id")), JOB);
	assert_true(json_integer_value(json_object_get(json_object_get(card, "resolved"), "seed")) == 3 &&
	            json_real_value(json_object_get(json_object_get(card, "results"), "train_loss")) == 1.5 &&
	            json_integer_value(json_object_get(json_object_get(card, "results"), "tokens")) == 20);
	assert_string_equal(entry_of(card, "files", 0, "filename"), "a.txt");
	assert_string_equal(entry_of(card, "files", 0, "sha256"), a.sha256);
	assert_string_equal(entry_of(card, "files", 1, "use"), "validation");
	assert_string_equal(entry_of(card, "files", 1, "id"), b.id);
	assert_null(entry_of(card, "files", 1, "filename"));
	assert_string_equal(entry_of(card, "files", 2, "use"), "tokenizer");
	json_decref(card);
	assert_int_equal(store_job_delete(f->store, JOB, NULL), STATUS_OK);
	card = find(f, "m");
	assert_true(json_is_null(json_object_get(card, "source")) && json_is_null(json_object_get(card, "job")));
	json_decref(card);
}

static void a_model_that_came_after_a_job_is_not_that_job_s(void **state)
{
	fixture *f = *state;
	add_job(f, "m", NULL, "file-1", "file-2");
	add_model_of(f, "m", FINISHED + 1, "config.json", "{}");
	json_t *card = find(f, "m");
	assert_true(json_is_null(json_object_get(card, "source")) && json_is_null(json_object_get(card, "job")));
	json_decref(card);
	assert_int_equal(store_model_delete(f->store, "m", NULL), STATUS_OK);
	add_model_of(f, "m", FINISHED, "config.json", "{}");
	card = find(f, "m");
	assert_string_equal(json_string_value(json_object_get(card, "source")), "training");
	json_decref(card);
}

static void the_parents_of_its_base_are_on_a_card_that_is_made_from_a_job(void **state)
{
	fixture *f = *state;
	add_model(f, "base", MODEL_CARD_FILE,
	          "{\"object\": \"model.card\", \"id\": \"base\", \"license\": \"free\", \"parents\": "
	          "[{\"model\": \"root\", \"relation\": \"imported from\"}]}");
	add_model(f, "m", "config.json", "{}");
	add_job(f, "m", "base", "file-1", "file-2");
	json_t *card = find(f, "m");
	assert_int_equal(json_array_size(json_object_get(card, "parents")), 2);
	assert_string_equal(entry_of(card, "parents", 0, "model"), "base");
	assert_string_equal(entry_of(card, "parents", 1, "model"), "root");
	assert_string_equal(json_string_value(json_object_get(card, "license")), "free");
	json_decref(card);
	assert_int_equal(store_model_delete(f->store, "base", NULL), STATUS_OK);
	card = find(f, "m");
	assert_int_equal(json_array_size(json_object_get(card, "parents")), 1);
	assert_string_equal(entry_of(card, "parents", 0, "model"), "base");
	json_decref(card);
}

/* Only a damaged ledger can name a model as its own base. */
static void a_chain_without_end_is_cut(void **state)
{
	fixture *f = *state;
	add_model(f, "m", "config.json", "{}");
	add_job(f, "m", "m", "file-1", "file-2");
	json_t *card = find(f, "m");
	assert_int_equal(json_array_size(json_object_get(card, "parents")), MODEL_CARD_MAX_PARENTS);
	json_decref(card);
}

static void a_checkpoint_has_the_card_of_its_job_and_its_own_results(void **state)
{
	fixture *f = *state;
	char folder[PATH_MAX], path[PATH_MAX + 32];
	json_t *card,
	    *row = json_pack("{s:s, s:i, s:{s:f}}", "id", CHECKPOINT, "step_number", 4, "metrics", "train_loss", 2.5);
	add_job(f, "m", NULL, "file-1", "file-2");
	store_checkpoint_folder(f->store, JOB, 4, folder);
	snprintf(path, sizeof path, "%s/config.json", folder);
	assert_int_equal(file_make_folders(folder, NULL), STATUS_OK);
	assert_int_equal(file_write_scratch(path, "{}", 2, NULL), STATUS_OK);
	assert_int_equal(store_checkpoint_add(f->store, JOB, 4, row, NULL), STATUS_OK);
	card = find(f, CHECKPOINT);
	assert_true(json_equal(json_object_get(card, "results"), json_object_get(row, "metrics")));
	assert_string_equal(json_string_value(json_object_get(json_object_get(card, "job"), "id")), JOB);
	json_decref(card);
	json_decref(row);
	assert_int_equal(model_cards_find(&card, f->store, "none", NULL), STATUS_NOT_FOUND);
	assert_null(card);
}

static void a_damaged_card_is_an_error_that_names_it(void **state)
{
	fixture *f = *state;
	char folder[PATH_MAX], path[PATH_MAX + 32];
	json_t *card;
	error err = ERROR_INIT;
	add_model(f, "odd", MODEL_CARD_FILE, "{}");
	assert_int_equal(model_cards_find(&card, f->store, "odd", &err), STATUS_STORAGE);
	assert_non_null(strstr(err.message, MODEL_CARD_FILE));
	add_model(f, "m", MODEL_CARD_FILE, "{\"object\": \"model.card\", \"id\": \"m\"}");
	store_model_folder(f->store, "m", folder);
	snprintf(path, sizeof path, "%s/%s", folder, MODEL_CARD_FILE);
	assert_int_equal(file_write_scratch(path, "{\"object\": \"model.card\", \"id\": \"x\"}", 35, NULL), STATUS_OK);
	err = (error)ERROR_INIT;
	assert_int_equal(model_cards_find(&card, f->store, "m", &err), STATUS_STORAGE);
	assert_non_null(strstr(err.message, MODEL_CARD_FILE));
	assert_null(card);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(the_card_of_an_earlier_model_is_made_from_its_job, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_model_that_came_after_a_job_is_not_that_job_s, setup, teardown),
	    cmocka_unit_test_setup_teardown(the_parents_of_its_base_are_on_a_card_that_is_made_from_a_job, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_chain_without_end_is_cut, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_checkpoint_has_the_card_of_its_job_and_its_own_results, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_damaged_card_is_an_error_that_names_it, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
