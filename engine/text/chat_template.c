/* A text is built in one pass over the messages (chat_builder.h). */
#include "engine/text/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/chat_builder.h"
#include "engine/text/chat_json.h"
#include "engine/text/chat_thinking.h"
#include "engine/text/chat_tools.h"

struct chat_template {
	chat_form form;
	const chat_form *tool_form; /* renders conversations with functions; NULL: `form` does */
	json_t *declared;           /* owns the form's texts; NULL: they are static */
	chat_tools tools;           /* those of a declared form */
	char *begin, *end;
	char *stops[CHAT_TEMPLATE_STOPS + 1];
};

static const char *or_empty(const char *text)
{
	return text ? text : "";
}

/* --- messages -------------------------------------------------------------------------- */

static status wrong(error *err, size_t i, const char *field, const char *words)
{
	char param[64];
	snprintf(param, sizeof param, "messages[%zu].%s", i, field);
	return error_set(err, STATUS_INVALID, param, "%s", words);
}

static status read_role(const json_t *message, size_t i, chat_role *out, error *err)
{
	static const struct {
		const char *word;
		chat_role role;
	} words[] = {{"system", CHAT_SYSTEM},
	             {"developer", CHAT_SYSTEM},
	             {"user", CHAT_USER},
	             {"assistant", CHAT_ASSISTANT},
	             {"tool", CHAT_TOOL}};
	const char *word = json_string_value(json_object_get(message, "role"));
	for (size_t k = 0; word && k < sizeof words / sizeof *words; k++)
		if (strcmp(words[k].word, word) == 0) {
			*out = words[k].role;
			return STATUS_OK;
		}
	return wrong(err, i, "role", "a message is of the system (or developer), the user, the assistant or a tool");
}

/* Append the text of a message: its parts, concatenated. */
static status add_content(chat_builder *b, const json_t *message, size_t i, bool trims, error *err)
{
	const json_t *content = json_object_get(message, "content");
	if (json_is_string(content)) {
		chat_builder_append(b, json_string_value(content), json_string_length(content), trims);
		return STATUS_OK;
	}
	if (!json_is_array(content))
		return wrong(err, i, "content", "must be a text or an array of text parts");
	size_t first = b->out.bytes;
	for (size_t k = 0; k < json_array_size(content); k++) {
		const json_t *part = json_array_get(content, k), *text = json_object_get(part, "text");
		const char *type = json_string_value(json_object_get(part, "type"));
		if (!type || strcmp(type, "text") != 0 || !json_is_string(text))
			return wrong(err, i, "content", "only parts of the type \"text\" can be read");
		chat_builder_append(b, json_string_value(text), json_string_length(text),
		                    trims && b->out.bytes == first);
	}
	return STATUS_OK;
}

/* State of the conversation before a message. */
typedef struct place {
	size_t turns;         /* messages before it that are no system message */
	const json_t *system; /* to be folded into it; NULL: none */
	size_t system_index;
	const json_t *tools;                  /* to be listed; NULL: none, or they have been */
	const json_t *last_tools, *last_user; /* to be listed before each message that equals the last of the user */
	chat_calls calls;
	size_t n;         /* messages in all */
	size_t reasoning; /* answers from this message on have their reasoning (CHAT_THINKS) */
	bool results;     /* the message before it is a result */
	bool open;        /* so are all messages before it, which continue a conversation */
} place;

static status check_order(const chat_form *f, chat_role role, size_t i, const place *p, error *err)
{
	char words[256];
	const char *reason = NULL;
	if (role == CHAT_SYSTEM && f->rules & CHAT_NO_SYSTEM)
		reason = "has no system messages";
	else if (role == CHAT_SYSTEM && f->rules & (CHAT_ALTERNATES | CHAT_FOLDS) && (p->turns > 0 || i > 0))
		reason = "has a system message only as the first";
	else if (role != CHAT_SYSTEM && f->rules & CHAT_ALTERNATES && (role == CHAT_USER) != (p->turns % 2 == 0))
		reason = "wants messages of the user and the assistant in turn, the user's first";
	else if (role == CHAT_ASSISTANT && p->system && f->rules & CHAT_FOLDS)
		reason = "wants a message of the user after the system's";
	if (!reason)
		return STATUS_OK;
	snprintf(words, sizeof words, "the model's chat template (%s) %s", f->name, reason);
	return wrong(err, i, "role", words);
}

