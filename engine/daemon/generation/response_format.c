#include "engine/daemon/generation/response_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/text/grammar/json_grammar.h"

static status read_format(response_format *out, const json_t *format, const json_t *holder, const char *param,
                          error *err)
{
	const char *type = json_string_value(json_object_get(format, "type"));
	const bool wants = type && strcmp(type, "json_schema") == 0;
	out->constrains = type && strcmp(type, "text") != 0;
	out->schema = json_object_get(holder, "schema");
	out->param = param;
	if (wants == (out->schema != NULL))
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, param, wants ? "is missing" : "needs the type \"json_schema\"");
}

status response_format_read(response_format *out, const json_t *params, error *err)
{
	const json_t *chat = json_object_get(params, "response_format");
	const json_t *text = json_object_get(json_object_get(params, "text"), "format");
	if (json_is_object(chat))
		return read_format(out, chat, json_object_get(chat, "json_schema"),
		                   "response_format.json_schema.schema", err);
	return json_is_object(text) ? read_format(out, text, text, "text.format.schema", err) : STATUS_OK;
}

static status response_format_new_constraint(response_format *f, model_entry *m, error *err)
{
	grammar *g;
	const token_trie *trie;
	status s = json_grammar_new(&g, f->schema, err);
	if (s != STATUS_OK && err->param[0])
		error_prefix(err, f->param);
	else if (s != STATUS_OK && err->status != STATUS_OK)
		snprintf(err->param, sizeof err->param, "%s", f->param);
	TRY(s);
	s = catalog_token_trie(m, &trie);
	if (s == STATUS_OK)
		return constraint_new(&f->constraint, g, trie);
	grammar_free(g);
	return s;
}

status response_format_compile(response_format *f, model_entry *m, int at, error *err)
{
	if (!f->constrains)
		return STATUS_OK;
	char *text = f->schema ? json_text(f->schema, JSON_COMPACT) : strdup("");
	f->constraint = text ? kept_constraints_find(&m->constraints[at], text) : NULL;
	status s = text ? STATUS_OK : STATUS_NOMEM;
	if (text && !f->constraint) {
		s = response_format_new_constraint(f, m, err);
		if (s == STATUS_OK)
			kept_constraints_add(&m->constraints[at], text, f->constraint);
	}
	free(text);
	return s;
}

void response_format_fini(response_format *f)
{
	constraint_free(f->constraint);
	*f = (response_format){0};
}
