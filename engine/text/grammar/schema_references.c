#include "engine/text/grammar/schema_compiler.h"

#include <stdlib.h>
#include <string.h>

/* --- pointers ----------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

/* One character of a pointer in a fragment, without its percent-encoding. */
static char read_encoded(const char **p)
{
	const char c = *(*p)++;
	if (c != '%')
		return c;
	const int high = hex_digit((*p)[0]), low = high < 0 ? -1 : hex_digit((*p)[1]);
	if (low < 0)
		return c;
	*p += 2;
	return (char)(high << 4 | low);
}

/* One part of the pointer, from after a slash to the next one. False: it is too long. */
static bool read_part(const char **p, char *key, size_t size)
{
	size_t n = 0;
	while (**p && **p != '/' && n + 1 < size) {
		char c = read_encoded(p);
		if (c == '~' && (**p == '0' || **p == '1'))
			c = *(*p)++ == '0' ? '~' : '/';
		key[n++] = c;
	}
	key[n] = '\0';
	return !**p || **p == '/';
}

static const json_t *member(const json_t *of, const char *key)
{
	char *end;
	if (!json_is_array(of))
		return json_object_get(of, key);
	const unsigned long i = strtoul(key, &end, 10);
	return *key && !*end ? json_array_get(of, i) : NULL;
}

/* Return the part of the root that "#/…" names; NULL if it has none. */
static const json_t *schema_resolve(const schema_compiler *c, const json_t *ref)
{
	const char *p = json_string_value(ref);
	const json_t *at = p && *p == '#' ? c->root : NULL;
	char key[256];
	for (p = at ? p + 1 : ""; at && *p == '/';) {
		p++;
		at = read_part(&p, key, sizeof key) ? member(at, key) : NULL;
	}
	return *p ? NULL : at;
}

const json_t *schema_follow(const schema_compiler *c, const json_t *schema)
{
	enum { LONGEST = 64 };
	for (int i = 0; i < LONGEST && schema; i++) {
		const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
		if (ref)
			schema = schema_resolve(c, ref);
		else if (json_array_size(all) == 1)
			schema = json_array_get(all, 0);
		else
			return schema;
	}
	return NULL;
}

/* --- nodes ---------------------------------------------------------------------------------------- */

/* The names of tags, each after a NUL, in a new block. */
static char *join_tags(const schema_tags *tags, size_t *bytes)
{
	size_t n = 1;
	for (const schema_tags *t = tags; t; t = t->outer)
		n += strlen(t->name) + 1;
	char *joined = calloc(n, 1), *to = joined;
	for (const schema_tags *t = tags; joined && t; t = t->outer) {
		memcpy(to + 1, t->name, strlen(t->name));
		to += strlen(t->name) + 1;
	}
	*bytes = n;
	return joined;
}

static schema_reference *schema_references_find(schema_compiler *c, const json_t *schema, const char *tags,
                                                size_t bytes)
{
	for (int i = 0; i < c->n_references; i++) {
		schema_reference *r = &c->references[i];
		if (r->schema == schema && r->tag_bytes == bytes && memcmp(r->tags, tags, bytes) == 0)
			return r;
	}
	return NULL;
}

static grammar_node schema_references_compile(schema_compiler *c, const json_t *ref, const json_t *schema,
                                              const schema_tags *tags, grammar_node node)
{
	char path[SCHEMA_PATH_BYTES];
	memcpy(path, c->path, sizeof path);
	c->path[0] = '\0';
	const grammar_node as = schema_inner(c, json_string_value(ref), schema, tags);
	memcpy(c->path, path, sizeof path);
	grammar_define(c->json.g, node, as);
	return as < 0 ? -1 : node;
}

grammar_node schema_reference_node(schema_compiler *c, const json_t *ref, const schema_tags *tags)
{
	const json_t *schema = schema_resolve(c, ref);
	size_t bytes;
	if (!schema)
		return schema_refuse(c, STATUS_INVALID, "$ref",
		                     "must name a part of the schema, such as \"#/$defs/NAME\"");
	char *joined = join_tags(tags, &bytes);
	if (!joined)
		return schema_out_of_memory(c);
	const schema_reference *known = schema_references_find(c, schema, joined, bytes);
	if (known || c->n_references == SCHEMA_MAX_REFERENCES) {
		free(joined);
		return known ? known->node
		             : schema_refuse(c, STATUS_TOO_LARGE, "$ref", "more than %d references",
		                             SCHEMA_MAX_REFERENCES);
	}
	const grammar_node node = grammar_forward(c->json.g);
	c->references[c->n_references++] = (schema_reference){schema, joined, bytes, node};
	return schema_references_compile(c, ref, schema, tags, node);
}

void schema_references_fini(schema_compiler *c)
{
	for (int i = 0; i < c->n_references; i++)
		free(c->references[i].tags);
}