static status list_tools(chat_builder *b, place *p, error *err)
{
	TRY(chat_tools_append_list(b, p->tools, err));
	p->tools = NULL;
	return STATUS_OK;
}

/* Append the system's message at the beginning; message NULL: the form's own, or only functions. */
static status add_system(chat_builder *b, const json_t *message, place *p, error *err)
{
	const chat_form *f = b->form;
	const bool trims = f->rules & CHAT_TRIMS, tools = p->tools;
	chat_builder_markup(b, f->turns[CHAT_SYSTEM].prefix);
	if (tools)
		chat_builder_markup(b, f->tools->preamble);
	chat_builder_markup(b, f->preamble);
	const size_t first = b->out.bytes;
	if (message)
		TRY(add_content(b, message, 0, trims, err));
	else
		chat_builder_markup(b, f->default_system);
	if (trims)
		chat_builder_trim_end(b, first);
	if (tools && !f->tools->with_user) {
		if (b->out.bytes > first || (message && !trims))
			chat_builder_markup(b, f->tools->gap);
		TRY(list_tools(b, p, err));
	}
	chat_builder_markup(b, f->turns[CHAT_SYSTEM].suffix);
	if (message || tools)
		b->out.shared = b->out.bytes;
	return STATUS_OK;
}

static status add_result(chat_builder *b, const json_t *message, size_t i, place *p, error *err)
{
	const chat_tools *t = b->form->tools;
	TRY(chat_tools_take_result(b->form, message, i, &p->calls, p->open, err));
	if (!p->results)
		chat_builder_markup(b, t->results.prefix);
	p->results = true;
	chat_builder_markup(b, t->result.prefix);
	const size_t first = b->out.bytes;
	const bool trims = b->form->rules & CHAT_TRIMS && !t->json_results;
	TRY(add_content(b, message, i, trims, err));
	if (trims)
		chat_builder_trim_end(b, first);
	if (t->json_results && !b->failed) {
		json_t *text = json_stringn(b->out.text ? b->out.text + first : "", b->out.bytes - first);
		if (!text)
			return STATUS_NOMEM;
		b->out.bytes = first;
		chat_json_append(b, text, 0);
		json_decref(text);
	}
	TRY(chat_tools_append_result_id(b, message, i, err));
	chat_builder_markup(b, t->result.suffix);
	chat_builder_markup(b, i + 1 < p->n ? t->after_result : NULL);
	return STATUS_OK;
}

static status end_results(chat_builder *b, place *p, error *err)
{
	if (p->results)
		chat_builder_markup(b, b->form->tools->results.suffix);
	p->results = p->open = false;
	return chat_tools_check_answered(&p->calls, err);
}

static status add_turn(chat_builder *b, const json_t *message, size_t i, chat_role role, place *p, error *err)
{
	const chat_form *f = b->form;
	const bool answers = role == CHAT_ASSISTANT;
	const bool trims = f->rules & CHAT_TRIMS || (answers && f->rules & CHAT_TRIMS_ANSWERS);
	const bool calls = answers && json_array_size(json_object_get(message, "tool_calls")) > 0;
	const size_t begin = b->out.bytes;
	if (p->last_tools && role == CHAT_USER && json_equal(message, p->last_user))
		TRY(chat_tools_append_list(b, p->last_tools, err));
	if (!calls || !f->tools || !f->tools->calls.prefix)
		chat_builder_markup(b, f->turns[role].prefix);
	if (p->tools)
		TRY(list_tools(b, p, err));
	size_t first = b->out.bytes;
	const bool folds = p->system && (f->rules & CHAT_FOLDS || (role == CHAT_USER && i + 1 == p->n));
	if (folds) {
		chat_builder_markup(b, f->turns[CHAT_SYSTEM].prefix);
		TRY(add_content(b, p->system, p->system_index, false, err));
		chat_builder_markup(b, f->turns[CHAT_SYSTEM].suffix);
		b->out.shared = i == p->system_index + 1 ? b->out.bytes : 0;
	}
	const json_t *content = json_object_get(message, "content");
	if (!calls || (content && !json_is_null(content)))
		TRY(add_content(b, message, i, trims && !folds, err));
	p->system = folds ? NULL : p->system;
	if (trims)
		chat_builder_trim_end(b, first);
	bool text = b->out.bytes > first;
	if (answers && f->rules & CHAT_THINKS)
		TRY(chat_thinking_rewrite(b, first, i >= p->reasoning, i + 1 == p->n, &text));
	if (calls)
		TRY(chat_tools_append_calls(b, message, i, text, &p->calls, err));
	chat_builder_markup(b, f->turns[role].suffix);
	if (answers) {
		const size_t written = begin + chat_builder_common(b, begin, f->answer);
		b->out.answers[i] = (byte_range){written, b->out.bytes - written};
	}
	return STATUS_OK;
}

