#include "engine/daemon/generation/explanation_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

/* Copy the numbers of a list, or a single one. */
static status copy_numbers(table_series *s, const json_t *values)
{
	const bool pairs = s->shape == TABLE_PAIRS;
	s->count = s->shape == TABLE_NUMBER ? 1 : json_array_size(values);
	s->values = memory_new(s->count, sizeof *s->values);
	s->pair_tokens = pairs ? memory_new(s->count, sizeof *s->pair_tokens) : NULL;
	if (!s->values || (pairs && !s->pair_tokens))
		return STATUS_NOMEM;
	for (size_t i = 0; i < s->count; i++) {
		const json_t *value = s->shape == TABLE_NUMBER ? values : json_array_get(values, i);
		if (pairs)
			s->pair_tokens[i] = (int32_t)json_integer_value(json_array_get(value, 0));
		s->values[i] = (float)json_number_value(pairs ? json_array_get(value, 1) : value);
	}
	return STATUS_OK;
}

static status explanation_table_add(explanation_table *t, const table_series *s, const json_t *values)
{
	if (!MEMORY_ROOM(t->series, t->capacity, t->n + 1))
		return STATUS_NOMEM;
	t->series[t->n] = *s;
	return copy_numbers(&t->series[t->n++], values);
}

static void read_integer(int32_t *out, const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);
	if (json_is_integer(value))
		*out = (int32_t)json_integer_value(value);
}

/* Read what an object's members state about all of its numbers. */
static void read_context(table_series *s, const json_t *object)
{
	const char *round = json_string_value(json_object_get(object, "round"));
	const json_t *window = json_object_get(object, "window");
	read_integer(&s->position, object, "position");
	read_integer(&s->layer, object, "layer");
	read_integer(&s->head, object, "head");
	if (round)
		snprintf(s->round, sizeof s->round, "%s", round);
	s->first = json_is_array(window) ? (int32_t)json_integer_value(json_array_get(window, 0)) : 0;
}

static status walk(explanation_table *t, const char *path, const json_t *object, table_series context);

static status walk_list(explanation_table *t, const char *key, const json_t *list, table_series s)
{
	const json_t *first = json_array_get(list, 0);
	s.shape = json_is_array(first) ? TABLE_PAIRS : TABLE_TOKENS;
	if (strcmp(key, "log_normalizer") == 0)
		s.shape = TABLE_POSITIONS;
	if (json_is_real(first) || json_is_array(first))
		return explanation_table_add(t, &s, list);
	s.listed = true;
	for (size_t i = 0; json_is_object(first) && i < json_array_size(list); i++)
		TRY(walk(t, s.path, json_array_get(list, i), s));
	return STATUS_OK;
}

static status walk_member(explanation_table *t, const char *key, const json_t *value, table_series s)
{
	if (strcmp(key, "span") == 0)
		s.position = TABLE_NONE; /* its rows have their own */
	if (strcmp(key, "source") == 0)
		s.side = TABLE_SOURCE;
	if (json_is_object(value))
		return walk(t, s.path, value, s);
	if (json_is_array(value))
		return walk_list(t, key, value, s);
	s.shape = TABLE_NUMBER;
	return json_is_real(value) ? explanation_table_add(t, &s, value) : STATUS_OK;
}

static status walk(explanation_table *t, const char *path, const json_t *object, table_series context)
{
	const char *key;
	json_t *value;
	read_context(&context, object);
	json_object_foreach((json_t *)(uintptr_t)object, key, value)
	{
		if (value == t->tokens[TABLE_TEXT] || value == t->tokens[TABLE_SOURCE])
			continue;
		snprintf(context.path, sizeof context.path, "%s%s%s", path, path[0] ? "." : "", key);
		TRY(walk_member(t, key, value, context));
	}
	return STATUS_OK;
}

status explanation_table_init(explanation_table *t, const json_t *explanation)
{
	const json_t *source = json_object_get(explanation, "source");
	*t = (explanation_table){.tokens = {json_incref(json_object_get(explanation, "tokens")),
	                                    json_incref(json_object_get(source, "tokens"))}};
	return walk(t, "", explanation,
	            (table_series){.position = TABLE_NONE, .layer = TABLE_NONE, .head = TABLE_NONE});
}

void explanation_table_fini(explanation_table *t)
{
	for (size_t i = 0; i < t->n; i++) {
		free(t->series[i].values);
		free(t->series[i].pair_tokens);
	}
	free(t->series);
	for (int i = 0; i < TABLE_SIDES; i++)
		json_decref(t->tokens[i]);
	*t = (explanation_table){0};
}

table_row explanation_table_row(const table_series *s, size_t i)
{
	table_row row = {.series = s, .position = s->position, .token = TABLE_NONE, .value = s->values[i]};
	if (s->shape == TABLE_TOKENS)
		row.token = s->first + (int32_t)i;
	if (s->shape == TABLE_POSITIONS)
		row.position = (int32_t)i;
	if (s->shape == TABLE_PAIRS)
		row.token = s->pair_tokens[i];
	return row;
}

bool explanation_table_next(const explanation_table *t, table_cursor *at, table_row *out)
{
	while (at->series < t->n && at->item >= t->series[at->series].count)
		*at = (table_cursor){.series = at->series + 1};
	if (at->series >= t->n)
		return false;
	*out = explanation_table_row(&t->series[at->series], at->item++);
	return true;
}

const char *explanation_table_side(const table_row *row)
{
	static const char *const names[TABLE_SIDES] = {"text", "source"};
	return row->token == TABLE_NONE ? "" : names[row->series->side];
}

int32_t explanation_table_token(const explanation_table *t, table_side side, int32_t token, const char **text,
                                size_t *bytes)
{
	const json_t *object = token >= 0 ? json_array_get(t->tokens[side], (size_t)token) : NULL;
	const json_t *string = json_object_get(object, "text");
	*text = string ? json_string_value(string) : "";
	*bytes = json_string_length(string);
	return (int32_t)json_integer_value(json_object_get(object, "id"));
}
