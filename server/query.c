/* A row of the router describes the parameters it takes. A string without choices is an id or a word, and an object is
 * OpenAI's filter by metadata. */
#include "server/query.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/nearest.h"

/* OpenAI's filter: "metadata[KEY]=VALUE" for each member, or "metadata=null" for rows without any. */
enum { QUERY_KEY_CHARACTERS = 64, QUERY_KEY_BYTES = 4 * QUERY_KEY_CHARACTERS, QUERY_VALUE_CHARACTERS = 512 };
static const char query_metadata[] = "metadata[";

enum { QUERY_MEANT_BYTES = NEAREST_BYTES + 24 };

/* Number of code points; the text is valid UTF-8. */
static size_t query_characters(const char *text)
{
	size_t n = 0;
	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80;
	return n;
}

/* The KEY, into out; false when the name is another one. "metadata[a][b]" would be an object in an object, which the
 * filter cannot have. */
static bool query_key(const char *name, char out[QUERY_KEY_BYTES + 1])
{
	size_t prefix = sizeof query_metadata - 1, bytes = strlen(name);
	if (strncmp(name, query_metadata, prefix) != 0 || name[bytes - 1] != ']' || bytes - prefix < 2 ||
	    bytes - prefix - 1 > QUERY_KEY_BYTES || strstr(name, "]["))
		return false;
	snprintf(out, QUERY_KEY_BYTES + 1, "%.*s", (int)(bytes - prefix - 1), name + prefix);
	return query_characters(out) <= QUERY_KEY_CHARACTERS;
}

/* The row's parameter of that name, or NULL. */
static const field *query_find(const request *r, const char *name)
{
	char key[QUERY_KEY_BYTES + 1];
	const char *known = query_key(name, key) ? "metadata" : name;
	for (const field *f = r->route->query; f && f->name; f++)
		if (strcmp(f->name, known) == 0)
			return f;
	return NULL;
}

static bool query_count(const field *f, const char *text, long *out)
{
	char *end;
	errno = 0;
	*out = strtol(text, &end, 10);
	return isdigit((unsigned char)*text) && *end == '\0' && errno == 0 && (double)*out >= f->min &&
	       (double)*out <= f->max;
}

static bool query_chosen(const field *f, const char *value)
{
	for (int i = 0; f->choices[i]; i++)
		if (strcmp(f->choices[i], value) == 0)
			return true;
	return false;
}

static bool query_fits(const field *f, const char *name, const char *value)
{
	long count;
	switch (f->type) {
	case FIELD_STRING:
		return f->choices ? query_chosen(f, value) : uri_id_valid(value);
	case FIELD_INTEGER:
		return query_count(f, value, &count);
	case FIELD_OBJECT:
		return strcmp(name, "metadata") == 0 ? strcmp(value, "null") == 0
		                                     : query_characters(value) <= QUERY_VALUE_CHARACTERS;
	default:
		return true;
	}
}

static void query_suggest(const nearest *near, char out[QUERY_MEANT_BYTES])
{
	*out = '\0';
	if (nearest_found(near))
		snprintf(out, QUERY_MEANT_BYTES, " (did you mean \"%s\"?)", nearest_found(near));
}

static void query_refuse_unknown(request *r, const char *name)
{
	char meant[QUERY_MEANT_BYTES];
	nearest near = nearest_of(name);
	for (const field *f = r->route->query; f && f->name; f++)
		nearest_offer(&near, f->name);
	query_suggest(&near, meant);
	reply_refuse(r, 400, "unknown_parameter", name, "unknown query parameter '%s'%s", name, meant);
}

/* The message lists what the value may be, if the field allows few words or a range. */
static void query_refuse(request *r, const field *f, const uri_pair *q)
{
	char expected[160], meant[QUERY_MEANT_BYTES];
	nearest near = nearest_of(q->value);
	schema_expected(f, expected, sizeof expected);
	for (int i = 0; f->choices && f->choices[i]; i++)
		nearest_offer(&near, f->choices[i]);
	query_suggest(&near, meant);
	if (uri_query(&r->uri, q->name) != q->value)
		reply_refuse(r, 400, "invalid_value", q->name, "query parameter '%s' is given twice", q->name);
	else if (f->choices || f->type == FIELD_INTEGER)
		reply_refuse(r, 400, "invalid_value", q->name, "query parameter '%s' must be %s, not \"%.64s\"%s",
		             q->name, expected, q->value, meant);
	else
		reply_refuse(r, 400, "invalid_value", q->name, "query parameter '%s' is not valid", q->name);
}

bool query_check(request *r)
{
	int members = 0;
	for (int i = 0; i < r->uri.n_query; i++) {
		const uri_pair *q = &r->uri.query[i];
		const field *f = query_find(r, q->name);
		if (!f) {
			query_refuse_unknown(r, q->name);
			return false;
		}
		if (uri_query(&r->uri, q->name) != q->value || !query_fits(f, q->name, q->value)) {
			query_refuse(r, f, q);
			return false;
		}
		members += f->type == FIELD_OBJECT;
		if (f->type == FIELD_OBJECT && members > f->max) {
			reply_refuse(r, 400, "out_of_range", f->name, "query parameter '%s' has more than %.0f members",
			             f->name, f->max);
			return false;
		}
	}
	return true;
}

static bool query_add_metadata(json_t *params, const uri_pair *q)
{
	char key[QUERY_KEY_BYTES + 1];
	json_t *metadata = json_object_get(params, "metadata");
	if (!metadata && json_object_set_new(params, "metadata", json_object()) != 0)
		return false;
	metadata = json_object_get(params, "metadata");
	return !query_key(q->name, key) || json_object_set_new(metadata, key, json_string(q->value)) == 0;
}

bool query_add(const request *r, json_t *params)
{
	bool ok = true;
	for (int i = 0; ok && i < r->uri.n_query; i++) {
		const uri_pair *q = &r->uri.query[i];
		const field *f = query_find(r, q->name);
		long count = 0;
		if (f->type == FIELD_OBJECT)
			ok = query_add_metadata(params, q);
		else if (f->type == FIELD_INTEGER && query_count(f, q->value, &count))
			ok = json_object_set_new(params, q->name, json_integer(count)) == 0;
		else if (f->type == FIELD_STRING)
			ok = json_object_set_new(params, q->name, json_string(q->value)) == 0;
	}
	return ok;
}
