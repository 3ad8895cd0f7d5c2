/* A text is built in one pass over the messages. Whatever is appended is either the template's or a message's; ranges
 * that touch are one. */
#include "engine/text/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/chat_forms.h"

enum { MOST_ADDED = 1 << 20, MOST_ADDED_EACH = 16 /* bytes for each of the messages' */ };

struct chat_template {
	chat_form form;
	json_t *declared; /* owns the form's texts; NULL: they are static */
	char *begin, *end;
	char *stops[CHAT_TEMPLATE_STOPS + 1];
};

/* --- texts --------------------------------------------------------------------------- */

typedef struct builder {
	const chat_template *t;
	chat_text out;
	size_t room, ranges_room;
	size_t given, added; /* bytes of messages, and of the template */
	bool failed, grown;  /* grown: failed, since the template adds too much */
} builder;

static bool chat_template_reserve(builder *b, size_t bytes)
{
	b->failed = b->failed || !MEMORY_ROOM(b->out.text, b->room, b->out.bytes + bytes + 1);
	return !b->failed;
}

static void chat_template_append(builder *b, const char *text, size_t bytes)
{
	if (!chat_template_reserve(b, bytes))
		return;
	memcpy(b->out.text + b->out.bytes, text, bytes);
	b->out.bytes += bytes;
	b->out.text[b->out.bytes] = 0;
}

static void trust(builder *b, size_t first, size_t bytes)
{
	byte_range *last = b->out.n_trusted ? &b->out.trusted[b->out.n_trusted - 1] : NULL;
	if (b->failed || bytes == 0)
		return;
	if (last && last->first + last->bytes == first) {
		last->bytes += bytes;
		return;
	}
	b->failed = !MEMORY_ROOM(b->out.trusted, b->ranges_room, b->out.n_trusted + 1);
	if (!b->failed)
		b->out.trusted[b->out.n_trusted++] = (byte_range){first, bytes};
}

/* A text of the form, with the names of the tokens that begin and end a text. */
static void markup(builder *b, const char *text)
{
	size_t first = b->out.bytes;
	for (; text && *text; text++) {
		const char *name = *text == *CHAT_BEGIN ? b->t->begin : *text == *CHAT_END ? b->t->end : NULL;
		/* Append what the template adds, within a bound. */
		const size_t bytes = name ? strlen(name) : 1;
		b->added += bytes;
		b->grown |= b->added > MOST_ADDED + MOST_ADDED_EACH * b->given;
		b->failed |= b->grown;
		chat_template_append(b, name ? name : text, bytes);
	}
	trust(b, first, b->out.bytes - first);
}

/* Bytes of the character of white space that a text begins with, or (last) ends with, as Python's str.strip sees it;
 * 0: none. */
static size_t space(const char *text, size_t bytes, bool last)
{
	static const char *const wide[] = {"\xc2\x85", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
	                                   "\u2004",   "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
	                                   "\u2028",   "\u2029", "\u202f", "\u205f", "\u3000"};
	if (bytes == 0)
		return 0;
	unsigned char c = (unsigned char)text[last ? bytes - 1 : 0];
	if (c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f))
		return 1;
	for (size_t i = 0; c >= 0x80 && i < sizeof wide / sizeof *wide; i++) {
		size_t n = strlen(wide[i]);
		if (n <= bytes && memcmp(last ? text + bytes - n : text, wide[i], n) == 0)
			return n;
	}
	return 0;
}

/* Drop the white space at the end of what was built from `first` on. */
static void trim_end(builder *b, size_t first)
{
	size_t n;
	while (!b->failed && (n = space(b->out.text + first, b->out.bytes - first, true)) > 0)
		b->out.bytes -= n;
	if (!b->failed && b->out.text)
		b->out.text[b->out.bytes] = 0;
	while (b->out.n_trusted > 0) {
		byte_range *last = &b->out.trusted[b->out.n_trusted - 1];
		if (last->first + last->bytes <= b->out.bytes)
			return;
		last->bytes = last->first < b->out.bytes ? b->out.bytes - last->first : 0;
		b->out.n_trusted -= last->bytes == 0;
	}
}

