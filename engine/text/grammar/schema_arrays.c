#include "engine/text/grammar/schema_compiler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

enum { MAX_PREFIX = 256, MAX_ITEMS = 1024, ANY_ORDER = 6, MAX_LISTED_INTEGERS = 128, MAX_UNIONS = 8 };

/* Items of an array that differ from each other. */
typedef struct options {
	grammar_node all[MAX_ITEMS];
	int n;
	bool too_many;
} options;

static void add_option(options *o, grammar_node node)
{
	if (o->n < MAX_ITEMS)
		o->all[o->n++] = node;
	else
		o->too_many = true;
}

static grammar_node empty(const schema_compiler *c)
{
	return grammar_sequence(c->json.g, NULL, 0);
}

static grammar_node bracketed(const schema_compiler *c, grammar_node items)
{
	return grammar_sequence(c->json.g, NODES(json_form_text(&c->json, "["), items, json_form_text(&c->json, "]")));
}

static grammar_node after_comma(const schema_compiler *c, grammar_node node)
{
	return grammar_sequence(c->json.g, NODES(json_form_comma(&c->json), node));
}

/* `more` unless the array must end, or nothing if it may end. */
static grammar_node maybe(const schema_compiler *c, bool may_end, bool may_go_on, grammar_node more)
{
	const grammar_node both[2] = {may_go_on ? more : empty(c), empty(c)};
	if (!may_go_on)
		return may_end ? both[1] : grammar_choice(c->json.g, NULL, 0);
	return grammar_choice(c->json.g, both, may_end ? 2 : 1);
}

/* --- different items ------------------------------------------------------------------------------- */

/* Arrays of few options in any order: a node for each set of those that have been used. */
static grammar_node in_any_order(const schema_compiler *c, const options *o, int32_t min, int32_t max)
{
	grammar_node rest[1 << ANY_ORDER], first[ANY_ORDER];
	for (int used = (1 << o->n) - 1; used >= 0; used--) {
		grammar_node more[ANY_ORDER];
		int n = 0;
		for (int i = 0; i < o->n; i++)
			if (!(used >> i & 1)) {
				first[n] = grammar_sequence(c->json.g, NODES(o->all[i], rest[used | 1 << i]));
				more[n] = after_comma(c, first[n]);
				n++;
			}
		const int count = __builtin_popcount((unsigned)used);
		rest[used] = maybe(c, count >= min, n > 0 && (max == GRAMMAR_NO_BOUND || count < max),
		                   grammar_choice(c->json.g, used == 0 ? first : more, n));
	}
	return bracketed(c, rest[0]);
}

/* Arrays whose items are in the order of the options. picks[k]: what follows a comma after k items; k is at most
 * `levels`, where counting ends. */
static grammar_node in_order(schema_compiler *c, const options *o, int32_t min, int32_t max)
{
	const int32_t levels = max == GRAMMAR_NO_BOUND ? min : max;
	grammar_node *picks = memory_new((size_t)levels + 1, sizeof *picks), node = -1;
	if (!picks)
		return schema_out_of_memory(c);
	for (int32_t k = 0; k <= levels; k++)
		picks[k] = grammar_choice(c->json.g, NULL, 0);
	for (int i = o->n - 1; i >= 0; i--)
		for (int32_t k = 0; k <= levels; k++) { /* picks[k + 1] is still that of option i + 1 */
			const int32_t next = k < levels ? k + 1 : k;
			if (k == levels && max != GRAMMAR_NO_BOUND)
				break;
			const grammar_node more =
			    maybe(c, next >= min, max == GRAMMAR_NO_BOUND || next < max, after_comma(c, picks[next]));
			const grammar_node with = grammar_sequence(c->json.g, NODES(o->all[i], more));
			const grammar_node without = picks[k];
			picks[k] = grammar_choice(c->json.g, NODES(with, without));
		}
	node = bracketed(c, maybe(c, min == 0, max != 0, picks[0]));
	free(picks);
	return node;
}

/* --- options ---------------------------------------------------------------------------------------- */