static status add_message(chat_builder *b, const json_t *message, size_t i, place *p, error *err)
{
	const chat_form *f = b->form;
	chat_role role;
	TRY(read_role(message, i, &role, err));
	if (role != CHAT_ASSISTANT && json_array_size(json_object_get(message, "tool_calls")) > 0)
		return wrong(err, i, "tool_calls", "only the assistant calls functions");
	if (role == CHAT_TOOL)
		return add_result(b, message, i, p, err);
	TRY(end_results(b, p, err));
	p->calls.list = NULL;
	const bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
	if (!calls)
		TRY(check_order(f, role, i, p, err));
	if (role == CHAT_SYSTEM && f->rules & (CHAT_FOLDS | CHAT_FOLDS_LAST)) {
		p->system = message;
		p->system_index = i;
		return STATUS_OK;
	}
	const json_t *content = json_object_get(message, "content");
	if (role == CHAT_SYSTEM && f->rules & CHAT_SKIPS && json_is_string(content) && !json_string_length(content))
		return STATUS_OK;
	const bool begins = i == 0 && p->turns == 0;
	if (begins && role == CHAT_SYSTEM)
		return add_system(b, message, p, err);
	if (begins && (f->default_system || p->tools))
		TRY(add_system(b, NULL, p, err));
	if (p->tools && role != CHAT_USER)
		return wrong(err, i, "role", "the model's chat template lists functions with a message of the user");
	p->turns += role != CHAT_SYSTEM && !calls; /* calls are not one of the turns that alternate */
	return add_turn(b, message, i, role, p, err);
}

static const json_t *last_of_user(const json_t *messages)
{
	for (size_t i = json_array_size(messages); i > 0; i--) {
		const json_t *message = json_array_get(messages, i - 1);
		const char *role = json_string_value(json_object_get(message, "role"));
		if (role && strcmp(role, "user") == 0)
			return message;
	}
	return NULL;
}

static status chat_template_build(chat_builder *b, const json_t *messages, const json_t *tools, bool continues,
                                  bool answers, error *err)
{
	const chat_form *f = b->form;
	place p = {.turns = continues ? 2 : 0,
	           .n = json_array_size(messages),
	           .reasoning = chat_thinking_begin(messages, continues),
	           .open = continues};
	TRY(chat_tools_check(f, tools, err));
	const bool before = f->tools && f->tools->before_user;
	if (!continues && json_array_size(tools) > 0)
		*(before ? &p.last_tools : &p.tools) = tools;
	p.last_user = last_of_user(messages);
	if (p.last_tools && !p.last_user)
		return wrong(err, 0, "role", "the model's chat template lists functions with a message of the user");
	b->out.answers = memory_new(p.n, sizeof *b->out.answers);
	if (!b->out.answers)
		return STATUS_NOMEM;
	chat_role first;
	if (continues) {
		TRY(read_role(json_array_get(messages, 0), 0, &first, err));
		if (first != CHAT_USER && first != CHAT_TOOL)
			return wrong(err, 0, "role", "a conversation continues with a message of the user or a tool");
	}
	chat_builder_markup(b, continues ? f->turns[CHAT_ASSISTANT].suffix : f->begin);
	if (p.tools && f->tools->before_all) {
		TRY(list_tools(b, &p, err));
		b->out.shared = b->out.bytes;
	}
	for (size_t i = 0; i < json_array_size(messages); i++)
		TRY(add_message(b, json_array_get(messages, i), i, &p, err));
	if (p.system && f->rules & CHAT_FOLDS_LAST)
		return wrong(
		    err, p.system_index, "role",
		    "the model's chat template leaves a system message out unless the last message is the user's");
	if (p.system || p.tools)
		return wrong(err, p.system_index, "role", "a message of the user must follow the system's");
	if (answers)
		TRY(end_results(b, &p, err));
	else if (p.results)
		chat_builder_markup(b, f->tools->results.suffix);
	chat_builder_markup(b, answers ? f->answer : f->unanswered);
	if (b->grown)
		return error_set(err, STATUS_TOO_LARGE, "messages",
		                 "the model's chat template makes the conversation grow too much");
	return b->failed || !chat_builder_reserve(b, 0) ? error_set(err, STATUS_NOMEM, NULL, "out of memory")
	                                                : STATUS_OK;
}

