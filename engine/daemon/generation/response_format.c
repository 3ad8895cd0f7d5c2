#include "engine/daemon/generation/response_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/text/grammar/gbnf.h"
#include "engine/text/grammar/json_grammar.h"
#include "engine/text/grammar/plain_grammar.h"

static status read_format(response_format *out, const json_t *format, const json_t *holder, error *err)
{
	const char *type = json_string_value(json_object_get(format, "type"));
	const bool wants = type && strcmp(type, "json_schema") == 0;
	out->constrains = type && strcmp(type, "text") != 0;
	out->kind = "json";
	out->value = json_object_get(holder, "schema");
	if (wants == (out->value != NULL))
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, out->member, wants ? "is missing" : "needs the type \"json_schema\"");
}

static status read_structured(response_format *out, const json_t *structured, error *err)
{
	static const char *const kinds[][2] = {{"json", "structured_outputs.json"},
	                                       {"regex", "structured_outputs.regex"},
	                                       {"choice", "structured_outputs.choice"},
	                                       {"grammar", "structured_outputs.grammar"}};
	int n = 0;
	if (out->constrains)
		return error_set(err, STATUS_INVALID, "structured_outputs", "is given beside %s", out->field);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		const json_t *found = json_object_get(structured, kinds[i][0]);
		if (!found || json_is_null(found))
			continue;
		*out = (response_format){.constrains = true,
		                         .kind = kinds[i][0],
		                         .value = found,
		                         .field = kinds[i][1],
		                         .member = kinds[i][1]};
		n++;
	}
	return n == 1 ? STATUS_OK
	              : error_set(err, STATUS_INVALID, "structured_outputs",
	                          "needs exactly one of json, regex, choice and grammar");
}

status response_format_read(response_format *out, const json_t *params, error *err)
{
	const json_t *chat = json_object_get(params, "response_format");
	const json_t *text = json_object_get(json_object_get(params, "text"), "format");
	const json_t *structured = json_object_get(params, "structured_outputs");
	if (json_is_object(chat)) {
		out->field = "response_format";
		out->member = "response_format.json_schema.schema";
		TRY(read_format(out, chat, json_object_get(chat, "json_schema"), err));
	} else if (json_is_object(text)) {
		out->field = "text.format";
		out->member = "text.format.schema";
		TRY(read_format(out, text, text, err));
	}
	return json_is_object(structured) ? read_structured(out, structured, err) : STATUS_OK;
}

static status make_grammar(grammar **out, const response_format *f, error *err)
{
	const char *text = json_string_value(f->value);
	const size_t bytes = json_string_length(f->value);
	call_rules calls = f->calls;
	calls.stops = f->stops;
	if (f->calls.tools)
		return call_grammar_new(out, &calls, err);
	if (strcmp(f->kind, "regex") == 0)
		return regex_grammar_new(out, text, bytes, err);
	if (strcmp(f->kind, "grammar") == 0)
		return gbnf_grammar_new(out, text, bytes, err);
	return strcmp(f->kind, "choice") == 0 ? choice_grammar_new(out, f->value, err)
	                                      : json_grammar_new(out, f->value, err);
}

static status response_format_new_constraint(response_format *f, model_entry *m, error *err)
{
	grammar *g;
	const token_trie *trie;
	status s = make_grammar(&g, f, err);
	if (f->calls.tools)
		TRY(s); /* the parameter is complete */
	if (s != STATUS_OK && err->param[0])
		error_prefix(err, f->member);
	else if (s != STATUS_OK && err->status != STATUS_OK)
		snprintf(err->param, sizeof err->param, "%s", f->member);
	TRY(s);
	s = catalog_token_trie(m, f->calls.tools != NULL, &trie);
	if (s == STATUS_OK)
		return constraint_new(&f->constraint, g, trie);
	grammar_free(g);
	return s;
}

/* All that the grammar of calls depends on, but the model's template. */
static char *kept_calls_name(const response_format *f)
{
	const call_rules *r = &f->calls;
	json_t *stops = json_array();
	for (int i = 0; i < r->n_stops; i++)
		json_array_append_new(stops, json_string(f->stops[i]));
	json_t *all = json_pack("{s:o, s:O, s:i, s:s?, s:b}", "stops", stops, "tools", r->tools, "choice",
	                        (int)r->choice, "function", r->function, "parallel", r->parallel);
	char *text = json_text(all, JSON_COMPACT), *name = NULL;
	if (text && asprintf(&name, "%s %s", f->kind, text) < 0)
		name = NULL;
	free(text);
	json_decref(all);
	return name;
}

/* The name under which a model keeps the constraint; the caller frees it. NULL: out of memory. */
static char *kept_name(const response_format *f)
{
	if (f->calls.tools)
		return kept_calls_name(f);
	char *text = f->value ? json_text(f->value, JSON_COMPACT | JSON_ENCODE_ANY) : strdup(""), *name = NULL;
	if (text && asprintf(&name, "%s %s", f->kind, text) < 0)
		name = NULL;
	free(text);
	return name;
}

status response_format_compile(response_format *f, model_entry *m, int at, error *err)
{
	if (!f->constrains)
		return STATUS_OK;
	char *name = kept_name(f);
	f->constraint = name ? kept_constraints_find(&m->constraints[at], name) : NULL;
	status s = name ? STATUS_OK : STATUS_NOMEM;
	if (name && !f->constraint) {
		s = response_format_new_constraint(f, m, err);
		if (s == STATUS_OK)
			kept_constraints_add(&m->constraints[at], name, f->constraint);
	}
	free(name);
	return s;
}

void response_format_fini(response_format *f)
{
	constraint_free(f->constraint);
	*f = (response_format){0};
}
