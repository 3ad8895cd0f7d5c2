/* Texts before a call are automata whose states are those of call_search.h. */
#include "engine/text/grammar/call_grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/grammar/json_grammar.h"

typedef struct composer {
	const call_rules *rules;
	call_search search;
	json_forms json;
	grammar_node *arguments; /* [functions]; of one that may not be called: -1 */
	grammar_node *tails;     /* room for as many */
} composer;

static grammar_node text(const composer *c, const char *words)
{
	return *words ? json_form_text(&c->json, words) : grammar_sequence(c->json.g, NULL, 0);
}

/* --- texts before a call --------------------------------------------------------------------------- */

enum { FOUND = UINT16_MAX - 1 /* in at[0]: a text is complete */ };

static void expand_state(automaton_builder *b, const call_search *s, const call_search_state *from, bool calls)
{
	const call_search_state end = {.at = {FOUND}};
	int32_t target = -1;
	int first = 0;
	for (int byte = 0; byte <= 256; byte++) {
		int32_t next = -1;
		if (byte < 256) {
			call_search_state state = *from;
			const int found = call_search_step(s, &state, (unsigned char)byte);
			if (found < 0)
				next = automaton_builder_state(b, &state, sizeof state);
			else if ((found == 0) == calls)
				next = automaton_builder_state(b, &end, sizeof end);
		}
		if (next == target && byte < 256)
			continue;
		if (target >= 0)
			automaton_builder_edge(b, (unsigned char)first, (unsigned char)(byte - 1), target);
		target = next;
		first = byte;
	}
}

/* calls: the texts up to and including the mark of a call; otherwise those without a call, up to a stop if there is
 * one.
 */
static status answer_texts(const composer *c, bool calls, grammar_node *out)
{
	int64_t budget = AUTOMATON_BUDGET;
	automaton_builder *b = automaton_builder_new(&budget);
	const call_search_state start = {{0}};
	const void *key;
	size_t bytes;
	automaton *a;
	if (!b)
		return STATUS_NOMEM;
	automaton_builder_state(b, &start, sizeof start);
	while (automaton_builder_next(b, &key, &bytes)) {
		call_search_state state;
		memcpy(&state, key, sizeof state);
		const bool end = state.at[0] == FOUND;
		if (!end)
			expand_state(b, &c->search, &state, calls);
		if (end || !calls)
			automaton_builder_accept(b);
	}
	TRY(automaton_builder_finish(&a, b));
	*out = grammar_automaton(c->json.g, a);
	return STATUS_OK;
}

/* --- calls --------------------------------------------------------------------------------------------- */

static const json_t *function_of(const composer *c, size_t i)
{
	return json_object_get(json_array_get(c->rules->tools, i), "function");
}

static const char *function_name(const composer *c, size_t i)
{
	return json_string_value(json_object_get(function_of(c, i), "name"));
}

static status arguments(composer *c, size_t i, int64_t *budget, error *err)
{
	const json_t *schema = json_object_get(function_of(c, i), "parameters"),
	             *type = json_object_get(schema, "type");
	const char *word = json_string_value(type);
	if (!schema) {
		c->arguments[i] = text(c, "{}");
		return STATUS_OK;
	}
	if (json_object_size(schema) == 0) {
		c->arguments[i] = json_grammar_any_object(&c->json);
		return STATUS_OK;
	}
	if (word ? strcmp(word, "object") != 0 : type || !json_object_get(schema, "properties"))
		return error_set(err, STATUS_INVALID, "type", "arguments are an object: must be \"object\"");
	return json_grammar_add(&c->json, schema, budget, &c->arguments[i], err);
}

/* The path within a schema may be as long as a parameter, and is cut. */
static void name_parameters(error *err, size_t i)
{
	char within[90];
	snprintf(within, sizeof within, "%s%.80s", err->param[0] ? "." : "", err->param);
	snprintf(err->param, sizeof err->param, "tools[%d].function.parameters%s", (int)i, within);
}

static status all_arguments(composer *c, error *err)
{
	int64_t budget = AUTOMATON_BUDGET;
	bool any = false;
	for (size_t i = 0; i < json_array_size(c->rules->tools); i++) {
		c->arguments[i] = -1;
		if (c->rules->function && strcmp(function_name(c, i), c->rules->function) != 0)
			continue;
		any = true;
		const status s = arguments(c, i, &budget, err);
		if (s != STATUS_OK)
			name_parameters(err, i);
		TRY(s);
	}
	return any ? STATUS_OK : error_set(err, STATUS_INVALID, "tool_choice", "names none of the functions in tools");
}

