#include "engine/daemon/requests/listing.h"

#include <string.h>

typedef struct collector {
	stream *stream;
	json_t *data;
	json_t *(*convert)(stream *s, const json_t *row);
	bool failed;
} collector;

static bool listing_collect(void *context, const json_t *row)
{
	collector *c = context;
	json_t *object = c->convert ? c->convert(c->stream, row) : json_incref((json_t *)(uintptr_t)row);
	c->failed = json_array_append_new(c->data, object) != 0;
	return !c->failed;
}

typedef struct filter {
	const project_scope *scope; /* NULL: any project */
	const char *project;        /* NULL: every one that the scope sees */
	const char *object;     /* NULL: any */
	const json_t *metadata; /* not an object: any */
} filter;

/* True if the row's metadata contains all of `requested`; if that is empty, the row must have none. */
static bool has_metadata(const json_t *row, const json_t *requested)
{
	const json_t *metadata = json_object_get(row, "metadata");
	const char *key;
	json_t *member;
	if (json_object_size(requested) == 0)
		return json_object_size(metadata) == 0;
	json_object_foreach((json_t *)(uintptr_t)requested, key, member)
	{
		if (!json_equal(member, json_object_get(metadata, key)))
			return false;
	}
	return true;
}

static bool is_requested(const void *context, const json_t *row)
{
	const filter *f = context;
	const char *object = json_string_value(json_object_get(row, "object"));
	if (f->object && (!object || strcmp(object, f->object) != 0))
		return false;
	if (f->scope && !project_lists(f->scope, f->project, project_of(row)))
		return false;
	return !json_is_object(f->metadata) || has_metadata(row, f->metadata);
}

static const char *id_at(const json_t *data, size_t index)
{
	return json_string_value(json_object_get(json_array_get(data, index), "id"));
}

listing_page listing_read(const json_t *params, int64_t limit)
{
	const char *order = json_string_value(json_object_get(params, "order"));
	const json_int_t requested = json_integer_value(json_object_get(params, "limit"));
	return (listing_page){.after = json_string_value(json_object_get(params, "after")),
	                      .limit = requested > 0 ? requested : limit,
	                      .ascending = order && strcmp(order, "asc") == 0};
}

bool listing_limit(stream *s, json_int_t most)
{
	const json_int_t requested = json_integer_value(json_object_get(s->params, "limit"));
	if (requested <= most || json_object_set_new(s->params, "limit", json_integer(most)) == 0)
		return true;
	stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
	return false;
}

json_t *listing_object(json_t *data, bool more)
{
	const size_t n = json_array_size(data);
	return json_pack("{s:s, s:o, s:s?, s:s?, s:b}", "object", "list", "data", data, "first_id", id_at(data, 0),
	                 "last_id", n ? id_at(data, n - 1) : NULL, "has_more", more);
}

void listing_answer(stream *s, store_table table, const char *parent, int64_t limit,
                    json_t *(*convert)(stream *s, const json_t *row))
{
	listing_answer_of(s, table, parent, NULL, limit, convert);
}

void listing_answer_of(stream *s, store_table table, const char *parent, const char *object, int64_t limit,
                       json_t *(*convert)(stream *s, const json_t *row))
{
	error err = ERROR_INIT;
	bool more = false;
	collector c = {s, json_array(), convert, false};
	/* Rows with a parent belong to the project of that. */
	const filter requested = {parent ? NULL : &s->scope, json_string_value(json_object_get(s->params, "project")), object,
	                          json_object_get(s->params, "metadata")};
	const listing_page requested_page = listing_read(s->params, limit);
	store_page page = {.parent = parent,
	                   .after = requested_page.after,
	                   .project = requested.scope ? project_only(&s->scope, requested.project) : NULL,
	                   .filter = json_string_value(json_object_get(s->params, "purpose")),
	                   .match = !parent || object || json_is_object(requested.metadata) ? is_requested : NULL,
	                   .match_context = &requested,
	                   .limit = requested_page.limit,
	                   .ascending = requested_page.ascending};
	status result =
	    c.data ? store_list(s->net->store, table, &page, listing_collect, &c, &more, &err) : STATUS_NOMEM;
	if (result == STATUS_OK && c.failed)
		result = STATUS_NOMEM;
	if (result != STATUS_OK) {
		json_decref(c.data);
		error_set(&err, result, NULL, "%s", status_text(result));
		stream_error(s, &err, NULL);
		return;
	}
	stream_result(s, listing_object(c.data, more));
}
