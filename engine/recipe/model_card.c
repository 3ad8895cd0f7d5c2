#include "engine/recipe/model_card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/json_text.h"
#include "engine/base/path.h"
#include "engine/recipe/job_document.h"
#include "engine/recipe/model_card_page.h"

enum { MAX_LICENSE = 256 << 10, MAX_LEVELS = 64 };

json_t *model_card_new(const char *id, const char *source)
{
	return json_pack("{s:s, s:s, s:s?, s:n, s:[], s:[], s:n, s:n, s:n, s:n, s:n}", "object", "model.card", "id", id,
	                 "source", source, "job", "parents", "files", "recipe", "resolved", "results", "license",
	                 "origin");
}

/* --- a job's model --------------------------------------------------------------------------- */

/* Return a copy of the member; null if there is none. */
static json_t *copy_of(const json_t *object, const char *key)
{
	const json_t *found = json_object_get(object, key);
	return found ? json_deep_copy(found) : json_null();
}

/* Return a job's progress without what only matters while it runs. */
static json_t *results_of(const json_t *job)
{
	static const char *const transient[] = {"tokens_per_second", "learning_rate",           "gradient_norm",
	                                        "gradient_noise",    "suggested_learning_rate", "eta_seconds",
	                                        "paused_reason"};
	json_t *results = copy_of(job, "additive");
	for (size_t i = 0; i < sizeof transient / sizeof *transient; i++)
		json_object_del(results, transient[i]);
	if (!json_is_object(results) || json_object_set_new(results, "tokens", copy_of(job, "trained_tokens")) == 0)
		return results;
	json_decref(results);
	return NULL;
}

json_t *model_card_of_job(const char *id, const json_t *job)
{
	json_t *card = model_card_new(id, "training");
	json_t *of = json_pack("{s:o, s:o}", "id", copy_of(job, "id"), "created_at", copy_of(job, "created_at"));
	bool whole = json_object_set_new(card, "job", of) == 0;
	whole = json_object_set_new(card, "recipe", copy_of(job, "recipe")) == 0 && whole;
	whole = json_object_set_new(card, "resolved", copy_of(job, "resolved")) == 0 && whole;
	whole = json_object_set_new(card, "results", results_of(job)) == 0 && whole;
	if (whole)
		return card;
	json_decref(card);
	return NULL;
}

/* False: out of memory. */
static bool set_results(json_t *card, const train_progress *p)
{
	json_t *job = json_pack("{s:I}", "trained_tokens", (json_int_t)p->tokens);
	const bool set =
	    job && job_document_progress(job, p) && json_object_set_new(card, "results", results_of(job)) == 0;
	json_decref(job);
	return set;
}

/* A string; null if it is empty. */
static json_t *text_or_null(const char *text)
{
	return *text ? json_text_repaired(text) : json_null();
}

bool model_card_add_file(json_t *card, const char *use, const store_file *f)
{
	json_t *bytes = f->filename[0] ? json_integer((json_int_t)f->bytes) : json_null();
	json_t *file = json_pack("{s:s, s:o, s:o, s:o, s:o}", "use", use, "id", text_or_null(f->id), "filename",
	                         text_or_null(f->filename), "bytes", bytes, "sha256", text_or_null(f->sha256));
	return json_array_append_new(json_object_get(card, "files"), file) == 0;
}

/* --- parents ----------------------------------------------------------------------------------- */

static bool add_parent(json_t *card, const char *id, const char *relation)
{
	json_t *parents = json_object_get(card, "parents");
	return json_array_size(parents) >= MODEL_CARD_MAX_PARENTS ||
	       json_array_append_new(parents, json_pack("{s:s, s:s}", "model", id, "relation", relation)) == 0;
}

/* Return the relation as a constant; NULL: unknown. */
static const char *known_relation(const char *text)
{
	return !text                                    ? NULL
	       : strcmp(text, MODEL_CARD_TRAINED) == 0  ? MODEL_CARD_TRAINED
	       : strcmp(text, MODEL_CARD_IMPORTED) == 0 ? MODEL_CARD_IMPORTED
	                                                : NULL;
}

