#include "engine/text/grammar/schema_compiler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/number_range.h"
#include "engine/text/grammar/pattern.h"

/* --- nodes that are made once ------------------------------------------------------------------- */

static const grammar_node *find_kept(const schema_compiler *c, const char *key)
{
	for (int i = 0; i < c->n_kept; i++)
		if (strcmp(c->kept[i].key, key) == 0)
			return &c->kept[i].node;
	return NULL;
}

/* --- strings -------------------------------------------------------------------------------------- */

/* The beginning of a pattern of strings of any characters. */
#define ANY "^[\\x00-\\u{10ffff}]"

typedef struct string_keywords {
	const char *pattern, *format; /* format: as a pattern */
	int32_t min, max;
} string_keywords;

static bool read_string_keywords(schema_compiler *c, const json_t *schema, string_keywords *k)
{
	const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
	*k = (string_keywords){.pattern = json_string_value(pattern)};
	if (!schema_read_bounds(c, schema, "minLength", "maxLength", &k->min, &k->max))
		return false;
	if (pattern && (!k->pattern || strlen(k->pattern) != json_string_length(pattern))) {
		schema_refuse(c, STATUS_INVALID, "pattern", "must be a regular expression without NUL");
		return false;
	}
	if (format && !json_is_string(format)) {
		schema_refuse(c, STATUS_INVALID, "format", "must be a name");
		return false;
	}
	if (format)
		k->format = string_format_pattern(json_string_value(format));
	return true;
}

/* Replace *all by its strings that match as well; *all NULL: by all that match. */
static status narrow(schema_compiler *c, automaton **all, const char *pattern, size_t bytes, error *err)
{
	automaton *one, *both;
	TRY(pattern_automaton(&one, pattern, bytes, &c->budget, err));
	if (!*all) {
		*all = one;
		return STATUS_OK;
	}
	const status s = automaton_filter(&both, *all, one, false, &c->budget);
	automaton_free(one);
	if (s != STATUS_OK)
		return s;
	automaton_free(*all);
	*all = both;
	return s;
}

/* Bounds that all strings of the automaton keep are left out: their counters would multiply its states. */
static status narrow_length(schema_compiler *c, automaton **all, int32_t min, int32_t max, error *err)
{
	enum { SPELLING = 6 /* bytes of the longest character */ };
	int64_t longest, shortest;
	char pattern[64];
	TRY(automaton_longest(*all, &longest));
	TRY(automaton_shortest(*all, 0, &shortest));
	if (longest >= 0 && (max == GRAMMAR_NO_BOUND || longest <= max))
		max = GRAMMAR_NO_BOUND;
	if (shortest / SPELLING >= min)
		min = 0;
	if (min == 0 && max == GRAMMAR_NO_BOUND)
		return STATUS_OK;
	if (max == GRAMMAR_NO_BOUND)
		snprintf(pattern, sizeof pattern, ANY "{%d,}$", min);
	else
		snprintf(pattern, sizeof pattern, ANY "{%d,%d}$", min, max);
	return narrow(c, all, pattern, strlen(pattern), err);
}

static grammar_node refuse_automaton(schema_compiler *c, status code, const char *keyword, const error *err)
{
	return code == STATUS_NOMEM
	           ? schema_out_of_memory(c)
	           : schema_refuse(c, code, keyword, "%s", err->message[0] ? err->message : "needs too many states");
}

/* The content of the strings; NULL: refused. */
static automaton *string_automaton(schema_compiler *c, const string_keywords *k)
{
	automaton *all = NULL;
	error err = ERROR_INIT;
	status s = STATUS_OK;
	if (k->format)
		s = narrow(c, &all, k->format, strlen(k->format), &err);
	if (s == STATUS_OK && k->pattern)
		s = narrow(c, &all, k->pattern, strlen(k->pattern), &err);
	if (s == STATUS_OK && !all)
		s = narrow(c, &all, "", 0, &err);
	if (s == STATUS_OK)
		s = narrow_length(c, &all, k->min, k->max, &err);
	if (s == STATUS_OK)
		return all;
	automaton_free(all);
	refuse_automaton(c, s, k->pattern ? "pattern" : k->format ? "format" : "maxLength", &err);
	return NULL;
}

automaton *schema_string_automaton(schema_compiler *c, const json_t *schema)
{
	string_keywords k;
	return read_string_keywords(c, schema, &k) ? string_automaton(c, &k) : NULL;
}