static bool append_integers(json_t *to, const json_t *schema)
{
	const json_t *low = json_object_get(schema, "minimum"), *high = json_object_get(schema, "maximum");
	json_int_t i, end;
	if (!schema_whole_number(low, &i) || !schema_whole_number(high, &end) || i > end ||
	    (uint64_t)end - (uint64_t)i >= MAX_LISTED_INTEGERS || json_object_get(schema, "multipleOf") ||
	    json_object_get(schema, "exclusiveMinimum") || json_object_get(schema, "exclusiveMaximum"))
		return false;
	for (;; i++) {
		if (json_array_append_new(to, json_integer(i)) || i == end)
			return i == end;
	}
}

/* The values of a schema that lists them, or that has few. False: it does not. */
static bool append_values(const schema_compiler *c, json_t *to, const json_t *schema)
{
	schema = schema_follow(c, schema);
	const json_t *values = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
	const char *type = json_string_value(json_object_get(schema, "type"));
	if (one)
		return json_array_append(to, (json_t *)(uintptr_t)one) == 0;
	if (values)
		return json_array_extend(to, (json_t *)(uintptr_t)values) == 0;
	if (type && strcmp(type, "boolean") == 0)
		return json_array_append_new(to, json_true()) == 0 && json_array_append_new(to, json_false()) == 0;
	if (type && strcmp(type, "null") == 0)
		return json_array_append_new(to, json_null()) == 0;
	return type && strcmp(type, "integer") == 0 && append_integers(to, schema);
}

/* False: the item's schema does not list its values. */
static bool list_values(schema_compiler *c, options *o, const json_t *item)
{
	bool types[TYPES];
	json_t *values = json_array();
	const bool listed = values && append_values(c, values, item);
	const int before = o->n;
	if (listed && schema_read_types(c, schema_follow(c, item), types)) {
		for (size_t i = 0; i < json_array_size(values); i++)
			for (size_t k = json_array_size(values); k-- > i + 1;)
				if (schema_same_value(json_array_get(values, i), json_array_get(values, k)))
					json_array_remove(values, k);
		for (size_t i = 0; i < json_array_size(values); i++)
			if (schema_is_of_types(json_array_get(values, i), types))
				add_option(o, schema_value(c, json_array_get(values, i)));
	}
	json_decref(values);
	return listed && o->n > before;
}

/* Options by the first byte of a string or a number: items that begin differently are different. */
static bool list_beginnings(schema_compiler *c, options *o, const json_t *item)
{
	const json_t *schema = schema_follow(c, item);
	const char *type = json_string_value(json_object_get(schema, "type"));
	const bool string = type && strcmp(type, "string") == 0, integer = type && strcmp(type, "integer") == 0;
	const grammar_node quote = json_form_text(&c->json, string ? "\"" : "-");
	if (!string && !integer && (!type || strcmp(type, "number") != 0))
		return false;
	automaton *a = string ? schema_string_automaton(c, schema) : schema_number_automaton(c, schema, integer);
	if (!a)
		return false;
	const grammar_node all = grammar_automaton(c->json.g, a);
	if (all < 0)
		return true; /* the failure is recorded */
	if (string && a->n_states > 0 && a->accepts[0])
		add_option(o, json_form_text(&c->json, "\"\""));
	for (int byte = 0; byte < 256 && a->n_states > 0; byte++) {
		const int32_t state = automaton_next(a, 0, (unsigned char)byte);
		if (state < 0)
			continue;
		const grammar_node first = grammar_range(c->json.g, (unsigned char)byte, (unsigned char)byte);
		const grammar_node rest = grammar_automaton_from(c->json.g, all, state);
		add_option(o, string ? grammar_sequence(c->json.g, NODES(quote, first, rest, quote))
		                     : grammar_sequence(c->json.g, NODES(first, rest)));
	}
	return true;
}

/* Options of an item; those of a union of schemas that exclude each other are the options of each. */
static bool list_options(schema_compiler *c, options *o, const json_t *item, int depth)
{
	const json_t *schema = schema_follow(c, item), *any = json_object_get(schema, "anyOf"),
	             *list = any ? any : json_object_get(schema, "oneOf");
	const size_t n = json_array_size(list);
	if (n == 0)
		return list_values(c, o, item) || list_beginnings(c, o, item);
	bool good = depth > 0;
	for (size_t i = 0; i < n && good; i++) {
		for (size_t k = 0; k < i && good; k++)
			good = schema_exclude(c, json_array_get(list, k), json_array_get(list, i));
		good = good && list_options(c, o, json_array_get(list, i), depth - 1);
	}
	return good;
}

