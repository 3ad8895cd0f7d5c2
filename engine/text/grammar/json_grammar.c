#include "engine/text/grammar/json_grammar.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/text/grammar/json_forms.h"

enum { DEEPEST = 64, MOST_PROPERTIES = 1024, MOST_REFERENCES = 1024, PATH_BYTES = 160 };

/* A schema that a reference names, and the node of its values. */
typedef struct reference {
	const json_t *schema;
	grammar_node node;
} reference;

typedef struct compiler {
	json_forms json;
	const json_t *root;
	char path[PATH_BYTES]; /* of the schema that is being read; "" of the root */
	int depth;
	reference references[MOST_REFERENCES];
	int n_references;
	error *err;
	status problem;
} compiler;

/* --- schemas -------------------------------------------------------------------------------- */

static grammar_node schema_node(compiler *c, const json_t *schema);

__attribute__((format(printf, 4, 5))) static grammar_node refuse(compiler *c, status why, const char *key,
                                                                 const char *format, ...)
{
	char words[160], path[2 * PATH_BYTES];
	va_list list;
	va_start(list, format);
	vsnprintf(words, sizeof words, format, list);
	va_end(list);
	snprintf(path, sizeof path, "%s%s%s", c->path, c->path[0] && key[0] ? "." : "", key);
	if (c->problem == STATUS_OK)
		c->problem = error_set(c->err, why, path, "%s", words);
	return -1;
}

/* The node of a schema within the current one. */
static grammar_node inner(compiler *c, const char *where, const json_t *schema)
{
	char before[PATH_BYTES];
	memcpy(before, c->path, sizeof before);
	const size_t used = strlen(before);
	snprintf(c->path + used, sizeof c->path - used, "%s%s", used ? "." : "", where);
	grammar_node node = -1;
	if (c->depth == DEEPEST)
		refuse(c, STATUS_TOO_LARGE, "", "schemas are nested more than %d deep", DEEPEST);
	else {
		c->depth++;
		node = schema_node(c, schema);
		c->depth--;
	}
	memcpy(c->path, before, sizeof before);
	return node;
}

/* A bound that is a whole number. */
static bool read_bound(compiler *c, const json_t *schema, const char *key, int32_t *out)
{
	const json_t *found = json_object_get(schema, key);
	const json_int_t x = json_integer_value(found);
	if (!found)
		return true;
	if (!json_is_integer(found) || x < 0 || x > INT32_MAX / 2) {
		refuse(c, STATUS_INVALID, key, "must be a whole number of at least 0");
		return false;
	}
	*out = (int32_t)x;
	return true;
}

static bool read_bounds(compiler *c, const json_t *schema, const char *least, const char *most, int32_t *min,
                        int32_t *max)
{
	*min = 0;
	*max = GRAMMAR_NO_BOUND;
	if (!read_bound(c, schema, least, min) || !read_bound(c, schema, most, max))
		return false;
	if (*max != GRAMMAR_NO_BOUND && *max < *min) {
		refuse(c, STATUS_INVALID, most, "is less than %s", least);
		return false;
	}
	return true;
}

static grammar_node string_node(compiler *c, const json_t *schema)
{
	int32_t min, max;
	if (!read_bounds(c, schema, "minLength", "maxLength", &min, &max))
		return -1;
	return min == 0 && max == GRAMMAR_NO_BOUND ? c->json.string : json_form_string(&c->json, min, max);
}

static grammar_node array_node(compiler *c, const json_t *schema)
{
	int32_t min, max;
	const json_t *items = json_object_get(schema, "items");
	if (!read_bounds(c, schema, "minItems", "maxItems", &min, &max))
		return -1;
	const grammar_node item = items ? inner(c, "items", items) : c->json.value;
	return item < 0 ? -1 : json_form_array(&c->json, item, min, max);
}

/* --- objects -------------------------------------------------------------------------------- */

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
static grammar_node other_names(const compiler *c, property **names, int n, size_t at, grammar_node any)
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
		size_t length = 1; /* of the character */
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
static grammar_node other_name(const compiler *c, const object *o)
{
	const grammar_node quote = json_form_text(&c->json, "\"");
	if (o->n == 0)
		return c->json.string;
	const grammar_node any =
	    grammar_sequence(c->json.g, NODES(grammar_repeat(c->json.g, c->json.plain, 0, GRAMMAR_NO_BOUND), quote));
	return grammar_sequence(c->json.g, NODES(quote, other_names(c, o->sorted, o->n_sorted, 0, any)));
}