/* The bytes of the text up to the end of the stop, if the text begins with it, optionally after spaces; otherwise 0. */
static size_t bytes_to_stop(const char *text, const char *stop)
{
	const size_t spaces = strspn(text, " "), n = strlen(stop);
	if (n > 0 && strncmp(text + spaces, stop, n) == 0)
		return spaces + n;
	return strncmp(text, stop, n) == 0 ? n : 0;
}

/* For a text that follows an answer: the bytes up to the end of the longest stop text that it begins with. */
static size_t closing_bytes(const chat_template *t, const chat_text *x)
{
	size_t most = t->form.tools ? bytes_to_stop(x->text, or_empty(t->form.tools->stop)) : 0;
	for (char *const *stop = t->stops; *stop; stop++) {
		const size_t bytes = bytes_to_stop(x->text, *stop);
		most = bytes > most ? bytes : most;
	}
	return most;
}

status chat_template_render(const chat_template *t, const json_t *messages, const json_t *tools, bool continues,
                            bool answers, chat_text *out, error *err)
{
	const chat_form *form = t->tool_form && json_array_size(tools) > 0 ? t->tool_form : &t->form;
	chat_builder b = {.form = form, .begin = t->begin, .end = t->end};
	*out = (chat_text){0};
	status s = json_array_size(messages) > 0 ? chat_template_build(&b, messages, tools, continues, answers, err)
	                                         : error_set(err, STATUS_INVALID, "messages", "must hold a message");
	if (s != STATUS_OK) {
		chat_text_fini(&b.out);
		return s;
	}
	b.out.text[b.out.bytes] = 0;
	b.out.closing = continues ? closing_bytes(t, &b.out) : 0;
	*out = b.out;
	return STATUS_OK;
}

status chat_template_check_tools(const chat_template *t, const json_t *tools, error *err)
{
	return chat_tools_check(t->tool_form ? t->tool_form : &t->form, tools, err);
}

void chat_text_fini(chat_text *x)
{
	free(x->text);
	free(x->trusted);
	free(x->answers);
	*x = (chat_text){0};
}

/* --- declared forms ------------------------------------------------------------------------ */

static status read_text(const json_t *object, const char *key, const char **out, error *err)
{
	const json_t *text = json_object_get(object, key);
	if (!text)
		return STATUS_OK;
	*out = json_string_value(text);
	if (*out && strlen(*out) == json_string_length(text) && !strpbrk(*out, CHAT_BEGIN CHAT_END))
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, key, "must be a text without control characters");
}

static status refuse_others(const json_t *object, const char *const *keys, error *err)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)object, key, value)
	{
		size_t i = 0;
		while (keys[i] && strcmp(keys[i], key) != 0)
			i++;
		if (!keys[i])
			return error_set(err, STATUS_INVALID, key, "a chat template has no member \"%.40s\"", key);
	}
	return STATUS_OK;
}

static status read_turn(const json_t *object, const char *key, chat_turn *out, error *err)
{
	static const char *const keys[] = {"prefix", "suffix", NULL};
	const json_t *turn = json_object_get(object, key);
	if (!json_is_object(turn))
		return error_set(err, STATUS_INVALID, key, "must be an object with \"prefix\" and \"suffix\"");
	status s = refuse_others(turn, keys, err);
	if (s == STATUS_OK)
		s = read_text(turn, "prefix", &out->prefix, err);
	if (s == STATUS_OK)
		s = read_text(turn, "suffix", &out->suffix, err);
	if (s != STATUS_OK)
		error_prefix(err, key);
	return s;
}

static status read_stops(const json_t *list, const char **out, error *err)
{
	size_t n = json_array_size(list);
	bool good = (!list || json_is_array(list)) && n <= CHAT_TEMPLATE_STOPS;
	for (size_t i = 0; good && i < n; i++) {
		const json_t *text = json_array_get(list, i);
		out[i] = json_string_value(text);
		good = out[i] && *out[i] && strlen(out[i]) == json_string_length(text) &&
		       strlen(out[i]) < CHAT_TEMPLATE_STOP_BYTES && !strpbrk(out[i], CHAT_BEGIN CHAT_END);
	}
	if (good)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "stop", "must be an array of at most %d texts of 1 to %d bytes",
	                 CHAT_TEMPLATE_STOPS, CHAT_TEMPLATE_STOP_BYTES - 1);
}

