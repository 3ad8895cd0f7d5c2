#include "server/compare.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "server/align.h"
#include "server/markup.h"

/* --- one answer of two ------------------------------------------------------------------------------ */

/* [[index in the first, index in the second, difference]…], from left to right. A reader's number can only be compared
 * with that of another reader, and logits not with shares. NULL when out of memory. */
static json_t *compare_pairs(const explain_view *first, const explain_view *second)
{
	size_t *partner = calloc(first->n + 1, sizeof *partner);
	bool whole = partner && align_tokens(first->tokens, second->tokens, partner);
	json_t *pairs = whole ? json_array() : NULL;
	for (size_t i = 0; pairs && i < first->n && !first->parts == !second->parts; i++) {
		const size_t j = partner[i];
		if (j < second->n && (i == first->reader) == (j == second->reader))
			json_array_append_new(pairs, json_pack("[I, I, f]", (json_int_t)i, (json_int_t)j,
			                                       second->value[j] - first->value[i]));
	}
	free(partner);
	return pairs;
}

/* Give the second answer its pairs of tokens, or of those of the sources. False when out of memory. */
static bool compare_add_pairs(const json_t *first, json_t *second, const char *key,
                              bool (*init)(explain_view *v, const json_t *explanation))
{
	explain_view a = {0}, b = {0};
	bool whole = init(&a, first) && init(&b, second);
	json_t *pairs = whole ? compare_pairs(&a, &b) : NULL;
	whole = pairs && json_object_set_new(second, key, pairs) == 0;
	explain_view_fini(&a);
	explain_view_fini(&b);
	return whole;
}

json_t *compare_join(json_t *first, json_t *second)
{
	const bool sources = json_object_get(first, "source") && json_object_get(second, "source");
	bool whole = compare_add_pairs(first, second, "same_tokens", explain_view_init);
	if (whole && sources)
		whole = compare_add_pairs(first, second, "same_source_tokens", explain_view_init_source);
	if (whole && json_object_set(first, "compare", second) == 0) {
		json_decref(second);
		return first;
	}
	json_decref(first);
	json_decref(second);
	return NULL;
}

/* --- as columns --------------------------------------------------------------------------------------- */

/* The tokens before i and j that have no column yet, side by side. */
static void compare_fill(compare_view *v, size_t *next_i, size_t *next_j, size_t i, size_t j)
{
	while (*next_i < i || *next_j < j)
		v->columns[v->n++] = (compare_column){*next_i < i ? (*next_i)++ : v->first.n,
		                                      *next_j < j ? (*next_j)++ : v->second.n, false};
}

static void compare_columns(compare_view *v, const json_t *pairs)
{
	size_t at, next_i = 0, next_j = 0;
	const json_t *pair;
	json_array_foreach(pairs, at, pair)
	{
		const json_int_t i = json_integer_value(json_array_get(pair, 0));
		const json_int_t j = json_integer_value(json_array_get(pair, 1));
		if (i < (json_int_t)next_i || j < (json_int_t)next_j || (size_t)i >= v->first.n ||
		    (size_t)j >= v->second.n)
			continue;
		compare_fill(v, &next_i, &next_j, (size_t)i, (size_t)j);
		v->columns[v->n++] = (compare_column){next_i++, next_j++, true};
	}
	compare_fill(v, &next_i, &next_j, v->first.n, v->second.n);
}

bool compare_view_init(compare_view *v, const json_t *answer)
{
	const json_t *second = json_object_get(answer, "compare");
	*v = (compare_view){0};
	if (!explain_view_init(&v->first, answer) || !explain_view_init(&v->second, second) ||
	    !(v->columns = calloc(v->first.n + v->second.n + 1, sizeof *v->columns))) {
		compare_view_fini(v);
		return false;
	}
	if (!v->first.parts == !v->second.parts)
		v->first.max = v->second.max = fmax(v->first.max, v->second.max);
	v->model[0] = json_object_get(answer, "model");
	v->model[1] = json_object_get(second, "model");
	static const char *const said[] = {"kind", "token", "other"};
	const json_t *a = json_object_get(v->first.parts, "target"), *b = json_object_get(v->second.parts, "target");
	bool same = a && b;
	for (size_t i = 0; same && i < sizeof said / sizeof *said; i++)
		same = json_equal(json_object_get(a, said[i]), json_object_get(b, said[i]));
	v->same_target = same;
	compare_columns(v, json_object_get(second, "same_tokens"));
	return true;
}

void compare_view_fini(compare_view *v)
{
	explain_view_fini(&v->first);
	explain_view_fini(&v->second);
	free(v->columns);
	*v = (compare_view){0};
}

double compare_difference(const compare_view *v, const compare_column *column)
{
	return column->same ? v->second.value[column->second] - v->first.value[column->first] : 0;
}

double compare_heat(const compare_view *v, const compare_column *column)
{
	return v->first.max > 0 ? fmax(-1, fmin(1, compare_difference(v, column) / v->first.max)) : 0;
}

void compare_title(const compare_view *v, bool second, buffer *out)
{
	const json_t *model = v->model[second];
	if (json_is_string(model)) {
		markup_visible(out, model, false);
		buffer_string(out, ": ");
	}
	explain_view_title(second ? &v->second : &v->first, out);
}

bool compare_breaks(const compare_view *v, const compare_column *column)
{
	return explain_view_breaks(&v->first, column->first) || explain_view_breaks(&v->second, column->second);
}
