#include "engine/daemon/faithfulness/faithfulness_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"

faithfulness_job *faithfulness_table_find(const faithfulness_jobs *all, const char *id)
{
	faithfulness_job *j = all->first;
	while (j && strcmp(j->id, id) != 0)
		j = j->next;
	return j;
}

faithfulness_job *faithfulness_table_add(faithfulness_jobs *all, const char *id, json_t *document)
{
	faithfulness_job **link = &all->first, *j = memory_new(1, sizeof *j);
	if (!j)
		return NULL;
	snprintf(j->id, sizeof j->id, "%s", id);
	j->document = json_incref(document);
	while (*link)
		link = &(*link)->next;
	*link = j;
	all->active++;
	return j;
}

void faithfulness_table_remove(faithfulness_jobs *all, faithfulness_job *j)
{
	faithfulness_job **link = &all->first;
	while (*link != j)
		link = &(*link)->next;
	*link = j->next;
	all->active--;
	json_decref(j->document);
	faithfulness_corpus_fini(&j->texts);
	free(j);
}

/* --- documents -------------------------------------------------------------------------------------- */

json_t *faithfulness_document_new(const char *id, const json_t *params, json_t *settings, int64_t texts)
{
	return json_pack("{s:s, s:s, s:I, s:n, s:s, s:O, s:O, s:{s:I, s:i}, s:o, s:n, s:n, s:O}", "id", id, "object",
	                 FAITHFULNESS_OBJECT, "created_at", (json_int_t)clock_unix(), "finished_at", "status", "queued",
	                 "model", json_object_get(params, "model"), "file", json_object_get(params, "file"), "texts",
	                 "total", (json_int_t)texts, "done", 0, "settings", settings, "error", "result", "request",
	                 params);
}

json_t *faithfulness_document_public(const json_t *document)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)document);
	if (copy)
		json_object_del(copy, "request");
	return copy;
}

static json_t *error_object(const error *why)
{
	return why ? json_pack("{s:s, s:s, s:s?}", "code", status_name(why->status), "message", error_message(why),
	                       "param", why->param[0] ? why->param : NULL)
	           : json_null();
}

json_t *faithfulness_document_in_state(const json_t *document, const char *state, bool ended, const error *why)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)document);
	if (json_object_set_new(copy, "status", json_string(state)) == 0 &&
	    json_object_set_new(copy, "finished_at", ended ? json_integer(clock_unix()) : json_null()) == 0 &&
	    json_object_set_new(copy, "error", error_object(why)) == 0)
		return copy;
	json_decref(copy);
	return NULL;
}

status faithfulness_document_put(const faithfulness_jobs *all, const json_t *document, error *err)
{
	return store_job_put(all->engine->store, json_string_value(json_object_get(document, "id")),
	                     json_string_value(json_object_get(document, "status")), document, err);
}

status faithfulness_table_change(faithfulness_jobs *all, faithfulness_job *j, json_t *next, error *err)
{
	status s = next ? faithfulness_document_put(all, next, err) : STATUS_NOMEM;
	if (s != STATUS_OK) {
		json_decref(next);
		return error_settle(err, s);
	}
	json_decref(j->document);
	j->document = next;
	return STATUS_OK;
}