static status read_tools(chat_form *form, chat_tools *out, const json_t *spec, error *err)
{
	static const char *const keys[] = {"list", "call", "result", NULL};
	const json_t *object = json_object_get(spec, "tools");
	if (!object)
		return STATUS_OK;
	*out = (chat_tools){.tool = {NULL, "\n"}, .key = "arguments"};
	status s = refuse_others(object, keys, err);
	if (s == STATUS_OK)
		s = read_turn(object, "list", &out->list, err);
	if (s == STATUS_OK)
		s = read_turn(object, "call", &out->call, err);
	if (s == STATUS_OK)
		s = read_turn(object, "result", &out->result, err);
	const char *prefix = or_empty(out->call.prefix);
	if (s == STATUS_OK && (!prefix[strspn(prefix, " \t\r\n")] || strlen(prefix) >= CHAT_TEMPLATE_STOP_BYTES))
		s = error_set(err, STATUS_INVALID, "call.prefix",
		              "must be a text of 1 to %d bytes, not only white space", CHAT_TEMPLATE_STOP_BYTES - 1);
	if (s != STATUS_OK)
		error_prefix(err, "tools");
	form->tools = out;
	return s;
}

static status read_declared(chat_form *out, chat_tools *tools, const json_t *spec, error *err)
{
	static const char *const keys[] = {"begin", "system", "user",  "assistant", "generation",
	                                   "stop",  "trim",   "tools", NULL};
	const json_t *trim = json_object_get(spec, "trim");
	*out = (chat_form){.name = "declared"};
	if (!json_is_object(spec))
		return error_set(err, STATUS_INVALID, NULL, "the configuration's \"chat_template\" must be an object");
	TRY(refuse_others(spec, keys, err));
	TRY(read_text(spec, "begin", &out->begin, err));
	TRY(read_text(spec, "generation", &out->answer, err));
	TRY(read_turn(spec, "user", &out->turns[CHAT_USER], err));
	TRY(read_turn(spec, "assistant", &out->turns[CHAT_ASSISTANT], err));
	if (json_object_get(spec, "system"))
		TRY(read_turn(spec, "system", &out->turns[CHAT_SYSTEM], err));
	else
		out->rules |= CHAT_NO_SYSTEM;
	if (trim && !json_is_boolean(trim))
		return error_set(err, STATUS_INVALID, "trim", "must be true or false");
	out->rules |= json_is_true(trim) ? CHAT_TRIMS : 0;
	TRY(read_tools(out, tools, spec, err));
	return read_stops(json_object_get(spec, "stop"), out->stops, err);
}

/* --- making -------------------------------------------------------------------------------- */

static status choose_form(chat_template *t, const chat_template_source *from, error *err)
{
	const chat_form *found = &chat_forms_plain;
	if (from->declared && !json_is_null(from->declared)) {
		t->declared = json_incref((json_t *)(uintptr_t)from->declared);
		status s = read_declared(&t->form, &t->tools, from->declared, err);
		if (s != STATUS_OK)
			error_prefix(err, "chat_template");
		return s;
	}
	if (from->program)
		TRY(chat_forms_find(from->program, false, &found));
	if (!found)
		return error_set(err, STATUS_UNSUPPORTED, "model",
		                 "the model's chat template is none of the published ones that can be rendered here; "
		                 "give it one as \"chat_template\": {\"user\": …} in its config.json");
	t->form = *found;
	if (!from->tool_program)
		return STATUS_OK;
	t->form.tools = NULL; /* the library renders functions with the other program */
	return chat_forms_find(from->tool_program, true, &t->tool_form);
}

static status expand_stops(chat_template *t)
{
	for (int i = 0, n = 0; i < CHAT_TEMPLATE_STOPS && t->form.stops[i]; i++) {
		chat_builder b = {.form = &t->form, .begin = t->begin, .end = t->end};
		chat_builder_markup(&b, t->form.stops[i]);
		free(b.out.trusted);
		if (b.failed || b.out.bytes == 0 || b.out.bytes >= CHAT_TEMPLATE_STOP_BYTES)
			free(b.out.text);
		else
			t->stops[n++] = b.out.text;
		if (b.failed)
			return STATUS_NOMEM;
	}
	return STATUS_OK;
}

static char *copy(const char *text)
{
	return strdup(or_empty(text));
}