static void append_trimmed(builder *b, const char *text, size_t bytes, bool trims)
{
	size_t n;
	while (trims && (n = space(text, bytes, false)) > 0) {
		text += n;
		bytes -= n;
	}
	b->given += bytes;
	chat_template_append(b, text, bytes);
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
	} words[] = {
	    {"system", CHAT_SYSTEM}, {"developer", CHAT_SYSTEM}, {"user", CHAT_USER}, {"assistant", CHAT_ASSISTANT}};
	const char *word = json_string_value(json_object_get(message, "role"));
	for (size_t k = 0; word && k < sizeof words / sizeof *words; k++)
		if (strcmp(words[k].word, word) == 0) {
			*out = words[k].role;
			return STATUS_OK;
		}
	return wrong(err, i, "role", "a message is of the system (or developer), the user or the assistant");
}

/* Append the text of a message: its parts, concatenated. */
static status add_content(builder *b, const json_t *message, size_t i, bool trims, error *err)
{
	const json_t *content = json_object_get(message, "content");
	if (json_is_string(content)) {
		append_trimmed(b, json_string_value(content), json_string_length(content), trims);
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
		append_trimmed(b, json_string_value(text), json_string_length(text), trims && b->out.bytes == first);
	}
	return STATUS_OK;
}

/* State of the conversation before a message. */
typedef struct place {
	size_t turns;         /* messages before it that are no system message */
	const json_t *system; /* to be folded into it; NULL: none */
	size_t system_index;
} place;

static status check_order(const chat_form *f, chat_role role, size_t i, const place *p, error *err)
{
	char words[256];
	const char *reason = NULL;
	if (role == CHAT_SYSTEM && f->rules & CHAT_NO_SYSTEM)
		reason = "has no system messages";
	else if (role == CHAT_SYSTEM && f->rules & (CHAT_ALTERNATES | CHAT_FOLDS) && (p->turns > 0 || p->system))
		reason = "has a system message only as the first";
	else if (role != CHAT_SYSTEM && f->rules & CHAT_ALTERNATES && (role == CHAT_USER) != (p->turns % 2 == 0))
		reason = "wants messages of the user and the assistant in turn, the user's first";
	else if (role == CHAT_ASSISTANT && p->system)
		reason = "wants a message of the user after the system's";
	if (!reason)
		return STATUS_OK;
	snprintf(words, sizeof words, "the model's chat template (%s) %s", f->name, reason);
	return wrong(err, i, "role", words);
}

static status add_turn(builder *b, const json_t *message, size_t i, chat_role role, place *p, error *err)
{
	const chat_form *f = &b->t->form;
	bool trims = f->rules & CHAT_TRIMS;
	markup(b, f->turns[role].prefix);
	size_t first = b->out.bytes;
	if (p->system) {
		markup(b, f->turns[CHAT_SYSTEM].prefix);
		TRY(add_content(b, p->system, p->system_index, false, err));
		markup(b, f->turns[CHAT_SYSTEM].suffix);
		b->out.shared = b->out.bytes;
	}
	TRY(add_content(b, message, i, trims && !p->system, err));
	p->system = NULL;
	if (trims)
		trim_end(b, first);
	markup(b, f->turns[role].suffix);
	if (i == 0 && role == CHAT_SYSTEM)
		b->out.shared = b->out.bytes;
	return STATUS_OK;
}

static status add_message(builder *b, const json_t *message, size_t i, place *p, error *err)
{
	const chat_form *f = &b->t->form;
	chat_role role;
	TRY(read_role(message, i, &role, err));
	TRY(check_order(f, role, i, p, err));
	if (role == CHAT_SYSTEM && f->rules & CHAT_FOLDS) {
		p->system = message;
		p->system_index = i;
		return STATUS_OK;
	}
	const json_t *content = json_object_get(message, "content");
	if (role == CHAT_SYSTEM && f->rules & CHAT_SKIPS && json_is_string(content) && !json_string_length(content))
		return STATUS_OK;
	if (i == 0 && p->turns == 0 && role != CHAT_SYSTEM)
		markup(b, f->default_system);
	p->turns += role != CHAT_SYSTEM;
	return add_turn(b, message, i, role, p, err);
}

static status chat_template_build(builder *b, const json_t *messages, bool continues, bool answers, error *err)
{
	const chat_form *f = &b->t->form;
	place p = {.turns = continues ? 2 : 0};
	chat_role first;
	if (continues) {
		TRY(read_role(json_array_get(messages, 0), 0, &first, err));
		if (first != CHAT_USER)
			return wrong(err, 0, "role", "a conversation goes on with a message of the user");
	}
	markup(b, continues ? f->turns[CHAT_ASSISTANT].suffix : f->begin);
	for (size_t i = 0; i < json_array_size(messages); i++)
		TRY(add_message(b, json_array_get(messages, i), i, &p, err));
	if (p.system)
		return wrong(err, p.system_index, "role", "a message of the user must follow the system's");
	markup(b, answers ? f->answer : f->unanswered);
	if (b->grown)
		return error_set(err, STATUS_TOO_LARGE, "messages",
		                 "the model's chat template makes the conversation grow too much");
	return b->failed || !chat_template_reserve(b, 0) ? error_set(err, STATUS_NOMEM, NULL, "out of memory")
	                                                 : STATUS_OK;
}