/* The rest of a call from the function's name on. */
static grammar_node call_tail(const composer *c)
{
	grammar *g = c->json.g;
	int n = 0;
	for (size_t i = 0; i < json_array_size(c->rules->tools); i++)
		if (c->arguments[i] >= 0)
			c->tails[n++] = grammar_sequence(g, NODES(text(c, function_name(c, i)), text(c, "\", \""),
			                                          text(c, c->rules->form.key), text(c, "\": "),
			                                          c->arguments[i], text(c, "}")));
	return grammar_sequence(g, NODES(grammar_choice(g, c->tails, n), text(c, c->rules->form.close)));
}

/* The rest of an answer after the mark of its first call. */
static status calls_after_mark(const composer *c, grammar_node *out)
{
	const call_rules *r = c->rules;
	grammar *g = c->json.g;
	char *rest;
	grammar_node stops[CALL_SEARCH_TEXTS];
	TRY(call_search_rest(&c->search, &r->form, &rest));
	const grammar_node tail = call_tail(c), opened = text(c, rest);
	free(rest);
	grammar_node more = text(c, "");
	if (r->parallel && !r->form.single)
		more = grammar_repeat(
		    g,
		    grammar_sequence(g, NODES(text(c, r->form.between), text(c, r->form.array ? "" : r->form.open),
		                              text(c, CALL_JSON), tail)),
		    0, CALL_GRAMMAR_MOST - 1);
	/* After a call the reader takes the mark within a stop for that of another call. */
	int n = 0;
	for (int i = 0; i < r->n_stops; i++)
		if (!strstr(r->stops[i], c->search.text[0]))
			stops[n++] = text(c, r->stops[i]);
	const grammar_node ends = n > 0 ? json_form_optional(&c->json, grammar_choice(g, stops, n)) : text(c, "");
	const grammar_node end = text(c, r->form.array ? r->form.end : "");
	*out = grammar_sequence(g, NODES(opened, tail, more, end, ends));
	return STATUS_OK;
}

/* --- answers ----------------------------------------------------------------------------------------------- */

static status answers(composer *c, grammar_node *out, error *err)
{
	const call_rules *r = c->rules;
	grammar *g = c->json.g;
	grammar_node plain, marked, calls;
	if (r->choice == CALLS_NONE)
		return answer_texts(c, false, out);
	TRY(all_arguments(c, err));
	TRY(calls_after_mark(c, &calls));
	if (r->choice == CALLS_REQUIRED) {
		*out = grammar_sequence(
		    g, NODES(text(c, r->form.lead), grammar_text(g, c->search.text[0], c->search.bytes[0]), calls));
		return STATUS_OK;
	}
	TRY(answer_texts(c, false, &plain));
	TRY(answer_texts(c, true, &marked));
	*out = grammar_choice(g, NODES(plain, grammar_sequence(g, NODES(marked, calls))));
	return STATUS_OK;
}

static status finish(composer *c, error *err)
{
	grammar_node root;
	error cause = ERROR_INIT;
	TRY(answers(c, &root, err));
	const status s = grammar_finish(c->json.g, root, &cause);
	for (size_t i = 0; s == STATUS_OK || s == STATUS_INVALID; i++) {
		if (c->rules->choice == CALLS_NONE || i == json_array_size(c->rules->tools))
			break;
		if (c->arguments[i] < 0 || grammar_has_text(c->json.g, c->arguments[i]))
			continue;
		error_set(err, STATUS_INVALID, NULL, "no text fits");
		name_parameters(err, i);
		return STATUS_INVALID;
	}
	return cause.status == STATUS_OK ? s : error_set(err, s, "tools", "%s", error_message(&cause));
}

status call_grammar_new(grammar **out, const call_rules *rules, error *err)
{
	const size_t n = json_array_size(rules->tools);
	composer c = {.rules = rules, .json = {.g = grammar_new(), .spaced = true}};
	*out = NULL;
	c.arguments = memory_new(n, sizeof *c.arguments);
	c.tails = memory_new(n, sizeof *c.tails);
	status s = STATUS_NOMEM;
	if (c.json.g && c.arguments && c.tails)
		s = call_search_init(&c.search, &rules->form, rules->stops, rules->n_stops, err);
	if (s == STATUS_OK) {
		json_forms_make(&c.json);
		s = finish(&c, err);
	}
	free(c.arguments);
	free(c.tails);
	if (s == STATUS_OK)
		*out = c.json.g;
	else
		grammar_free(c.json.g);
	return s;
}