/* What follows from property i on; tails[begun] is the same behind it. begun: a member has been written. */
static grammar_node tail(const compiler *c, const object *o, int i, bool begun, const grammar_node tails[2])
{
	const property *p = &o->properties[i];
	const grammar_node comma =
	    begun ? grammar_sequence(c->json.g, NODES(json_form_text(&c->json, ","), c->json.space))
	          : grammar_sequence(c->json.g, NULL, 0);
	const grammar_node with =
	    grammar_sequence(c->json.g, NODES(comma, json_form_member(&c->json, p->key, p->value), tails[1]));
	return p->required ? with : grammar_choice(c->json.g, NODES(with, tails[begun]));
}

static grammar_node join_members(const compiler *c, const object *o)
{
	grammar_node tails[2] = {grammar_sequence(c->json.g, NULL, 0), grammar_sequence(c->json.g, NULL, 0)};
	if (o->extra >= 0) {
		tails[1] = grammar_repeat(
		    c->json.g,
		    grammar_sequence(c->json.g, NODES(json_form_text(&c->json, ","), c->json.space, o->extra)), 0,
		    GRAMMAR_NO_BOUND);
		tails[0] = json_form_optional(&c->json, grammar_sequence(c->json.g, NODES(o->extra, tails[1])));
	}
	for (int i = o->n - 1; i >= 0; i--) {
		const grammar_node both[2] = {tail(c, o, i, false, tails), tail(c, o, i, true, tails)};
		memcpy(tails, both, sizeof tails);
	}
	return grammar_sequence(c->json.g, NODES(json_form_text(&c->json, "{"), c->json.space, tails[0], c->json.space,
	                                         json_form_text(&c->json, "}")));
}

