#include "engine/text/grammar/json_grammar.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/text/grammar/schema_compiler.h"

enum { DEEPEST = 64 };

/* --- for all parts ------------------------------------------------------------------------------ */

static grammar_node schema_node(schema_compiler *c, const json_t *schema, const schema_tags *tags);

grammar_node schema_refuse(schema_compiler *c, status code, const char *keyword, const char *format, ...)
{
	char words[256], path[2 * SCHEMA_PATH_BYTES];
	va_list list;
	va_start(list, format);
	vsnprintf(words, sizeof words, format, list);
	va_end(list);
	snprintf(path, sizeof path, "%s%s%s", c->path, c->path[0] && keyword[0] ? "." : "", keyword);
	if (c->problem == STATUS_OK)
		c->problem = error_set(c->err, code, path, "%s", words);
	return -1;
}

grammar_node schema_out_of_memory(schema_compiler *c)
{
	return schema_refuse(c, STATUS_NOMEM, "", "out of memory");
}

grammar_node schema_inner(schema_compiler *c, const char *where, const json_t *schema, const schema_tags *tags)
{
	char before[SCHEMA_PATH_BYTES];
	memcpy(before, c->path, sizeof before);
	const size_t used = strlen(before);
	snprintf(c->path + used, sizeof c->path - used, "%s%s", used ? "." : "", where);
	grammar_node node = -1;
	if (c->depth == DEEPEST)
		schema_refuse(c, STATUS_TOO_LARGE, "", "schemas are nested more than %d deep", DEEPEST);
	else {
		c->depth++;
		node = schema_node(c, schema, tags);
		c->depth--;
	}
	memcpy(c->path, before, sizeof before);
	return node;
}

bool schema_whole_number(const json_t *x, json_int_t *out)
{
	const double real = json_real_value(x);
	const bool whole = json_is_real(x) && fabs(real) <= 0x1p53 && real == floor(real);
	*out = whole ? (json_int_t)real : json_integer_value(x);
	return whole || json_is_integer(x);
}

/* A bound that is a whole number. */
static bool read_bound(schema_compiler *c, const json_t *schema, const char *key, int32_t *out)
{
	const json_t *found = json_object_get(schema, key);
	json_int_t x;
	if (!found)
		return true;
	if (!schema_whole_number(found, &x) || x < 0 || x > INT32_MAX / 2) {
		schema_refuse(c, STATUS_INVALID, key, "must be a whole number of at least 0");
		return false;
	}
	*out = (int32_t)x;
	return true;
}

bool schema_read_bounds(schema_compiler *c, const json_t *schema, const char *least, const char *most, int32_t *min,
                        int32_t *max)
{
	*min = 0;
	*max = GRAMMAR_NO_BOUND;
	if (!read_bound(c, schema, least, min) || !read_bound(c, schema, most, max))
		return false;
	if (*max != GRAMMAR_NO_BOUND && *max < *min) {
		schema_refuse(c, STATUS_INVALID, most, "is less than %s", least);
		return false;
	}
	return true;
}

/* --- types ----------------------------------------------------------------------------------------- */

static const char *const type_names[TYPES] = {"object", "array", "string", "number", "integer", "boolean", "null"};

static grammar_node type_node(schema_compiler *c, schema_type t, const json_t *schema, const schema_tags *tags)
{
	switch (t) {
	case OBJECT:
		return schema_object(c, schema, tags);
	case ARRAY:
		return schema_array(c, schema);
	case STRING:
		return schema_string(c, schema);
	case NUMBER:
	case INTEGER:
		return schema_number(c, schema, t == INTEGER);
	case BOOLEAN:
		return grammar_choice(c->json.g,
		                      NODES(json_form_text(&c->json, "true"), json_form_text(&c->json, "false")));
	case NULL_TYPE:
	case TYPES:
		break;
	}
	return json_form_text(&c->json, "null");
}

bool schema_is_of_types(const json_t *x, const bool types[TYPES])
{
	const bool whole = json_is_integer(x) || (json_is_real(x) && floor(json_real_value(x)) == json_real_value(x));
	return (types[OBJECT] && json_is_object(x)) || (types[ARRAY] && json_is_array(x)) ||
	       (types[STRING] && json_is_string(x)) || (types[NUMBER] && json_is_number(x)) ||
	       (types[INTEGER] && whole) || (types[BOOLEAN] && json_is_boolean(x)) ||
	       (types[NULL_TYPE] && json_is_null(x));
}