grammar_node schema_string(schema_compiler *c, const json_t *schema)
{
	string_keywords k;
	if (!read_string_keywords(c, schema, &k))
		return -1;
	if (!k.pattern && !k.format)
		return k.min == 0 && k.max == GRAMMAR_NO_BOUND ? c->json.string
		                                               : json_form_string(&c->json, k.min, k.max);
	char *key = NULL;
	if (asprintf(&key, "%s\n%s\n%d %d", k.pattern ? k.pattern : "", k.format ? k.format : "", k.min, k.max) < 0)
		return schema_out_of_memory(c);
	const grammar_node *known = find_kept(c, key);
	if (!known) {
		const grammar_node quote = json_form_text(&c->json, "\"");
		automaton *a = string_automaton(c, &k);
		const grammar_node node =
		    a ? grammar_sequence(c->json.g, NODES(quote, grammar_automaton(c->json.g, a), quote)) : -1;
		if (c->n_kept < SCHEMA_MAX_KEPT)
			c->kept[c->n_kept++] = (schema_kept){key, node};
		else
			free(key);
		return node;
	}
	free(key);
	return *known;
}

/* --- numbers -------------------------------------------------------------------------------------- */

/* Read one bound; false: it is no number. */
static bool read_number(schema_compiler *c, const json_t *schema, const char *key, bool *has, decimal *out)
{
	const json_t *found = json_object_get(schema, key);
	*has = found != NULL;
	if (found && !json_is_number(found)) {
		schema_refuse(c, STATUS_INVALID, key, "must be a number");
		return false;
	}
	if (found)
		*out = decimal_of(found);
	return true;
}

/* Read an inclusive and an exclusive bound, the tighter of which counts. sign: 1 for lower bounds, -1 for upper ones.
 * Older schemas have a boolean as the exclusive one, which says how the other is meant. */
static bool read_side(schema_compiler *c, const json_t *schema, const char *inclusive, const char *exclusive, int sign,
                      bool *has, bool *strict, decimal *out)
{
	const json_t *flag = json_object_get(schema, exclusive);
	decimal other;
	bool has_other = false;
	if (!read_number(c, schema, inclusive, has, out))
		return false;
	*strict = json_is_true(flag) && *has;
	if (!json_is_boolean(flag) && !read_number(c, schema, exclusive, &has_other, &other))
		return false;
	if (has_other && (!*has || sign * decimal_compare(&other, out) >= 0)) {
		*has = *strict = true;
		*out = other;
	}
	return true;
}

static bool read_range(schema_compiler *c, const json_t *schema, number_range *r)
{
	const json_t *divisor = json_object_get(schema, "multipleOf");
	if (!read_side(c, schema, "minimum", "exclusiveMinimum", 1, &r->has_min, &r->above_min, &r->min) ||
	    !read_side(c, schema, "maximum", "exclusiveMaximum", -1, &r->has_max, &r->below_max, &r->max))
		return false;
	r->has_divisor = divisor != NULL;
	if (divisor && json_number_value(divisor) <= 0) {
		schema_refuse(c, STATUS_INVALID, "multipleOf", "must be a number greater than 0");
		return false;
	}
	if (divisor)
		r->divisor = decimal_of(divisor);
	return true;
}

static automaton *number_automaton(schema_compiler *c, const number_range *r)
{
	automaton *a;
	error err = ERROR_INIT;
	const status s = number_range_automaton(&a, r, &c->budget, &err);
	if (s != STATUS_OK)
		refuse_automaton(c, s, r->has_divisor ? "multipleOf" : r->has_min ? "minimum" : "maximum", &err);
	return a;
}

automaton *schema_number_automaton(schema_compiler *c, const json_t *schema, bool integer)
{
	number_range r = {.integer = integer};
	return read_range(c, schema, &r) ? number_automaton(c, &r) : NULL;
}

grammar_node schema_number(schema_compiler *c, const json_t *schema, bool integer)
{
	number_range r = {.integer = integer};
	if (!read_range(c, schema, &r))
		return -1;
	if (!r.has_min && !r.has_max && !r.has_divisor)
		return integer ? c->json.integer : c->json.number;
	automaton *a = number_automaton(c, &r);
	return a ? grammar_automaton(c->json.g, a) : -1;
}

void schema_scalars_fini(schema_compiler *c)
{
	for (int i = 0; i < c->n_kept; i++)
		free(c->kept[i].key);
}
