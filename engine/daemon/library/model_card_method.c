#include <string.h>

#include "engine/base/log.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/catalog/model_cards.h"
#include "engine/daemon/library/library.h"
#include "engine/daemon/library/models.h"

enum { MAX_EVALUATIONS = 100 };

typedef struct evaluations {
	const stream *stream; /* its scope decides which are shown */
	int64_t since;        /* creation of the model; earlier ones are of a deleted model with its id */
	json_t *list;
	bool failed;
} evaluations;

static const char *row_text(const json_t *row, const char *key)
{
	const char *text = json_string_value(json_object_get(row, key));
	return text ? text : "";
}

static bool is_shown(const void *context, const json_t *row)
{
	const stream *s = ((const evaluations *)context)->stream;
	return strcmp(row_text(row, "object"), "evaluation") == 0 && strcmp(row_text(row, "model"), s->target) == 0 &&
	       json_integer_value(json_object_get(row, "created_at")) >= ((const evaluations *)context)->since &&
	       json_is_object(json_object_get(row, "result")) && project_lists(&s->scope, NULL, project_of(row));
}

/* The report of an evaluation also has its worst tokens, which are left out. */
static bool collect_evaluation(void *context, const json_t *row)
{
	static const char *const members[] = {"id", "created_at", "file"};
	static const char *const numbers[] = {"tokens",     "bytes",         "nats_per_token",
	                                      "perplexity", "bits_per_byte", "accuracy"};
	evaluations *e = context;
	json_t *one = json_object();
	bool whole = one != NULL;
	for (size_t i = 0; i < sizeof members / sizeof *members; i++)
		whole = json_object_set(one, members[i], json_object_get(row, members[i])) == 0 && whole;
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		json_t *x = json_object_get(json_object_get(row, "result"), numbers[i]);
		whole = json_object_set(one, numbers[i], x ? x : json_null()) == 0 && whole;
	}
	e->failed = json_array_append_new(e->list, one) != 0 || !whole;
	return !e->failed;
}

/* Add the newest evaluations of the model to its card. created: of the model. */
static status add_evaluations(stream *s, json_t *card, int64_t created, error *err)
{
	bool more;
	evaluations e = {.stream = s, .since = created, .list = json_array()};
	const store_page page = {
	    .project = project_only(&s->scope, NULL), .match = is_shown, .match_context = &e, .limit = MAX_EVALUATIONS};
	if (json_object_set_new(card, "evaluations", e.list) != 0)
		return STATUS_NOMEM;
	TRY(store_list(library_of(s)->store, STORE_JOBS, &page, collect_evaluation, &e, &more, err));
	return e.failed ? STATUS_NOMEM : STATUS_OK;
}

void models_card(stream *s)
{
	error err = ERROR_INIT;
	json_t *card = NULL;
	model_entry *m = models_inspect(s); /* also checks that the request may use it */
	if (!m)
		return;
	const int64_t created = m->created;
	catalog_release(m);
	status result = model_cards_find(&card, library_of(s)->store, s->target, &err);
	if (result == STATUS_OK)
		result = add_evaluations(s, card, created, &err);
	if (result == STATUS_OK) {
		stream_result(s, card);
		return;
	}
	json_decref(card);
	if (result == STATUS_STORAGE)
		log_request(LOG_ERROR, s->request_id, "the model \"%s\" is damaged: %s", s->target,
		            error_message(&err));
	error_settle(&err, result);
	stream_error(s, &err, NULL);
}