status chat_template_new(chat_template **out, const chat_template_source *from, error *err)
{
	*out = NULL;
	chat_template *t = memory_new(1, sizeof *t);
	status s = t && (t->begin = copy(from->begin)) && (t->end = copy(from->end)) ? choose_form(t, from, err)
	                                                                             : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = expand_stops(t);
	if (s != STATUS_OK) {
		chat_template_free(t);
		return error_settle(err, s);
	}
	*out = t;
	return STATUS_OK;
}

void chat_template_free(chat_template *t)
{
	if (!t)
		return;
	for (int i = 0; i < CHAT_TEMPLATE_STOPS; i++)
		free(t->stops[i]);
	json_decref(t->declared);
	free(t->begin);
	free(t->end);
	free(t);
}

const char *chat_template_name(const chat_template *t)
{
	return t->form.name;
}

const char *const *chat_template_stops(const chat_template *t)
{
	return (const char *const *)t->stops;
}

bool chat_template_calls(const chat_template *t, chat_call_form *out)
{
	const chat_form *f = t->tool_form ? t->tool_form : &t->form;
	const char *prefix = or_empty(f->turns[CHAT_ASSISTANT].prefix), *answer = or_empty(f->answer);
	const size_t n = strlen(answer);
	if (!f->tools)
		return false;
	const chat_tools *how = f->tools;
	const bool array = how->calls.prefix;
	*out = (chat_call_form){.lead = strncmp(prefix, answer, n) == 0 && !array ? prefix + n : "",
	                        .open = or_empty(array ? how->calls.prefix : how->call.prefix),
	                        .first = how->alone,
	                        .array = array,
	                        .end = or_empty(how->calls.suffix),
	                        .short_ids = how->id,
	                        .close = or_empty(how->call.suffix),
	                        .key = how->key,
	                        .between = or_empty(how->between),
	                        .stop = or_empty(how->stop),
	                        .single = how->single};
	return true;
}

/* --- a tokenizer's files --------------------------------------------------------------------- */

/* A token's name, which is a text or an object that describes the token. */
static const char *token_name(const json_t *config, const char *key)
{
	const json_t *token = json_object_get(config, key);
	return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

/* The template, or those called "default" and "tool_use" of several: [{"name", "template"}, …] or {name: template}.
 * *out NULL: there is none at all. */
static status programs_of(const json_t *config, const char **out, const char **tool_use, error *err)
{
	const json_t *program = json_object_get(config, "chat_template");
	*out = json_string_value(program);
	if (*out || !program || json_is_null(program))
		return STATUS_OK;
	*out = json_string_value(json_object_get(program, "default"));
	*tool_use = json_string_value(json_object_get(program, "tool_use"));
	for (size_t i = 0; i < json_array_size(program); i++) {
		const json_t *one = json_array_get(program, i);
		const char *name = json_string_value(json_object_get(one, "name"));
		if (name && strcmp(name, "default") == 0)
			*out = json_string_value(json_object_get(one, "template"));
		if (name && strcmp(name, "tool_use") == 0)
			*tool_use = json_string_value(json_object_get(one, "template"));
	}
	return *out ? STATUS_OK
	            : error_set(err, STATUS_UNSUPPORTED, "model",
	                        "none of the model's chat templates is called \"default\"");
}

status chat_template_open(chat_template **out, const tokenizer *files, const json_t *config, error *err)
{
	size_t bytes;
	json_t *tokens = NULL, *map = NULL;
	*out = NULL;
	status s = tokenizer_file_json(files, "tokenizer_config.json", &tokens, err);
	if (s == STATUS_OK)
		s = tokenizer_file_json(files, "special_tokens_map.json", &map, err);
	const char *program = tokenizer_file(files, "chat_template.jinja", &bytes), *tool_use = NULL;
	if (s == STATUS_OK && !program && !json_is_object(json_object_get(config, "chat_template")))
		s = programs_of(tokens, &program, &tool_use, err);
	if (s == STATUS_OK) {
		const char *begin = token_name(tokens, "bos_token"), *end = token_name(tokens, "eos_token");
		chat_template_source from = {.declared = json_object_get(config, "chat_template"),
		                             .program = program,
		                             .tool_program = tool_use,
		                             .begin = begin ? begin : token_name(map, "bos_token"),
		                             .end = end ? end : token_name(map, "eos_token")};
		s = chat_template_new(out, &from, err);
	}
	json_decref(tokens);
	json_decref(map);
	return s;
}