bool schema_read_types(schema_compiler *c, const json_t *schema, bool types[TYPES])
{
	const json_t *found = json_object_get(schema, "type");
	for (int t = 0; t < TYPES; t++)
		types[t] = !found;
	const size_t n = json_is_array(found) ? json_array_size(found) : found ? 1 : 0;
	for (size_t i = 0; i < n; i++) {
		const char *name = json_string_value(json_is_array(found) ? json_array_get(found, i) : found);
		int t = 0;
		while (t < TYPES && (!name || strcmp(type_names[t], name) != 0))
			t++;
		if (t == TYPES) {
			schema_refuse(c, STATUS_INVALID, "type", "must be a type of JSON, or a list of them");
			return false;
		}
		types[t] = true;
	}
	return true;
}

/* --- listed values --------------------------------------------------------------------------------- */

/* Bytes of the string, number or other character at the beginning of p. *real: a number with a point or an exponent. */
static size_t token_span(const char *p, bool *real)
{
	size_t n = 1;
	*real = false;
	if (*p == '"') {
		while (p[n] != '"')
			n += p[n] == '\\' ? 2 : 1;
		return n + 1;
	}
	if (!strchr("-0123456789", *p))
		return 1;
	n = strspn(p, "+-.0123456789eE");
	*real = strcspn(p, ".eE") < n;
	return n;
}

/* Replace each real number by the shortest decimal that reads as the same double: 0.1, not 0.10000000000000001. */
static void shorten_reals(char *json)
{
	char *to = json, number[40];
	bool real;
	for (size_t n; *json; json += n) {
		n = token_span(json, &real);
		size_t kept = n;
		for (int digits = 15; real && digits <= 17; digits++) {
			const int m = snprintf(number, sizeof number, "%.*g", digits, strtod(json, NULL));
			if (strpbrk(number, ".e") && (size_t)m <= n && strtod(number, NULL) == strtod(json, NULL)) {
				memcpy(json, number, (size_t)m);
				kept = (size_t)m;
				break;
			}
		}
		memmove(to, json, kept);
		to += kept;
	}
	*to = '\0';
}

grammar_node schema_value(schema_compiler *c, const json_t *value)
{
	char *json = json_text(value, JSON_ENCODE_ANY | (c->json.spaced ? 0 : JSON_COMPACT));
	if (json)
		shorten_reals(json);
	const grammar_node node = json ? json_form_text(&c->json, json) : schema_out_of_memory(c);
	free(json);
	return node;
}

bool schema_same_value(const json_t *a, const json_t *b)
{
	const char *name;
	json_t *value;
	if (json_is_real(a) || json_is_real(b))
		return json_is_number(a) && json_is_number(b) && json_number_value(a) == json_number_value(b);
	bool same = json_typeof(a) == json_typeof(b) && json_array_size(a) == json_array_size(b) &&
	            json_object_size(a) == json_object_size(b);
	for (size_t i = 0; i < json_array_size(a) && same; i++)
		same = schema_same_value(json_array_get(a, i), json_array_get(b, i));
	json_object_foreach((json_t *)(uintptr_t)a, name, value)
	{
		const json_t *other = json_object_get(b, name);
		same = same && other && schema_same_value(value, other);
	}
	return same && (json_is_array(a) || json_is_object(a) || json_equal(a, b));
}

/* "enum" or "const", or both. */
static grammar_node listed_values(schema_compiler *c, const json_t *schema)
{
	const json_t *values = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
	bool types[TYPES];
	if (values && !json_is_array(values))
		return schema_refuse(c, STATUS_INVALID, "enum", "must be a list of values");
	if (!schema_read_types(c, schema, types))
		return -1;
	const size_t n = values ? json_array_size(values) : 1;
	grammar_node *all = memory_new(n, sizeof *all);
	int kept = 0;
	for (size_t i = 0; all && i < n; i++) {
		const json_t *value = values ? json_array_get(values, i) : one;
		if (schema_is_of_types(value, types) && (!one || schema_same_value(one, value)))
			all[kept++] = schema_value(c, value);
	}
	const grammar_node node = all ? grammar_choice(c->json.g, all, kept) : schema_out_of_memory(c);
	free(all);
	return node;
}

/* --- keywords ---------------------------------------------------------------------------------------- */

