#include "engine/daemon/catalog/model_cards.h"

#include <stdlib.h>
#include <string.h>

#include "engine/daemon/catalog/catalog.h"
#include "engine/recipe/job_document.h"
#include "engine/recipe/job_tokenizer.h"
#include "engine/recipe/model_card.h"

/* depth: number of models between this one and the first that was asked for. */
static status find_card(json_t **out, store *s, const char *id, int depth, error *err);

/* --- a job's model ----------------------------------------------------------------------- */

/* id: NULL if there is no such file. The job's files cannot be deleted before it has ended. Afterwards only the id may
 * be known. */
static status add_job_file(json_t *card, store *s, const char *use, const char *id)
{
	store_file f = {0};
	if (!id)
		return STATUS_OK;
	if (store_file_get(s, id, &f, NULL) != STATUS_OK)
		snprintf(f.id, sizeof f.id, "%s", id);
	return model_card_add_file(card, use, &f) ? STATUS_OK : STATUS_NOMEM;
}

static status add_job_files(json_t *card, store *s, const json_t *request)
{
	size_t i;
	const json_t *file, *several = json_object_get(request, "training_files");
	if (!several)
		TRY(add_job_file(card, s, "training", job_document_text(request, "training_file")));
	json_array_foreach(several, i, file) TRY(add_job_file(card, s, "training", job_document_text(file, "file")));
	TRY(add_job_file(card, s, "validation", job_document_text(request, "validation_file")));
	return add_job_file(card, s, "tokenizer", job_tokenizer_file(json_object_get(request, "tokenizer")));
}

static status add_base(json_t *card, store *s, const char *id, int depth, error *err)
{
	json_t *base = NULL;
	error reason = ERROR_INIT;
	if (depth < MODEL_CARD_MAX_PARENTS) {
		const status found = find_card(&base, s, id, depth + 1, &reason);
		if (found != STATUS_OK && found != STATUS_NOT_FOUND) /* a deleted model remains a parent */
			return error_set(err, found, NULL, "%s", error_message(&reason));
	}
	const bool added = model_card_add_base(card, id, base);
	json_decref(base);
	return added ? STATUS_OK : STATUS_NOMEM;
}

static status card_of_job(json_t **out, store *s, const char *id, const json_t *job, int depth, error *err)
{
	const json_t *request = json_object_get(job, "request");
	const char *base = job_document_text(request, "base");
	json_t *card = *out = model_card_of_job(id, job);
	status result = card ? add_job_files(card, s, request) : STATUS_NOMEM;
	if (result == STATUS_OK && base)
		result = add_base(card, s, base, depth, err);
	if (result == STATUS_OK)
		return result;
	json_decref(card);
	*out = NULL;
	return error_settle(err, result);
}

status model_cards_of_job(json_t **out, store *s, const char *id, const json_t *job, error *err)
{
	return card_of_job(out, s, id, job, 0, err);
}

/* --- a model without a stored card ---------------------------------------------------------- */

typedef struct job_search {
	const store_model *model;
	json_t *found; /* new reference; NULL: none */
} job_search;

static bool made_model(const void *context, const json_t *row)
{
	const store_model *m = ((const job_search *)context)->model;
	const char *name = job_document_text(row, "fine_tuned_model");
	/* A model that was created after the end of the job has only the id of the job's model. */
	return name && job_document_is(row) && strcmp(name, m->id) == 0 &&
	       json_integer_value(json_object_get(row, "finished_at")) >= m->created;
}

static bool take_job(void *context, const json_t *row)
{
	((job_search *)context)->found = json_incref((json_t *)(uintptr_t)row);
	return false;
}

/* *job: the job that made the model, a new reference; NULL: unknown. */
static status find_job(json_t **job, store *s, const char *id, error *err)
{
	bool more;
	int64_t step;
	char of[STORE_ID_BYTES];
	store_model about;
	job_search search = {.model = &about};
	status result;
	if (catalog_parse_checkpoint(id, of, &step)) {
		result = store_job_get(s, of, &search.found, err);
	} else {
		TRY(store_model_get(s, id, &about, err));
		const store_page page = {.match = made_model, .match_context = &search};
		result = store_list(s, STORE_JOBS, &page, take_job, &search, &more, err);
	}
	*job = search.found;
	return result;
}

/* about: the manifest of a checkpoint, whose own results replace those of the job; or NULL. */
static status rebuild(json_t **out, store *s, const char *id, const manifest *about, int depth, error *err)
{
	json_t *job;
	TRY(find_job(&job, s, id, err));
	if (job) {
		const status result = card_of_job(out, s, id, job, depth, err);
		json_decref(job);
		TRY(result);
	} else {
		*out = model_card_new(id, NULL);
	}
	json_t *metrics = about ? json_object_get(manifest_about(about), "metrics") : NULL;
	if (*out && (!metrics || json_object_set(*out, "results", metrics) == 0))
		return STATUS_OK;
	json_decref(*out);
	*out = NULL;
	return error_settle(err, STATUS_NOMEM);
}

/* --- stored cards --------------------------------------------------------------------------- */

/* STATUS_NOT_FOUND: the model has none. */
static status read_card(json_t **out, store *s, const char *id, const manifest *about, error *err)
{
	char folder[PATH_MAX], *text;
	size_t bytes;
	if (!about || manifest_file_bytes(about, MODEL_CARD_FILE) < 0)
		return STATUS_NOT_FOUND;
	store_model_folder(s, id, folder);
	TRY(manifest_read(about, folder, MODEL_CARD_FILE, MODEL_CARD_MAX_BYTES, &text, &bytes, err));
	status result = model_card_read(out, text, bytes);
	free(text);
	return result == STATUS_INVALID
	           ? error_set(err, STATUS_STORAGE, NULL, MODEL_CARD_FILE " is not the card of a model")
	           : error_settle(err, result);
}

static status find_card(json_t **out, store *s, const char *id, int depth, error *err)
{
	char of[STORE_ID_BYTES];
	int64_t step;
	manifest *about;
	const bool checkpoint = catalog_parse_checkpoint(id, of, &step);
	*out = NULL;
	TRY(store_manifest(s, checkpoint ? STORE_CHECKPOINTS : STORE_MODELS, id, &about, err));
	status result = checkpoint ? STATUS_NOT_FOUND : read_card(out, s, id, about, err);
	if (result == STATUS_NOT_FOUND)
		result = rebuild(out, s, id, checkpoint ? about : NULL, depth, err);
	manifest_free(about);
	return result;
}

status model_cards_find(json_t **out, store *s, const char *id, error *err)
{
	return find_card(out, s, id, 0, err);
}
