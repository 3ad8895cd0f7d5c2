#include "engine/text/grammar/schema_compiler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

enum { MOST_PROPERTIES = 1024 };

typedef struct property {
	const char *name;
	size_t bytes;
	grammar_node key, value;
	bool required;
} property;

typedef struct object {
	property *properties; /* in order */
	property **sorted;    /* by name; those whose names need no escape */
	int n, n_sorted;
	grammar_node extra; /* a member of another name; negative: there is none */
} object;

static int by_name(const void *pa, const void *pb)
{
	const property *a = *(property *const *)pa, *b = *(property *const *)pb;
	const int order = memcmp(a->name, b->name, a->bytes < b->bytes ? a->bytes : b->bytes);
	return order != 0 ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* The rest of a name, and its closing quotation mark, that begins as names[0…n) do with their first `at` bytes, and is
 * none of these. Where names part within a character, others that begin with the same byte are left out. */
static grammar_node other_names(const schema_compiler *c, property **names, int n, size_t at, grammar_node any)
{
	grammar_node ways[258];
	byte_set taken = {{0}};
	int n_ways = 0, i = 0;
	if (n == 0)
		return any;
	if (names[0]->bytes == at) /* it is sorted first, and ends here */
		i = 1;
	else
		ways[n_ways++] = json_form_text(&c->json, "\"");
	while (i < n) {
		const unsigned char byte = (unsigned char)names[i]->name[at];
		int same = i;
		size_t length = 1; /* the character's bytes */
		while (same < n && (unsigned char)names[same]->name[at] == byte)
			same++;
		byte_set_add(&taken, byte, byte);
		while (at + length < names[i]->bytes && ((unsigned char)names[i]->name[at + length] & 0xc0) == 0x80)
			length++;
		for (int from = i, to; from < same; from = to) {
			for (to = from; to < same && memcmp(names[to]->name + at, names[from]->name + at, length) == 0;
			     to++)
				;
			const grammar_node first = grammar_text(c->json.g, names[from]->name + at, length);
			const grammar_node rest = other_names(c, names + from, to - from, at + length, any);
			if (n_ways < 256)
				ways[n_ways++] = grammar_sequence(c->json.g, NODES(first, rest));
		}
		i = same;
	}
	const grammar_node other = json_form_plain(&c->json, &taken);
	ways[n_ways++] = grammar_sequence(c->json.g, NODES(other, any));
	return grammar_choice(c->json.g, ways, n_ways);
}

/* The name of a property that the schema does not have. */
static grammar_node other_name(const schema_compiler *c, const object *o)
{
	const grammar_node quote = json_form_text(&c->json, "\"");
	if (o->n == 0)
		return c->json.string;
	const grammar_node any =
	    grammar_sequence(c->json.g, NODES(grammar_repeat(c->json.g, c->json.plain, 0, GRAMMAR_NO_BOUND), quote));
	return grammar_sequence(c->json.g, NODES(quote, other_names(c, o->sorted, o->n_sorted, 0, any)));
}

/* The members from property i on; tails[begun] are those after it. begun: a member has been written. */
static grammar_node tail(const schema_compiler *c, const object *o, int i, bool started, const grammar_node tails[2])
{
	const property *p = &o->properties[i];
	const grammar_node comma = started ? json_form_comma(&c->json) : grammar_sequence(c->json.g, NULL, 0);
	const grammar_node with =
	    grammar_sequence(c->json.g, NODES(comma, json_form_member(&c->json, p->key, p->value), tails[1]));
	return p->required ? with : grammar_choice(c->json.g, NODES(with, tails[started]));
}

static grammar_node join_members(const schema_compiler *c, const object *o)
{
	grammar_node tails[2] = {grammar_sequence(c->json.g, NULL, 0), grammar_sequence(c->json.g, NULL, 0)};
	if (o->extra >= 0) {
		tails[1] =
		    grammar_repeat(c->json.g, grammar_sequence(c->json.g, NODES(json_form_comma(&c->json), o->extra)),
		                   0, GRAMMAR_NO_BOUND);
		tails[0] = json_form_optional(&c->json, grammar_sequence(c->json.g, NODES(o->extra, tails[1])));
	}
	for (int i = o->n - 1; i >= 0; i--) {
		const grammar_node both[2] = {tail(c, o, i, false, tails), tail(c, o, i, true, tails)};
		memcpy(tails, both, sizeof tails);
	}
	return grammar_sequence(c->json.g,
	                        NODES(json_form_text(&c->json, "{"), tails[0], json_form_text(&c->json, "}")));
}

static grammar_node key_node(schema_compiler *c, const char *name, size_t bytes)
{
	json_t *string = json_stringn(name, bytes);
	const grammar_node node = string ? schema_value(c, string) : schema_out_of_memory(c);
	json_decref(string);
	return node;
}

static bool needs_escape(const char *name, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if ((unsigned char)name[i] < 0x20 || name[i] == '"' || name[i] == '\\')
			return true;
	return false;
}

static void add_property(schema_compiler *c, object *o, const char *name, size_t bytes, const json_t *schema)
{
	char where[SCHEMA_PATH_BYTES];
	property *p = &o->properties[o->n++];
	*p = (property){.name = name, .bytes = bytes, .key = key_node(c, name, bytes), .value = c->json.value};
	snprintf(where, sizeof where, "properties.%s", name);
	if (schema)
		p->value = schema_inner(c, where, schema, NULL);
	if (!needs_escape(name, bytes))
		o->sorted[o->n_sorted++] = p;
}

static property *find_property(const object *o, const char *name, size_t bytes)
{
	for (int i = 0; i < o->n; i++)
		if (o->properties[i].bytes == bytes && memcmp(o->properties[i].name, name, bytes) == 0)
			return &o->properties[i];
	return NULL;
}

/* Mark a property as required; a name without a schema gets a property of its own. */
static void require(schema_compiler *c, object *o, const char *name, size_t bytes, const json_t *extra)
{
	property *p = find_property(o, name, bytes);
	if (!p) {
		add_property(c, o, name, bytes, NULL);
		p = &o->properties[o->n - 1];
		if (json_is_object(extra))
			p->value = schema_inner(c, "additionalProperties", extra, NULL);
		else if (json_is_false(extra))
			p->value = grammar_choice(c->json.g, NULL, 0);
	}
	p->required = true;
}

static void read_required(schema_compiler *c, object *o, const json_t *required, const json_t *extra)
{
	for (size_t i = 0; i < json_array_size(required); i++) {
		const json_t *item = json_array_get(required, i);
		if (!json_is_string(item)) {
			schema_refuse(c, STATUS_INVALID, "required", "must be names");
			return;
		}
		require(c, o, json_string_value(item), json_string_length(item), extra);
	}
}

/* Counts that an object with these properties keeps by itself. */
static void check_counts(schema_compiler *c, const object *o, int32_t min, int32_t max)
{
	int32_t required = 0;
	for (int i = 0; i < o->n; i++)
		required += o->properties[i].required;
	if (min > required)
		schema_refuse(c, STATUS_UNSUPPORTED, "minProperties",
		              "is implemented up to the number of required properties");
	if (max != GRAMMAR_NO_BOUND && (max < o->n || o->extra >= 0))
		schema_refuse(c, STATUS_UNSUPPORTED, "maxProperties",
		              "is not implemented below the number of properties");
}

static grammar_node known_properties(schema_compiler *c, object *o, const json_t *schema, const schema_tags *tags)
{
	const json_t *extra = json_object_get(schema, "additionalProperties");
	const char *name;
	size_t bytes;
	json_t *one;
	int32_t min, max;
	json_object_keylen_foreach((json_t *)(uintptr_t)json_object_get(schema, "properties"), name, bytes, one)
	    add_property(c, o, name, bytes, one);
	read_required(c, o, json_object_get(schema, "required"), extra);
	for (; tags; tags = tags->outer)
		require(c, o, tags->name, strlen(tags->name), extra);
	if (o->n_sorted > 0)
		qsort(o->sorted, (size_t)o->n_sorted, sizeof *o->sorted, by_name);
	const grammar_node value =
	    !extra || json_is_boolean(extra) ? c->json.value : schema_inner(c, "additionalProperties", extra, NULL);
	if (extra ? !json_is_false(extra) : o->n == 0)
		o->extra = json_form_member(&c->json, other_name(c, o), value);
	if (schema_read_bounds(c, schema, "minProperties", "maxProperties", &min, &max))
		check_counts(c, o, min, max);
	return join_members(c, o);
}

/* --- objects whose names are not listed --------------------------------------------------------- */

static bool is_string_schema(const schema_compiler *c, const json_t *schema)
{
	bool types[TYPES] = {[STRING] = true};
	schema = schema_follow(c, schema);
	const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
	if (type || !values)
		return type ? json_is_string(type) && strcmp(json_string_value(type), "string") == 0
		            : json_is_string(json_object_get(schema, "const")) || json_object_get(schema, "pattern") ||
		                  json_object_get(schema, "minLength") || json_object_get(schema, "maxLength") ||
		                  json_object_get(schema, "format");
	bool all = true;
	for (size_t i = 0; i < json_array_size(values); i++)
		all &= schema_is_of_types(json_array_get(values, i), types);
	return all;
}

/* The name of a member, as "propertyNames" or the one pattern of "patternProperties" says. *value: its schema. */
static grammar_node free_name(schema_compiler *c, const json_t *schema, const char **where, const json_t **value)
{
	const json_t *names = json_object_get(schema, "propertyNames");
	json_t *patterns = json_object_get(schema, "patternProperties");
	*where = "additionalProperties";
	*value = json_object_get(schema, *where);
	if (names)
		return is_string_schema(c, names)
		           ? schema_inner(c, "propertyNames", names, NULL)
		           : schema_refuse(c, STATUS_UNSUPPORTED, "propertyNames", "must be a schema of strings");
	if (!patterns)
		return c->json.string;
	*where = "patternProperties";
	if (json_object_size(patterns) != 1)
		return schema_refuse(c, STATUS_UNSUPPORTED, *where, "is implemented for one pattern");
	*value = json_object_iter_value(json_object_iter(patterns));
	json_t *pattern = json_pack("{s:s}", "pattern", json_object_iter_key(json_object_iter(patterns)));
	const grammar_node name = pattern ? schema_inner(c, *where, pattern, NULL) : schema_out_of_memory(c);
	json_decref(pattern);
	return name;
}

/* A name may be repeated, which makes one property of two members. So there may be fewer of them than there are
 * members, but not none. */
static grammar_node free_properties(schema_compiler *c, const json_t *schema, const schema_tags *tags)
{
	int32_t min, max;
	const char *keyword = json_object_get(schema, "propertyNames") ? "propertyNames" : "patternProperties";
	if (json_object_size(json_object_get(schema, "properties")) > 0 ||
	    json_array_size(json_object_get(schema, "required")) > 0 || tags ||
	    (json_object_get(schema, "propertyNames") && json_object_get(schema, "patternProperties")))
		return schema_refuse(c, STATUS_UNSUPPORTED, keyword, "is not implemented beside other names");
	if (!schema_read_bounds(c, schema, "minProperties", "maxProperties", &min, &max))
		return -1;
	if (min > 1)
		return schema_refuse(c, STATUS_UNSUPPORTED, "minProperties", "more than 1 is not implemented here");
	const char *where;
	const json_t *value;
	const grammar_node name = free_name(c, schema, &where, &value);
	const grammar_node member =
	    json_form_member(&c->json, name, value ? schema_inner(c, where, value, NULL) : c->json.value);
	return json_form_object(&c->json, member, min, max);
}

grammar_node schema_object(schema_compiler *c, const json_t *schema, const schema_tags *tags)
{
	const json_t *properties = json_object_get(schema, "properties"),
	             *required = json_object_get(schema, "required");
	size_t most = json_object_size(properties) + json_array_size(required);
	for (const schema_tags *t = tags; t; t = t->outer)
		most++;
	if (properties && !json_is_object(properties))
		return schema_refuse(c, STATUS_INVALID, "properties", "must be an object of schemas");
	if (required && !json_is_array(required))
		return schema_refuse(c, STATUS_INVALID, "required", "must be a list of names");
	if (most > MOST_PROPERTIES)
		return schema_refuse(c, STATUS_TOO_LARGE, "properties", "more than %d properties", MOST_PROPERTIES);
	if (json_object_get(schema, "propertyNames") || json_object_get(schema, "patternProperties") || most == 0)
		return free_properties(c, schema, tags);
	object o = {.properties = memory_new(most, sizeof *o.properties),
	            .sorted = memory_new(most, sizeof *o.sorted),
	            .extra = -1};
	const grammar_node node =
	    o.properties && o.sorted ? known_properties(c, &o, schema, tags) : schema_out_of_memory(c);
	free(o.properties);
	free(o.sorted);
	return node;
}