static grammar_node key_node(compiler *c, const char *name, size_t bytes)
{
	json_t *string = json_stringn(name, bytes);
	char *json = string ? json_text(string, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
	const grammar_node node = json ? json_form_text(&c->json, json) : refuse(c, STATUS_NOMEM, "", "out of memory");
	free(json);
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

static void add_property(compiler *c, object *o, const char *name, size_t bytes, const json_t *schema)
{
	char where[PATH_BYTES];
	property *p = &o->properties[o->n++];
	*p = (property){.name = name, .bytes = bytes, .key = key_node(c, name, bytes), .value = c->json.value};
	snprintf(where, sizeof where, "properties.%s", name);
	if (schema)
		p->value = inner(c, where, schema);
	if (!needs_escape(name, bytes))
		o->sorted[o->n_sorted++] = p;
}

/* Mark what is required; a name without a schema gets a property of its own. */
static void read_required(compiler *c, object *o, const json_t *required, const json_t *extra)
{
	for (size_t i = 0; i < json_array_size(required); i++) {
		const json_t *item = json_array_get(required, i);
		const char *name = json_string_value(item);
		const size_t bytes = json_string_length(item);
		int found = 0;
		if (!name) {
			refuse(c, STATUS_INVALID, "required", "must be names");
			return;
		}
		while (found < o->n &&
		       (o->properties[found].bytes != bytes || memcmp(o->properties[found].name, name, bytes) != 0))
			found++;
		if (found == o->n) {
			add_property(c, o, name, bytes, NULL);
			if (json_is_object(extra))
				o->properties[found].value = inner(c, "additionalProperties", extra);
			else if (json_is_false(extra))
				o->properties[found].value = grammar_choice(c->json.g, NULL, 0);
		}
		o->properties[found].required = true;
	}
}

static grammar_node object_node(compiler *c, const json_t *schema)
{
	const json_t *properties = json_object_get(schema, "properties"),
	             *required = json_object_get(schema, "required"),
	             *extra = json_object_get(schema, "additionalProperties");
	const size_t most = json_object_size(properties) + json_array_size(required);
	const char *name;
	size_t bytes;
	json_t *one;
	if (properties && !json_is_object(properties))
		return refuse(c, STATUS_INVALID, "properties", "must be an object of schemas");
	if (required && !json_is_array(required))
		return refuse(c, STATUS_INVALID, "required", "must be a list of names");
	if (most > MOST_PROPERTIES)
		return refuse(c, STATUS_TOO_LARGE, "properties", "more than %d properties", MOST_PROPERTIES);
	object o = {.properties = memory_new(most, sizeof *o.properties),
	            .sorted = memory_new(most, sizeof *o.sorted),
	            .extra = -1};
	grammar_node node = -1;
	if (o.properties && o.sorted) {
		json_object_keylen_foreach((json_t *)(uintptr_t)properties, name, bytes, one)
		    add_property(c, &o, name, bytes, one);
		read_required(c, &o, required, extra);
		if (o.n_sorted > 0)
			qsort(o.sorted, (size_t)o.n_sorted, sizeof *o.sorted, by_name);
		const grammar_node value = json_is_false(extra)            ? -1
		                           : !extra || json_is_true(extra) ? c->json.value
		                                                           : inner(c, "additionalProperties", extra);
		if (!json_is_false(extra))
			o.extra = json_form_member(&c->json, other_name(c, &o), value);
		node = join_members(c, &o);
	} else {
		refuse(c, STATUS_NOMEM, "", "out of memory");
	}
	free(o.properties);
	free(o.sorted);
	return node;
}

/* --- a schema ---------------------------------------------------------------------------------- */

typedef enum type { OBJECT, ARRAY, STRING, NUMBER, INTEGER, BOOLEAN, NULL_TYPE, TYPES } type;
static const char *const type_names[TYPES] = {"object", "array", "string", "number", "integer", "boolean", "null"};

static grammar_node type_node(compiler *c, type t, const json_t *schema)
{
	switch (t) {
	case OBJECT:
		return object_node(c, schema);
	case ARRAY:
		return array_node(c, schema);
	case STRING:
		return string_node(c, schema);
	case NUMBER:
		return c->json.number;
	case INTEGER:
		return c->json.integer;
	case BOOLEAN:
		return grammar_choice(c->json.g,
		                      NODES(json_form_text(&c->json, "true"), json_form_text(&c->json, "false")));
	case NULL_TYPE:
	case TYPES:
		break;
	}
	return json_form_text(&c->json, "null");
}

static bool is_of_type(const json_t *x, type t)
{
	const bool of[TYPES] = {json_is_object(x),
	                        json_is_array(x),
	                        json_is_string(x),
	                        json_is_number(x),
	                        json_is_integer(x) ||
	                            (json_is_real(x) && floor(json_real_value(x)) == json_real_value(x)),
	                        json_is_boolean(x),
	                        json_is_null(x)};
	return of[t];
}

/* A keyword, and the type whose values it constrains; TYPES: of any. */
typedef enum role { CONSTRAINS, STANDS_ALONE, ANNOTATES } role;
typedef struct keyword {
	const char *name;
	role role;
	type type;
} keyword;
static const keyword keywords[] = {
    {"properties", CONSTRAINS, OBJECT},
    {"required", CONSTRAINS, OBJECT},
    {"additionalProperties", CONSTRAINS, OBJECT},
    {"items", CONSTRAINS, ARRAY},
    {"minItems", CONSTRAINS, ARRAY},
    {"maxItems", CONSTRAINS, ARRAY},
    {"minLength", CONSTRAINS, STRING},
    {"maxLength", CONSTRAINS, STRING},
    {"type", CONSTRAINS, TYPES},
    {"enum", STANDS_ALONE, TYPES},
    {"const", STANDS_ALONE, TYPES},
    {"anyOf", STANDS_ALONE, TYPES},
    {"$ref", STANDS_ALONE, TYPES},
    {"title", ANNOTATES, TYPES},
    {"description", ANNOTATES, TYPES},
    {"default", ANNOTATES, TYPES},
    {"examples", ANNOTATES, TYPES},
    {"deprecated", ANNOTATES, TYPES},
    {"readOnly", ANNOTATES, TYPES},
    {"writeOnly", ANNOTATES, TYPES},
    {"$schema", ANNOTATES, TYPES},
    {"$id", ANNOTATES, TYPES},
    {"$comment", ANNOTATES, TYPES},
    {"$defs", ANNOTATES, TYPES}, /* read where a $ref names one */
    {"definitions", ANNOTATES, TYPES},
};

static const keyword *find_keyword(const char *name)
{
	for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
		if (strcmp(keywords[i].name, name) == 0)
			return &keywords[i];
	return NULL;
}

/* Check that all keywords are understood, and together. types: those that they constrain. *alone: the one that stands
 * alone. */
static bool check_keywords(compiler *c, const json_t *schema, bool types[TYPES], const char **alone)
{
	const char *name, *constrains = NULL;
	json_t *value;
	*alone = NULL;
	json_object_foreach((json_t *)(uintptr_t)schema, name, value)
	{
		const keyword *k = find_keyword(name);
		if (!k) {
			refuse(c, STATUS_UNSUPPORTED, name, "\"%.60s\" is not implemented", name);
			return false;
		}
		if (k->role == STANDS_ALONE && *alone) {
			refuse(c, STATUS_UNSUPPORTED, name, "is not implemented beside \"%s\"", *alone);
			return false;
		}
		if (k->role == STANDS_ALONE)
			*alone = k->name;
		if (k->role == CONSTRAINS && k->type != TYPES) {
			types[k->type] = true;
			constrains = k->name;
		}
	}
	const bool typed =
	    *alone && json_object_get(schema, "type") && strcmp(*alone, "enum") != 0 && strcmp(*alone, "const") != 0;
	if (*alone && (constrains || typed)) {
		refuse(c, STATUS_UNSUPPORTED, *alone, "is not implemented beside \"%s\"",
		       constrains ? constrains : "type");
		return false;
	}
	return true;
}

/* Set those of "type", a name or several. */
static bool read_type(compiler *c, const json_t *found, bool types[TYPES])
{
	memset(types, 0, TYPES * sizeof *types);
	const size_t n = json_is_array(found) ? json_array_size(found) : 1;
	for (size_t i = 0; i < n; i++) {
		const char *name = json_string_value(json_is_array(found) ? json_array_get(found, i) : found);
		int t = 0;
		while (t < TYPES && (!name || strcmp(type_names[t], name) != 0))
			t++;
		if (t == TYPES) {
			refuse(c, STATUS_INVALID, "type", "must be a type of JSON, or a list of them");
			return false;
		}
		types[t] = true;
	}
	return true;
}

/* An alternative of each value that is of one of the types. */
static grammar_node values_node(compiler *c, const json_t *values, const bool types[TYPES])
{
	const size_t n = json_array_size(values);
	grammar_node *all = memory_new(n, sizeof *all), node = -1;
	int kept = 0;
	for (size_t i = 0; all && i < n; i++) {
		const json_t *value = json_array_get(values, i);
		bool fits = false;
		for (int t = 0; t < TYPES; t++)
			fits |= types[t] && is_of_type(value, (type)t);
		if (!fits)
			continue;
		char *json = json_text(value, JSON_ENCODE_ANY | JSON_COMPACT);
		all[kept++] = json ? json_form_text(&c->json, json) : refuse(c, STATUS_NOMEM, "", "out of memory");
		free(json);
	}
	node = all ? grammar_choice(c->json.g, all, kept) : refuse(c, STATUS_NOMEM, "", "out of memory");
	free(all);
	return node;
}

static grammar_node any_of_node(compiler *c, const json_t *list)
{
	enum { MOST = 256 };
	grammar_node all[MOST];
	char where[32];
	if (!json_is_array(list) || json_array_size(list) == 0)
		return refuse(c, STATUS_INVALID, "anyOf", "must be a list of schemas");
	if (json_array_size(list) > MOST)
		return refuse(c, STATUS_TOO_LARGE, "anyOf", "more than %d alternatives", MOST);
	for (size_t i = 0; i < json_array_size(list); i++) {
		snprintf(where, sizeof where, "anyOf[%zu]", i);
		all[i] = inner(c, where, json_array_get(list, i));
	}
	return grammar_choice(c->json.g, all, (int)json_array_size(list));
}

/* The part of the root that a JSON pointer in a fragment names; NULL: there is none. */
static const json_t *resolve(const json_t *root, const char *pointer)
{
	const json_t *at = pointer[0] == '#' ? root : NULL;
	const char *p = pointer + 1;
	while (at && *p == '/') {
		char key[256];
		size_t n = 0;
		for (p++; *p && *p != '/' && n + 1 < sizeof key; p++) {
			const bool escaped = *p == '~' && (p[1] == '0' || p[1] == '1');
			key[n++] = !escaped ? *p : p[1] == '0' ? '~' : '/';
			p += escaped;
		}
		key[n] = '\0';
		at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10)) : json_object_get(at, key);
	}
	return *p ? NULL : at;
}

