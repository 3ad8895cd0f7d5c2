/* In the O(N) form α_ij = exp(a_j - M_i) for the window_size tokens j that end with i. */
#include "server/explain_view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/markup.h"

/* --- the numbers -------------------------------------------------------------------------------- */

static void explain_view_from_array(explain_view *v, const json_t *values, json_int_t first)
{
	for (size_t i = 0; first >= 0 && i < json_array_size(values) && (size_t)first + i < v->n; i++)
		v->value[(size_t)first + i] = json_number_value(json_array_get(values, i));
}

static void explain_view_from_weights(explain_view *v, const json_t *explanation)
{
	const json_t *aggregate = json_object_get(explanation, "aggregate");
	const json_t *row = json_array_get(json_object_get(explanation, "weights"), 0);
	const char *method = json_string_value(json_object_get(aggregate, "method"));
	const char *round = json_string_value(json_object_get(row, "round"));
	if (method) {
		snprintf(v->name, sizeof v->name, "%.32s", method);
		explain_view_from_array(v, json_object_get(aggregate, "alpha"), 0);
	} else if (row) {
		snprintf(v->name, sizeof v->name, "layer %lld, head %lld, %.32s",
		         (long long)json_integer_value(json_object_get(row, "layer")),
		         (long long)json_integer_value(json_object_get(row, "head")), round ? round : "");
		if (json_object_get(row, "alpha"))
			explain_view_from_array(v, json_object_get(row, "alpha"),
			                        json_integer_value(json_array_get(json_object_get(row, "window"), 0)));
		else {
			const json_t *scores = json_object_get(row, "score"),
			             *size = json_object_get(row, "window_size");
			double m =
			    json_number_value(json_array_get(json_object_get(row, "log_normalizer"), v->position));
			size_t window = json_integer_value(size) > 0 ? (size_t)json_integer_value(size) : v->n;
			for (size_t j = v->position + 1, k = 0; v->n > 0 && j-- > 0 && k < window; k++)
				v->value[j] = exp(json_number_value(json_array_get(scores, j)) - m);
		}
	}
	for (size_t i = 0; i < v->n; i++)
		if (!(v->value[i] >= 0 && v->value[i] <= 1))
			v->value[i] = 0;
}

static void explain_view_scale(explain_view *v)
{
	for (size_t i = 0; i < v->n; i++)
		if (i != v->reader && fabs(v->value[i]) > v->max)
			v->max = fabs(v->value[i]);
}

/* The parts; in a span of predictions, those of the last one. */
static const json_t *explain_view_parts(const json_t *explanation)
{
	const json_t *rows = json_object_get(json_object_get(explanation, "span"), "rows");
	const json_t *some[] = {json_object_get(explanation, "contributions"),
	                        json_object_get(explanation, "attribution"),
	                        json_array_get(rows, json_array_size(rows) - 1)};
	for (size_t i = 0; i < sizeof some / sizeof *some; i++)
		if (json_is_object(some[i]))
			return some[i];
	return NULL;
}

/* True if the last token reads the others. Contributions state it; for other methods it is true if a token is
 * predicted. */
static bool explain_view_reads(const explain_view *v)
{
	const json_t *output = json_object_get(json_object_get(v->parts, "target"), "token");
	return json_object_get(v->parts, "sums") ? explain_view_sum(v, "reader") != 0
	                                         : json_object_get(output, "text") != NULL;
}

/* Those of all tokens, or of the largest. */
static void explain_view_from_numbers(explain_view *v)
{
	const json_t *top = json_object_get(v->parts, "top");
	explain_view_from_array(v, json_object_get(v->parts, "tokens"), 0);
	for (size_t k = 0; k < json_array_size(top); k++) {
		json_int_t i = json_integer_value(json_array_get(json_array_get(top, k), 0));
		if (i >= 0 && (size_t)i < v->n)
			v->value[i] = json_number_value(json_array_get(json_array_get(top, k), 1));
	}
}

static void explain_view_from_parts(explain_view *v)
{
	const json_t *numbers = json_object_get(v->parts, "tokens"), *top = json_object_get(v->parts, "top");
	size_t count = numbers ? json_array_size(numbers) : v->position + 1;
	explain_view_from_numbers(v);
	if (!explain_view_reads(v) || count < 1 || count > v->n)
		return;
	/* For classes the last token, whatever position was asked for. */
	const json_t *token = json_object_get(json_object_get(v->parts, "target"), "token");
	const size_t reader = json_object_get(token, "label") ? count - 1 : v->position;
	if (top && explain_view_sum(v, "reader") != 0)
		v->value[reader] = explain_view_sum(v, "reader");
	if (v->value[reader] != 0) /* else it is not among the largest */
		v->reader = reader;
}