/* For a text that follows an answer: the bytes up to the end of the stop text that it begins with, optionally after
 * spaces. */
static size_t closing_bytes(const chat_template *t, const chat_text *x)
{
	size_t spaces = strspn(x->text, " "), most = 0;
	for (char *const *stop = t->stops; *stop; stop++) {
		size_t n = strlen(*stop);
		most = n > most && strncmp(x->text, *stop, n) == 0 ? n : most;
		most = spaces + n > most && strncmp(x->text + spaces, *stop, n) == 0 ? spaces + n : most;
	}
	return most;
}

status chat_template_render(const chat_template *t, const json_t *messages, bool continues, bool answers,
                            chat_text *out, error *err)
{
	builder b = {.t = t};
	*out = (chat_text){0};
	status s = json_array_size(messages) > 0 ? chat_template_build(&b, messages, continues, answers, err)
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

void chat_text_fini(chat_text *x)
{
	free(x->text);
	free(x->trusted);
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

static status read_declared(chat_form *out, const json_t *spec, error *err)
{
	static const char *const keys[] = {"begin", "system", "user", "assistant", "generation", "stop", "trim", NULL};
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
	return read_stops(json_object_get(spec, "stop"), out->stops, err);
}

/* --- making -------------------------------------------------------------------------------- */

static status choose_form(chat_template *t, const chat_template_source *from, error *err)
{
	const chat_form *found = &chat_forms_plain;
	if (from->declared && !json_is_null(from->declared)) {
		t->declared = json_incref((json_t *)(uintptr_t)from->declared);
		status s = read_declared(&t->form, from->declared, err);
		if (s != STATUS_OK)
			error_prefix(err, "chat_template");
		return s;
	}
	if (from->program)
		TRY(chat_forms_find(from->program, &found));
	if (!found)
		return error_set(err, STATUS_UNSUPPORTED, "model",
		                 "the model's chat template is none of the published ones that can be rendered here; "
		                 "give it one as \"chat_template\": {\"user\": …} in its config.json");
	t->form = *found;
	return STATUS_OK;
}

static status expand_stops(chat_template *t)
{
	for (int i = 0, n = 0; i < CHAT_TEMPLATE_STOPS && t->form.stops[i]; i++) {
		builder b = {.t = t};
		markup(&b, t->form.stops[i]);
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
	return strdup(text ? text : "");
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

/* --- a tokenizer's files --------------------------------------------------------------------- */

/* A token's name, which is a text or an object that describes the token. */
static const char *token_name(const json_t *config, const char *key)
{
	const json_t *token = json_object_get(config, key);
	return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

/* The template, or that called "default" of several: [{"name", "template"}, …] or {name: template}. *out NULL: there is
 * none at all. */
static status program_of(const json_t *config, const char **out, error *err)
{
	const json_t *program = json_object_get(config, "chat_template");
	*out = json_string_value(program);
	if (*out || !program || json_is_null(program))
		return STATUS_OK;
	*out = json_string_value(json_object_get(program, "default"));
	for (size_t i = 0; i < json_array_size(program); i++) {
		const json_t *one = json_array_get(program, i);
		const char *name = json_string_value(json_object_get(one, "name"));
		if (name && strcmp(name, "default") == 0)
			*out = json_string_value(json_object_get(one, "template"));
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
	const char *program = tokenizer_file(files, "chat_template.jinja", &bytes);
	if (s == STATUS_OK && !program && !json_is_object(json_object_get(config, "chat_template")))
		s = program_of(tokens, &program, err);
	if (s == STATUS_OK) {
		const char *begin = token_name(tokens, "bos_token"), *end = token_name(tokens, "eos_token");
		chat_template_source from = {.declared = json_object_get(config, "chat_template"),
		                             .program = program,
		                             .begin = begin ? begin : token_name(map, "bos_token"),
		                             .end = end ? end : token_name(map, "eos_token")};
		s = chat_template_new(out, &from, err);
	}
	json_decref(tokens);
	json_decref(map);
	return s;
}