/* Add a parent, then those of its card, which may be NULL. Entries of another form, from an import, are left out. */
static bool add_parents(json_t *card, const char *id, const char *relation, const json_t *parent)
{
	size_t i;
	const json_t *other;
	bool whole = add_parent(card, id, relation);
	json_array_foreach(json_object_get(parent, "parents"), i, other)
	{
		const char *name = job_document_text(other, "model");
		relation = known_relation(job_document_text(other, "relation"));
		if (name && strlen(name) < STORE_ID_BYTES && relation)
			whole = whole && add_parent(card, name, relation);
	}
	return whole;
}

bool model_card_add_base(json_t *card, const char *id, const json_t *base)
{
	const char *license = job_document_text(base, "license");
	return (!license || json_object_set_new(card, "license", json_string(license)) == 0) &&
	       add_parents(card, id, MODEL_CARD_TRAINED, base);
}

/* --- files ------------------------------------------------------------------------------------- */

status model_card_read(json_t **out, const char *text, size_t bytes)
{
	TRY(json_read(out, text, bytes, JSON_REJECT_DUPLICATES, NULL));
	const char *object = job_document_text(*out, "object"), *id = job_document_text(*out, "id");
	if (object && strcmp(object, "model.card") == 0 && id && strlen(id) < STORE_ID_BYTES)
		return STATUS_OK;
	json_decref(*out);
	*out = NULL;
	return STATUS_INVALID;
}

static bool has(const char *folder, const char *name)
{
	char path[PATH_MAX];
	return path_join(path, folder, name, NULL) == STATUS_OK && access(path, F_OK) == 0;
}

/* text: freed. */
static status write_text(const char *folder, const char *name, char *text, error *err)
{
	char path[PATH_MAX];
	status s = text ? path_join(path, folder, name, err) : error_no_memory(err, "the model's card");
	if (s == STATUS_OK)
		s = file_write_scratch(path, text, strlen(text), err);
	free(text);
	return s;
}

/* Return the card as JSON of at most MODEL_CARD_MAX_BYTES: members become empty, the first of the list first, until it
 * fits. NULL: out of memory. */
static char *bounded_text(json_t *card)
{
	static const char *const members[] = {"recipe", "origin", "resolved", "license", "files"};
	for (size_t i = 0;; i++) {
		char *text = json_text(card, JSON_COMPACT);
		if (!text || strlen(text) <= MODEL_CARD_MAX_BYTES || i == sizeof members / sizeof *members)
			return text;
		free(text);
		if (json_object_set_new(card, members[i], strcmp(members[i], "files") ? json_null() : json_array()))
			return NULL;
	}
}

/* Write the files, the page with `page`. A licence that the import brought stays byte for byte. */
static status write_files(json_t *card, const char *folder, bool page, error *err)
{
	const char *license = job_document_text(card, "license");
	if (license && !has(folder, MODEL_CARD_LICENSE))
		TRY(write_text(folder, MODEL_CARD_LICENSE, strdup(license), err));
	TRY(write_text(folder, MODEL_CARD_FILE, bounded_text(card), err));
	return page ? write_text(folder, MODEL_CARD_PAGE, model_card_page(card), err) : STATUS_OK;
}

status model_card_finish(json_t *card, const train_progress *p, const char *folder, error *err)
{
	return set_results(card, p) ? write_files(card, folder, true, err) : error_no_memory(err, "the model's card");
}

/* --- imports ------------------------------------------------------------------------------------- */

/* Read a small file of the import. *text is NULL, with STATUS_OK, if there is none. */
static status read_small(char **text, size_t *bytes, const char *folder, const char *name, size_t limit, error *err)
{
	char path[PATH_MAX];
	error reason = ERROR_INIT;
	*text = NULL;
	TRY(path_join(path, folder, name, err));
	const status s = file_read(path, limit, text, bytes, &reason);
	if (s == STATUS_TOO_LARGE)
		return error_set(err, s, name, "%s is over the limit of %zu bytes", name, limit);
	return s == STATUS_OK || s == STATUS_NOT_FOUND ? STATUS_OK
	                                               : error_set(err, s, NULL, "%s", error_message(&reason));
}