static void explain_view_place(explain_view *v, const json_t *position)
{
	json_int_t i = json_integer_value(position);
	if (json_is_integer(position) && i >= 0 && (size_t)i < v->n)
		v->position = (size_t)i;
}

bool explain_view_init(explain_view *v, const json_t *explanation)
{
	*v = (explain_view){.tokens = json_object_get(explanation, "tokens"), .parts = explain_view_parts(explanation)};
	v->method = json_object_get(
	    json_object_get(v->parts, "method") ? v->parts : json_object_get(explanation, "span"), "method");
	v->n = v->reader = json_array_size(v->tokens);
	v->value = calloc(v->n + 1, sizeof *v->value);
	if (!v->value)
		return false;
	v->position = v->n > 0 ? v->n - 1 : 0;
	explain_view_place(v, json_object_get(explanation, "position"));
	explain_view_place(v, json_object_get(v->parts, "position"));
	if (v->parts)
		explain_view_from_parts(v);
	else
		explain_view_from_weights(v, explanation);
	explain_view_scale(v);
	return true;
}

bool explain_view_init_source(explain_view *v, const json_t *explanation)
{
	const json_t *source = json_object_get(explanation, "source");
	*v = (explain_view){.tokens = json_object_get(source, "tokens"),
	                    .parts = json_object_get(explain_view_parts(explanation), "source")};
	v->n = v->reader = v->position = json_array_size(v->tokens);
	v->value = calloc(v->n + 1, sizeof *v->value);
	if (!v->value)
		return false;
	if (v->parts)
		explain_view_from_numbers(v);
	else
		explain_view_from_weights(v, source);
	explain_view_scale(v);
	return true;
}

void explain_view_fini(explain_view *v)
{
	free(v->value);
	*v = (explain_view){0};
}

void explain_view_share_scale(explain_view *a, explain_view *b)
{
	a->max = b->max = fmax(a->max, b->max);
}

double explain_view_heat(const explain_view *v, size_t i)
{
	return v->max > 0 ? fmax(-1, fmin(1, v->value[i] / v->max)) : 0;
}

/* --- the words -------------------------------------------------------------------------------------- */

size_t explain_view_token(const explain_view *v, size_t i, bool breaks, buffer *out)
{
	return markup_visible(out, json_object_get(json_array_get(v->tokens, i), "text"), breaks);
}

bool explain_view_breaks(const explain_view *v, size_t i)
{
	const json_t *text = json_object_get(json_array_get(v->tokens, i), "text");
	return json_is_string(text) && memchr(json_string_value(text), '\n', json_string_length(text));
}

void explain_view_value(const explain_view *v, double value, buffer *out)
{
	if (v->parts)
		buffer_format(out, "%+.4g", value);
	else
		buffer_format(out, "%.2f %%", 100 * value);
}

/* A token, or a class. */
static void explain_view_output(const explain_view *v, const char *which, buffer *out)
{
	const json_t *output = json_object_get(json_object_get(v->parts, "target"), which);
	const json_t *label = json_object_get(output, "label");
	buffer_string(out, "“");
	markup_visible(out, label ? label : json_object_get(output, "text"), false);
	buffer_string(out, "”");
}

void explain_view_title(const explain_view *v, buffer *out)
{
	if (!v->parts) {
		buffer_string(out, "weights α");
		if (v->name[0]) {
			buffer_string(out, ": ");
			markup_escape(out, v->name, strlen(v->name));
		}
		return;
	}
	const json_t *target = json_object_get(v->parts, "target");
	const char *kind = json_string_value(json_object_get(target, "kind")), *method = json_string_value(v->method);
	bool logit = kind && strcmp(kind, "logit") == 0, difference = kind && strcmp(kind, "difference") == 0;
	buffer_string(out, logit ? "the logit of " : "why ");
	explain_view_output(v, "token", out);
	if (difference) {
		buffer_string(out, " and not ");
		explain_view_output(v, "other", out);
	} else if (!logit) {
		buffer_string(out, ", against all other options");
	}
	if (method && strcmp(method, "contributions") != 0) {
		buffer_string(out, " (");
		markup_escape(out, method, strlen(method));
		buffer_string(out, ")");
	}
}

double explain_view_number(const explain_view *v, const char *name)
{
	return json_number_value(json_object_get(v->parts, name));
}

double explain_view_sum(const explain_view *v, const char *name)
{
	return json_number_value(json_object_get(json_object_get(v->parts, "sums"), name));
}