/* A keyword, and the type whose values it constrains; TYPES: of any. A keyword that decides leaves room beside it only
 * for those that annotate. */
typedef enum role { CONSTRAINS, LISTS, DECIDES, MARKS_UNION, ANNOTATES } role;
typedef struct keyword {
	const char *name;
	role role;
	schema_type type;
} keyword;
static const keyword keywords[] = {
    {"properties", CONSTRAINS, OBJECT},
    {"required", CONSTRAINS, OBJECT},
    {"additionalProperties", CONSTRAINS, OBJECT},
    {"patternProperties", CONSTRAINS, OBJECT},
    {"propertyNames", CONSTRAINS, OBJECT},
    {"minProperties", CONSTRAINS, OBJECT},
    {"maxProperties", CONSTRAINS, OBJECT},
    {"items", CONSTRAINS, ARRAY},
    {"prefixItems", CONSTRAINS, ARRAY},
    {"additionalItems", CONSTRAINS, ARRAY},
    {"minItems", CONSTRAINS, ARRAY},
    {"maxItems", CONSTRAINS, ARRAY},
    {"uniqueItems", CONSTRAINS, ARRAY},
    {"minLength", CONSTRAINS, STRING},
    {"maxLength", CONSTRAINS, STRING},
    {"pattern", CONSTRAINS, STRING},
    {"format", CONSTRAINS, STRING},
    {"minimum", CONSTRAINS, NUMBER},
    {"maximum", CONSTRAINS, NUMBER},
    {"exclusiveMinimum", CONSTRAINS, NUMBER},
    {"exclusiveMaximum", CONSTRAINS, NUMBER},
    {"multipleOf", CONSTRAINS, NUMBER},
    {"type", CONSTRAINS, TYPES},
    {"enum", LISTS, TYPES},
    {"const", LISTS, TYPES},
    {"anyOf", DECIDES, TYPES},
    {"oneOf", DECIDES, TYPES},
    {"allOf", DECIDES, TYPES},
    {"$ref", DECIDES, TYPES},
    {"discriminator", MARKS_UNION, TYPES},
    {"title", ANNOTATES, TYPES},
    {"description", ANNOTATES, TYPES},
    {"default", ANNOTATES, TYPES},
    {"example", ANNOTATES, TYPES},
    {"examples", ANNOTATES, TYPES},
    {"deprecated", ANNOTATES, TYPES},
    {"readOnly", ANNOTATES, TYPES},
    {"writeOnly", ANNOTATES, TYPES},
    {"$schema", ANNOTATES, TYPES},
    {"$id", ANNOTATES, TYPES},
    {"$comment", ANNOTATES, TYPES},
    {"$anchor", ANNOTATES, TYPES},
    {"contentMediaType", ANNOTATES, TYPES},
    {"contentEncoding", ANNOTATES, TYPES},
    {"contentSchema", ANNOTATES, TYPES},
    {"externalDocs", ANNOTATES, TYPES},
    {"xml", ANNOTATES, TYPES},
    {"$defs", ANNOTATES, TYPES}, /* read where a $ref names one */
    {"definitions", ANNOTATES, TYPES},
};

/* NULL: unknown. Names that begin with "x-" are extensions, which annotate. */
static const keyword *find_keyword(const char *name)
{
	static const keyword extension = {"x-", ANNOTATES, TYPES};
	if (strncmp(name, extension.name, strlen(extension.name)) == 0)
		return &extension;
	for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
		if (strcmp(keywords[i].name, name) == 0)
			return &keywords[i];
	return NULL;
}

/* The keywords of one schema, by their roles. */
typedef struct summary {
	bool types[TYPES]; /* that are constrained */
	const char *constrains, *lists, *decides, *marks;
} summary;

static bool refuse_beside(schema_compiler *c, const char *name, const char *other)
{
	schema_refuse(c, STATUS_UNSUPPORTED, name, "is not implemented beside \"%s\"", other);
	return false;
}