/* True if a value has more levels of objects and arrays than this. */
static bool is_deeper(json_t *x, int levels)
{
	size_t i;
	const char *key;
	json_t *member;
	if (levels == 0)
		return json_is_object(x) || json_is_array(x);
	json_array_foreach(x, i, member) if (is_deeper(member, levels - 1)) return true;
	json_object_foreach(x, key, member) if (is_deeper(member, levels - 1)) return true;
	return false;
}

/* Make the exported model a parent. After several imports the origin is still the card of the first one. */
static status add_exported(json_t *card, const char *folder, error *err)
{
	char *text;
	size_t bytes;
	json_t *exported;
	TRY(read_small(&text, &bytes, folder, MODEL_CARD_FILE, MODEL_CARD_MAX_BYTES, err));
	if (!text)
		return STATUS_OK;
	status s = model_card_read(&exported, text, bytes);
	free(text);
	if (s == STATUS_INVALID)
		return error_set(err, s, MODEL_CARD_FILE, MODEL_CARD_FILE " is not the card of a model");
	TRY(error_settle(err, s));
	json_t *earlier = json_object_get(exported, "origin"), *origin = json_is_object(earlier) ? earlier : exported;
	if (is_deeper(origin, MAX_LEVELS))
		s = error_set(err, STATUS_INVALID, MODEL_CARD_FILE, MODEL_CARD_FILE " has more than %d levels",
		              MAX_LEVELS);
	else if (!add_parents(card, job_document_text(exported, "id"), MODEL_CARD_IMPORTED, exported) ||
	         json_object_set(card, "origin", origin) != 0)
		s = error_no_memory(err, "the model's card");
	json_decref(exported);
	return s;
}

static status add_license(json_t *card, const char *folder, error *err)
{
	char *text;
	size_t bytes;
	TRY(read_small(&text, &bytes, folder, MODEL_CARD_LICENSE, MAX_LICENSE, err));
	if (!text)
		return STATUS_OK;
	for (size_t i = 0; i < bytes; i++)
		if (!text[i])
			text[i] = '?';
	const int failed = json_object_set_new(card, "license", json_text_repaired(text));
	free(text);
	return failed ? error_no_memory(err, "the model's card") : STATUS_OK;
}

/* Add the files that the import brought, without those about where it comes from. */
static status add_import_files(json_t *card, const char *folder, const char *const *names, error *err)
{
	for (; *names; names++) {
		char path[PATH_MAX];
		struct stat st;
		store_file file = {0};
		TRY(path_join(path, folder, *names, err));
		if (strcmp(*names, MODEL_CARD_FILE) == 0 || strcmp(*names, MODEL_CARD_PAGE) == 0 ||
		    stat(path, &st) != 0)
			continue;
		file.bytes = st.st_size;
		snprintf(file.filename, sizeof file.filename, "%s", *names);
		TRY(checksum_file(path, file.sha256, err));
		if (!model_card_add_file(card, "import", &file))
			return error_no_memory(err, "the model's card");
	}
	return STATUS_OK;
}

status model_card_import(const char *id, const char *folder, const char *const *names, error *err)
{
	json_t *card = model_card_new(id, "import");
	if (!card)
		return error_no_memory(err, "the model's card");
	status s = add_exported(card, folder, err);
	const bool own_page = !json_is_object(json_object_get(card, "origin")) && has(folder, MODEL_CARD_PAGE);
	if (s == STATUS_OK)
		s = add_license(card, folder, err);
	if (s == STATUS_OK)
		s = add_import_files(card, folder, names, err);
	if (s == STATUS_OK)
		s = write_files(card, folder, !own_page, err);
	json_decref(card);
	return s;
}
