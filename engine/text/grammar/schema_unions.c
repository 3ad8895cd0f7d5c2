#include "engine/text/grammar/schema_compiler.h"

#include <stdio.h>
#include <string.h>

enum { DEPTH = 8 }; /* comparisons within comparisons */

/* --- alternatives that exclude each other ------------------------------------------------------- */

/* One side of a comparison. tags: properties that its objects must have beside the required ones. */
typedef struct side {
	const json_t *schema;
	const schema_tags *tags;
} side;

static bool exclude(schema_compiler *c, side a, side b, int depth);

static const json_t *alternatives_of(const json_t *schema)
{
	const json_t *any = json_object_get(schema, "anyOf");
	return any ? any : json_object_get(schema, "oneOf");
}

static const char *tag_of(const json_t *schema)
{
	return json_string_value(json_object_get(json_object_get(schema, "discriminator"), "propertyName"));
}

/* True if every alternative of `a` excludes b. */
static bool each_excludes(schema_compiler *c, side a, side b, int depth)
{
	const schema_tags tag = {tag_of(a.schema), a.tags};
	const json_t *list = alternatives_of(a.schema);
	bool all = json_array_size(list) > 0;
	for (size_t i = 0; i < json_array_size(list) && all; i++)
		all = exclude(c, (side){json_array_get(list, i), tag.name ? &tag : a.tags}, b, depth);
	return all;
}

static bool has_value(const json_t *schema, const json_t *value)
{
	const json_t *one = json_object_get(schema, "const"), *values = json_object_get(schema, "enum");
	bool found = one && schema_same_value(one, value);
	for (size_t i = 0; i < json_array_size(values) && !found; i++)
		found = schema_same_value(json_array_get(values, i), value);
	return found;
}

static bool lists_exclude(const json_t *a, const json_t *b)
{
	const json_t *one = json_object_get(a, "const"), *values = json_object_get(a, "enum");
	bool common = one && has_value(b, one);
	for (size_t i = 0; !one && i < json_array_size(values) && !common; i++)
		common = has_value(b, json_array_get(values, i));
	return !common;
}

static bool is_listed(const json_t *schema)
{
	return json_object_get(schema, "const") || json_object_get(schema, "enum");
}

/* The types that a value of the schema may have, by the schema alone. */
static bool may_have_types(schema_compiler *c, const json_t *schema, bool types[TYPES])
{
	if (!schema_read_types(c, schema, types))
		return false;
	const json_t *one = json_object_get(schema, "const"), *values = json_object_get(schema, "enum");
	for (int t = 0; t < TYPES && (one || values); t++) {
		bool only[TYPES] = {false};
		only[t] = true;
		bool some = one && schema_is_of_types(one, only);
		for (size_t i = 0; !one && i < json_array_size(values); i++)
			some |= schema_is_of_types(json_array_get(values, i), only);
		types[t] &= some;
	}
	types[INTEGER] |= types[NUMBER];
	types[NUMBER] = types[INTEGER];
	return true;
}

static bool is_required(side s, const char *name)
{
	const json_t *required = json_object_get(s.schema, "required");
	for (const schema_tags *t = s.tags; t; t = t->outer)
		if (strcmp(t->name, name) == 0)
			return true;
	for (size_t i = 0; i < json_array_size(required); i++) {
		const char *one = json_string_value(json_array_get(required, i));
		if (one && strcmp(one, name) == 0)
			return true;
	}
	return false;
}

/* A property that b does not allow, or that both have with values that exclude each other, and that `a` requires. */
static bool property_excludes(schema_compiler *c, side a, side b, int depth)
{
	const json_t *others = json_object_get(b.schema, "properties");
	const bool closed = json_is_false(json_object_get(b.schema, "additionalProperties")) &&
	                    !json_object_get(b.schema, "patternProperties");
	const char *name;
	json_t *own;
	json_object_foreach(json_object_get(a.schema, "properties"), name, own)
	{
		const json_t *other = json_object_get(others, name);
		const bool required = is_required(a, name);
		if (required && !other && closed)
			return true;
		if (other && (required || is_required(b, name)) &&
		    exclude(c, (side){own, NULL}, (side){other, NULL}, depth))
			return true;
	}
	return false;
}

/* True if no value can fit both. */
static bool exclude(schema_compiler *c, side a, side b, int depth)
{
	bool ours[TYPES], theirs[TYPES], common = false;
	a.schema = schema_follow(c, a.schema);
	b.schema = schema_follow(c, b.schema);
	c->budget -= 32;
	if (!json_is_object(a.schema) || !json_is_object(b.schema) || depth == 0 || c->budget < 0)
		return false;
	if (alternatives_of(a.schema))
		return each_excludes(c, a, b, depth - 1);
	if (alternatives_of(b.schema))
		return each_excludes(c, b, a, depth - 1);
	if (!may_have_types(c, a.schema, ours) || !may_have_types(c, b.schema, theirs))
		return false;
	if (is_listed(a.schema) && is_listed(b.schema) && lists_exclude(a.schema, b.schema))
		return true;
	for (int t = 0; t < TYPES; t++)
		common |= t != OBJECT && ours[t] && theirs[t];
	if (common)
		return false;
	return !ours[OBJECT] || !theirs[OBJECT] || property_excludes(c, a, b, depth - 1) ||
	       property_excludes(c, b, a, depth - 1);
}

/* --- nodes ------------------------------------------------------------------------------------------ */

bool schema_exclude(schema_compiler *c, const json_t *a, const json_t *b)
{
	return exclude(c, (side){a, NULL}, (side){b, NULL}, DEPTH);
}

static bool check_one_of(schema_compiler *c, const json_t *list, const schema_tags *tags)
{
	const size_t n = json_array_size(list);
	for (size_t i = 0; i < n; i++)
		for (size_t k = i + 1; k < n; k++)
			if (!exclude(c, (side){json_array_get(list, i), tags}, (side){json_array_get(list, k), tags},
			             DEPTH)) {
				schema_refuse(
				    c, STATUS_UNSUPPORTED, "oneOf",
				    "is implemented for alternatives that exclude each other by a type or by values; "
				    "%zu and %zu do not",
				    i, k);
				return false;
			}
	return true;
}

grammar_node schema_union(schema_compiler *c, const json_t *schema, const char *keyword, const schema_tags *outer)
{
	grammar_node all[SCHEMA_MAX_ALTERNATIVES];
	char where[32];
	const json_t *list = json_object_get(schema, keyword),
	             *discriminator = json_object_get(schema, "discriminator");
	const schema_tags tag = {tag_of(schema), outer}, *tags = tag.name ? &tag : outer;
	if (!json_is_array(list) || json_array_size(list) == 0)
		return schema_refuse(c, STATUS_INVALID, keyword, "must be a list of schemas");
	if (json_array_size(list) > SCHEMA_MAX_ALTERNATIVES)
		return schema_refuse(c, STATUS_TOO_LARGE, keyword, "more than %d alternatives",
		                     SCHEMA_MAX_ALTERNATIVES);
	if (discriminator && !tag.name)
		return schema_refuse(c, STATUS_INVALID, "discriminator", "must have a propertyName");
	for (size_t i = 0; i < json_array_size(list); i++) {
		snprintf(where, sizeof where, "%s[%zu]", keyword, i);
		all[i] = schema_inner(c, where, json_array_get(list, i), tags);
	}
	if (c->problem != STATUS_OK || (strcmp(keyword, "oneOf") == 0 && !check_one_of(c, list, tags)))
		return -1;
	return grammar_choice(c->json.g, all, (int)json_array_size(list));
}