static grammar_node unique_items(schema_compiler *c, const char *where, const json_t *item, int32_t min, int32_t max)
{
	if (item && schema_inner(c, where, item, NULL) < 0) /* its keywords are checked */
		return -1;
	options *o = memory_new(1, sizeof *o);
	grammar_node node = -1;
	if (!o)
		return schema_out_of_memory(c);
	if (!item || !list_options(c, o, item, MAX_UNIONS)) {
		schema_refuse(c, STATUS_UNSUPPORTED, "uniqueItems",
		              "is implemented for items that are listed, strings, numbers or a union of these");
	} else if (o->too_many) {
		schema_refuse(c, STATUS_TOO_LARGE, "uniqueItems", "more than %d different items", MAX_ITEMS);
	} else if (min > o->n) {
		schema_refuse(c, STATUS_UNSUPPORTED, "minItems",
		              "more than %d different items are not implemented here", o->n);
	} else {
		if (max != GRAMMAR_NO_BOUND && max > o->n)
			max = o->n;
		node = o->n <= ANY_ORDER ? in_any_order(c, o, min, max) : in_order(c, o, min, max);
	}
	free(o);
	return node;
}

/* --- arrays ------------------------------------------------------------------------------------------ */

/* Items of their own schemas first, then any number of others. */
static grammar_node tuple_node(schema_compiler *c, const grammar_node *first, int n, grammar_node other, int32_t min,
                               int32_t max)
{
	const bool bound = max != GRAMMAR_NO_BOUND;
	if (bound && max < n)
		n = max;
	const int32_t least = min > n ? min - n : 0;
	grammar_node rest = grammar_repeat(c->json.g, after_comma(c, other), least, bound ? max - n : max);
	for (int i = n - 1; i >= 0; i--) {
		const grammar_node with = grammar_sequence(c->json.g, NODES(first[i], rest));
		rest = maybe(c, i >= min, true, i == 0 ? with : after_comma(c, with));
	}
	return bracketed(c, rest);
}

static grammar_node prefixed_items(schema_compiler *c, const json_t *prefix, const char *keyword, grammar_node other,
                                   int32_t min, int32_t max)
{
	grammar_node first[MAX_PREFIX];
	const size_t n = json_array_size(prefix);
	if (n > MAX_PREFIX)
		return schema_refuse(c, STATUS_TOO_LARGE, keyword, "more than %d schemas", MAX_PREFIX);
	for (size_t i = 0; i < n; i++) {
		char where[32];
		snprintf(where, sizeof where, "%s[%zu]", keyword, i);
		first[i] = schema_inner(c, where, json_array_get(prefix, i), NULL);
	}
	return tuple_node(c, first, (int)n, other, min, max);
}

grammar_node schema_array(schema_compiler *c, const json_t *schema)
{
	int32_t min, max;
	const json_t *unique = json_object_get(schema, "uniqueItems"), *items = json_object_get(schema, "items");
	const bool older = json_is_array(items); /* a tuple before draft 2020-12 */
	const json_t *prefix = older ? items : json_object_get(schema, "prefixItems");
	const char *others = older ? "additionalItems" : "items";
	const json_t *other = json_object_get(schema, others);
	if (!schema_read_bounds(c, schema, "minItems", "maxItems", &min, &max))
		return -1;
	if (unique && !json_is_boolean(unique))
		return schema_refuse(c, STATUS_INVALID, "uniqueItems", "must be true or false");
	if (prefix && !json_is_array(prefix))
		return schema_refuse(c, STATUS_INVALID, "prefixItems", "must be a list of schemas");
	const bool differ = json_is_true(unique) && (max == GRAMMAR_NO_BOUND || max > 1);
	if (differ && json_array_size(prefix) > 0)
		return schema_refuse(c, STATUS_UNSUPPORTED, "uniqueItems",
		                     "is not implemented beside a list of schemas");
	if (differ)
		return unique_items(c, others, other, min, max);
	const grammar_node item = other ? schema_inner(c, others, other, NULL) : c->json.value;
	if (item < 0)
		return -1;
	return json_array_size(prefix) > 0 ? prefixed_items(c, prefix, older ? "items" : "prefixItems", item, min, max)
	                                   : json_form_array(&c->json, item, min, max);
}
