/* schema_dump - print the tables made by proto/generate.py as JSON Schema, for the test that compares them with
 * openapi.yaml:   schema_dump > tables.json
 * With an argument, check the JSON value on standard input against the table of that name; prints what is wrong. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "gen/schemas.h"

static json_t *definitions;

static json_t *describe(const field *f);

static void define(const schema *s)
{
	if (json_object_get(definitions, s->name))
		return;

	json_t *properties = json_object(), *required = json_array();

	json_object_set_new(definitions, s->name, json_null());
	for (const field *f = s->fields; f->name; f++) {
		json_object_set_new(properties, f->name, describe(f));
		if (f->required)
			json_array_append_new(required, json_string(f->name));
	}
	json_object_set_new(definitions, s->name,
	                    json_pack("{s:s, s:b, s:o, s:o}", "type", "object", "additionalProperties", 0, "properties",
	                              properties, "required", required));
}

static json_t *reference(const schema *s)
{
	define(s);
	return json_pack("{s:s+}", "$ref", "#/components/schemas/", s->name);
}

static void set_bounds(json_t *out, const field *f, const char *min, const char *max)
{
	if (f->min == 0 && f->max == 0 && f->type == FIELD_INTEGER) {
		json_object_set_new(out, min, json_real((double)INT64_MIN));
		json_object_set_new(out, max, json_real((double)INT64_MAX));
	}
	if (f->min == 0 && f->max == 0)
		return;
	if (f->min >= 0 || f->type != FIELD_ARRAY) /* an empty array has -1 */
		json_object_set_new(out, min, json_real(f->min));
	json_object_set_new(out, max, json_real(f->max));
}

static void set_choices(json_t *out, const field *f)
{
	json_t *values = json_array();

	for (int i = 0; f->choices && f->choices[i]; i++)
		json_array_append_new(values, f->type == FIELD_STRING
		                                  ? json_string(f->choices[i])
		                                  : json_boolean(strcmp(f->choices[i], "true") == 0));
	if (f->choices)
		json_object_set(out, "enum", values);
	json_decref(values);
}

static json_t *describe_union(const field *f)
{
	json_t *alternatives = json_array();

	for (const field *a = f->items; a->name; a++)
		json_array_append_new(alternatives, describe(a));
	return json_pack("{s:o}", "anyOf", alternatives);
}

static json_t *describe(const field *f)
{
	static const char *const types[] = {
	    [FIELD_STRING] = "string",   [FIELD_INTEGER] = "integer", [FIELD_NUMBER] = "number",
	    [FIELD_BOOLEAN] = "boolean", [FIELD_OBJECT] = "object",   [FIELD_ARRAY] = "array"};

	if (f->type == FIELD_UNION)
		return describe_union(f);
	if (f->type == FIELD_IGNORED)
		return json_pack("{s:b}", "x-ignored", 1);
	if (f->type == FIELD_ANY)
		return json_object();
	if (f->type == FIELD_OBJECT && f->nested)
		return reference(f->nested);

	json_t *out = json_pack("{s:s}", "type", types[f->type]);

	set_choices(out, f);
	if (f->type == FIELD_OBJECT) {
		set_bounds(out, f, "minProperties", "maxProperties");
		if (f->items)
			json_object_set_new(out, "additionalProperties", describe(f->items));
	} else if (f->type == FIELD_ARRAY) {
		set_bounds(out, f, "minItems", "maxItems");
		if (f->items || f->nested)
			json_object_set_new(out, "items", f->items ? describe(f->items) : reference(f->nested));
	} else if (f->type == FIELD_STRING) {
		set_bounds(out, f, "minLength", "maxLength");
		if (!f->choices && f->min == 0 && f->max == 0)
			json_object_set_new(out, "maxLength", json_real(SCHEMA_MAX_STRING));
		if (!f->choices && !f->nul)
			json_object_set_new(out, "pattern", json_string("^[^\\u0000]*$"));
	} else {
		set_bounds(out, f, f->exclusive ? "exclusiveMinimum" : "minimum", "maximum");
	}
	return out;
}

static int check(const char *name)
{
	schema_error error = {.message = "no such table"};
	json_t *json = json_loadf(stdin, JSON_DECODE_ANY, NULL);
	bool ok = false;

	for (int i = 0; schema_all[i]; i++)
		if (strcmp(schema_all[i]->name, name) == 0)
			ok = schema_check(schema_all[i], json, &error);
	json_decref(json);
	if (!ok)
		puts(error.message);
	return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return check(argv[1]);
	definitions = json_object();
	for (int i = 0; schema_all[i]; i++)
		define(schema_all[i]);
	json_dumpf(definitions, stdout, JSON_INDENT(1));
	json_decref(definitions);
	return 0;
}