static grammar_node reference_node(compiler *c, const json_t *ref)
{
	const json_t *schema = json_is_string(ref) ? resolve(c->root, json_string_value(ref)) : NULL;
	char path[PATH_BYTES];
	if (!schema)
		return refuse(c, STATUS_INVALID, "$ref", "must name a part of the schema, such as \"#/$defs/NAME\"");
	for (int i = 0; i < c->n_references; i++)
		if (c->references[i].schema == schema)
			return c->references[i].node;
	if (c->n_references == MOST_REFERENCES)
		return refuse(c, STATUS_TOO_LARGE, "$ref", "more than %d references", MOST_REFERENCES);
	const grammar_node node = grammar_forward(c->json.g);
	c->references[c->n_references++] = (reference){schema, node};
	memcpy(path, c->path, sizeof path);
	c->path[0] = '\0';
	const grammar_node as = inner(c, json_string_value(ref), schema);
	memcpy(c->path, path, sizeof path);
	grammar_define(c->json.g, node, as);
	return as < 0 ? -1 : node;
}

static grammar_node alone_node(compiler *c, const json_t *schema, const char *alone, const bool types[TYPES])
{
	const json_t *of = json_object_get(schema, alone);
	if (strcmp(alone, "anyOf") == 0)
		return any_of_node(c, of);
	if (strcmp(alone, "$ref") == 0)
		return reference_node(c, of);
	if (strcmp(alone, "enum") == 0 && !json_is_array(of))
		return refuse(c, STATUS_INVALID, "enum", "must be a list of values");
	if (strcmp(alone, "enum") == 0)
		return values_node(c, of, types);
	json_t *one = json_pack("[O]", of);
	const grammar_node node = one ? values_node(c, one, types) : refuse(c, STATUS_NOMEM, "", "out of memory");
	json_decref(one);
	return node;
}

