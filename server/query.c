/* A row of the router names the parameters it takes; what each of them may be stands here, once. */
#include "server/query.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct query_kind {
	const char *name;
	enum {
		QUERY_ID,
		QUERY_COUNT,
		QUERY_ORDER,
		QUERY_WORD,
		QUERY_METADATA,
		QUERY_OWN
	} kind; /* OWN: the handler's */
} query_kind;

static const query_kind query_kinds[] = {
    {"after", QUERY_ID},   {"limit", QUERY_COUNT}, {"order", QUERY_ORDER},       {"purpose", QUERY_WORD},
    {"model", QUERY_ID},   {"stream", QUERY_OWN},  {"metadata", QUERY_METADATA}, {"position", QUERY_OWN},
    {"layers", QUERY_OWN}, {"heads", QUERY_OWN},   {"rounds", QUERY_OWN},        {"aggregate", QUERY_OWN},
    {NULL, QUERY_OWN}};

/* OpenAI's filter: "metadata[KEY]=VALUE" for each member, or "metadata=null" for rows without any. */
enum { QUERY_KEY_BYTES = 4 * 64, QUERY_VALUE_BYTES = 4 * 512 }; /* of as many characters */
static const char query_metadata[] = "metadata[";

/* The KEY, into out; false when the name is another one. */
static bool query_key(const char *name, char out[QUERY_KEY_BYTES + 1])
{
	size_t prefix = sizeof query_metadata - 1, bytes = strlen(name);
	if (strncmp(name, query_metadata, prefix) != 0 || name[bytes - 1] != ']' || bytes - prefix < 2 ||
	    bytes - prefix - 1 > QUERY_KEY_BYTES)
		return false;
	snprintf(out, QUERY_KEY_BYTES + 1, "%.*s", (int)(bytes - prefix - 1), name + prefix);
	return true;
}

static const query_kind *query_find(const char *name)
{
	const query_kind *k = query_kinds;
	char key[QUERY_KEY_BYTES + 1];
	const char *known = query_key(name, key) ? "metadata" : name;
	while (k->name && strcmp(k->name, known) != 0)
		k++;
	return k;
}

/* Is the word one of the space-separated list? */
static bool query_listed(const char *list, const char *word)
{
	size_t bytes = strlen(word);
	for (const char *at = list; at && bytes && (at = strstr(at, word)) != NULL; at += bytes)
		if ((at == list || at[-1] == ' ') && (at[bytes] == ' ' || at[bytes] == '\0'))
			return true;
	return false;
}

static bool query_count(const char *text, long *out)
{
	char *end;
	errno = 0;
	*out = strtol(text, &end, 10);
	return isdigit((unsigned char)*text) && *end == '\0' && errno == 0 && *out >= 1 && *out <= 10000;
}

static bool query_fits(const query_kind *k, const char *name, const char *value)
{
	long count;
	switch (k->kind) {
	case QUERY_ID:
	case QUERY_WORD:
		return uri_id_valid(value);
	case QUERY_COUNT:
		return query_count(value, &count);
	case QUERY_METADATA:
		return strcmp(name, "metadata") == 0 ? strcmp(value, "null") == 0 : strlen(value) <= QUERY_VALUE_BYTES;
	case QUERY_ORDER:
		return strcmp(value, "asc") == 0 || strcmp(value, "desc") == 0;
	default:
		return true;
	}
}

bool query_check(request *r)
{
	for (int i = 0; i < r->uri.n_query; i++) {
		const uri_pair *q = &r->uri.query[i];
		const query_kind *k = query_find(q->name);
		if (!k->name || !query_listed(r->route->query, k->name)) {
			reply_refuse(r, 400, "unknown_parameter", q->name, "unknown query parameter '%s'", q->name);
			return false;
		}
		if (uri_query(&r->uri, q->name) != q->value || !query_fits(k, q->name, q->value)) {
			reply_refuse(r, 400, "invalid_value", q->name, "query parameter '%s' is not valid", q->name);
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
		const query_kind *k = query_find(q->name);
		long count = 0;
		if (k->kind == QUERY_METADATA)
			ok = query_add_metadata(params, q);
		else if (k->kind == QUERY_COUNT && query_count(q->value, &count))
			ok = json_object_set_new(params, q->name, json_integer(count)) == 0;
		else if (k->kind != QUERY_OWN)
			ok = json_object_set_new(params, q->name, json_string(q->value)) == 0;
	}
	return ok;
}