/* Check that all keywords are understood, and together. */
static bool summarize(schema_compiler *c, const json_t *schema, summary *out)
{
	const char *name;
	json_t *value;
	*out = (summary){0};
	json_object_foreach((json_t *)(uintptr_t)schema, name, value)
	{
		const keyword *k = find_keyword(name);
		if (!k) {
			schema_refuse(c, STATUS_UNSUPPORTED, name, "\"%.60s\" is not implemented", name);
			return false;
		}
		if (k->role == DECIDES && out->decides)
			return refuse_beside(c, name, out->decides);
		if (k->role == DECIDES)
			out->decides = k->name;
		else if (k->role == LISTS)
			out->lists = k->name;
		else if (k->role == MARKS_UNION)
			out->marks = k->name;
		else if (k->role == CONSTRAINS && k->type != TYPES) {
			out->types[k->type] = true;
			out->constrains = k->name;
		}
	}
	const char *alone = out->decides ? out->decides : out->lists;
	if (out->decides && out->lists)
		return refuse_beside(c, out->lists, out->decides);
	if (alone && out->constrains)
		return refuse_beside(c, alone, out->constrains);
	if (out->decides && json_object_get(schema, "type"))
		return refuse_beside(c, out->decides, "type");
	if (out->marks && !json_object_get(schema, "oneOf") && !json_object_get(schema, "anyOf"))
		schema_refuse(c, STATUS_UNSUPPORTED, out->marks, "is implemented beside \"oneOf\" and \"anyOf\"");
	return c->problem == STATUS_OK;
}

static grammar_node decided_node(schema_compiler *c, const json_t *schema, const char *name, const schema_tags *tags)
{
	const json_t *of = json_object_get(schema, name);
	if (strcmp(name, "$ref") == 0)
		return schema_reference_node(c, of, tags);
	if (strcmp(name, "allOf") != 0)
		return schema_union(c, schema, name, tags);
	if (!json_is_array(of) || json_array_size(of) == 0)
		return schema_refuse(c, STATUS_INVALID, name, "must be a list of schemas");
	if (json_array_size(of) > 1)
		return schema_refuse(c, STATUS_UNSUPPORTED, name, "is implemented for one schema");
	return schema_inner(c, "allOf[0]", json_array_get(of, 0), tags);
}

static grammar_node schema_node(schema_compiler *c, const json_t *schema, const schema_tags *tags)
{
	bool types[TYPES];
	grammar_node all[TYPES];
	summary s;
	int n = 0;
	if (json_is_true(schema))
		return c->json.value;
	if (json_is_false(schema))
		return grammar_choice(c->json.g, NULL, 0);
	if (!json_is_object(schema))
		return schema_refuse(c, STATUS_INVALID, "", "must be a schema");
	if (!summarize(c, schema, &s))
		return -1;
	if (s.decides)
		return decided_node(c, schema, s.decides, tags);
	if (s.lists)
		return listed_values(c, schema);
	if (!schema_read_types(c, schema, types))
		return -1;
	if (!json_object_get(schema, "type") && !s.constrains)
		return c->json.value;
	if (!json_object_get(schema, "type"))
		memcpy(types, s.types, sizeof types);
	for (int t = 0; t < TYPES; t++)
		if (types[t] && !(t == INTEGER && types[NUMBER]))
			all[n++] = type_node(c, (schema_type)t, schema, tags);
	return grammar_choice(c->json.g, all, n);
}

status json_grammar_add(const json_forms *forms, const json_t *schema, int64_t *budget, grammar_node *out, error *err)
{
	schema_compiler *c = memory_new(1, sizeof *c);
	if (!c)
		return STATUS_NOMEM;
	c->json = *forms;
	c->root = schema;
	c->err = err;
	c->budget = *budget;
	*out = schema_node(c, schema, NULL);
	const status s = c->problem;
	*budget = c->budget;
	schema_references_fini(c);
	schema_scalars_fini(c);
	free(c);
	return s;
}

grammar_node json_grammar_any_object(const json_forms *f)
{
	return json_form_object(f, json_form_member(f, f->string, f->value), 0, GRAMMAR_NO_BOUND);
}

status json_grammar_new(grammar **out, const json_t *schema, error *err)
{
	json_forms forms = {.g = grammar_new()};
	int64_t budget = AUTOMATON_BUDGET;
	grammar_node root = -1;
	*out = NULL;
	if (!forms.g)
		return STATUS_NOMEM;
	json_forms_make(&forms);
	status s = STATUS_OK;
	if (schema)
		s = json_grammar_add(&forms, schema, &budget, &root, err);
	else
		root = json_grammar_any_object(&forms);
	if (s == STATUS_OK)
		s = grammar_finish(forms.g, root, err);
	if (s == STATUS_OK)
		*out = forms.g;
	else
		grammar_free(forms.g);
	return s;
}