static grammar_node schema_node(compiler *c, const json_t *schema)
{
	static const bool every[TYPES] = {true, true, true, true, true, true, true};
	bool types[TYPES] = {false};
	grammar_node all[TYPES];
	const char *alone;
	int n = 0;
	if (json_is_true(schema))
		return c->json.value;
	if (json_is_false(schema))
		return grammar_choice(c->json.g, NULL, 0);
	if (!json_is_object(schema))
		return refuse(c, STATUS_INVALID, "", "must be a schema");
	if (!check_keywords(c, schema, types, &alone))
		return -1;
	const json_t *type_found = json_object_get(schema, "type");
	if (type_found && !read_type(c, type_found, types))
		return -1;
	if (alone)
		return alone_node(c, schema, alone, type_found ? types : every);
	if (!type_found && memcmp(types, (bool[TYPES]){false}, sizeof types) == 0)
		return c->json.value;
	for (int t = 0; t < TYPES; t++)
		if (types[t] && !(t == INTEGER && types[NUMBER]))
			all[n++] = type_node(c, (type)t, schema);
	return grammar_choice(c->json.g, all, n);
}

status json_grammar_new(grammar **out, const json_t *schema, error *err)
{
	*out = NULL;
	compiler *c = memory_new(1, sizeof *c);
	if (c)
		c->json.g = grammar_new();
	if (!c || !c->json.g) {
		free(c);
		return STATUS_NOMEM;
	}
	c->root = schema;
	c->err = err;
	json_forms_make(&c->json);
	const grammar_node top =
	    schema ? schema_node(c, schema)
	           : json_form_object(&c->json, json_form_member(&c->json, c->json.string, c->json.value));
	const grammar_node root = grammar_sequence(c->json.g, NODES(c->json.space, top));
	status s = c->problem == STATUS_OK ? grammar_finish(c->json.g, root, err) : c->problem;
	if (s == STATUS_OK)
		*out = c->json.g;
	else
		grammar_free(c->json.g);
	free(c);
	return s;
}
