/* The answer fits its grammar, so the constant texts of a call are counted and not compared. Arguments end with the
 * bracket that closes the first one. */
#include "engine/text/call_reader.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

enum { WHITE = 256 /* white space that is held back */, NAME_BYTES = 64 };

typedef enum stage { TEXT, OPENING, NAME, KEY, ARGUMENTS, CLOSING, BETWEEN, ENDED } stage;

struct call_reader {
	call_search search;
	call_search_state state;
	stage stage;
	bool calls;
	/* constant texts of a call: their bytes */
	size_t opening, key, closing;
	size_t next;    /* between calls of one array, up to the name; 0: each call has a mark */
	char separator; /* the first byte of that */
	bool short_ids;
	bool bare;             /* a call has no mark */
	size_t left;           /* bytes of a constant text still to come */
	char name[NAME_BYTES]; /* NAME: so far */
	size_t name_bytes;
	int depth; /* ARGUMENTS: open brackets */
	bool quoted, escaped;
	int started, ended; /* calls */
	char *text;         /* [given] final bytes that the last call returned, then those held back */
	size_t given, used, capacity;
	char *arguments; /* that came since the last delta */
	size_t arguments_bytes, arguments_capacity;
};

status call_reader_new(call_reader **out, const chat_call_form *form, call_choice choice, const char *const *stops,
                       int n_stops, error *err)
{
	call_reader *r = *out = memory_new(1, sizeof *r);
	char *rest = NULL;
	status s =
	    r ? call_search_init(&r->search, form, stops, choice == CALLS_REQUIRED ? 0 : n_stops, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = call_search_rest(&r->search, form, &rest);
	if (s != STATUS_OK) {
		free(r);
		*out = NULL;
		return s;
	}
	r->calls = choice != CALLS_NONE;
	r->opening = strlen(rest);
	r->key = strlen(", \"\": ") + strlen(form->key);
	r->closing = strlen("}") + strlen(form->close);
	r->next = form->array ? strlen(form->between) + strlen(CALL_JSON) : 0;
	r->separator = *form->between;
	r->short_ids = form->short_ids;
	r->bare = !form->open[strspn(form->open, " \t\r\n")];
	free(rest);
	return STATUS_OK;
}

void call_reader_free(call_reader *r)
{
	if (!r)
		return;
	free(r->text);
	free(r->arguments);
	free(r);
}

bool call_reader_called(const call_reader *r)
{
	return r->ended > 0;
}

/* --- parts of calls --------------------------------------------------------------------------------- */

/* Append {"index": …} with a name, or with the arguments so far. */
static status add_delta(call_reader *r, json_t **calls, bool name)
{
	if (!*calls)
		*calls = json_array();
	json_t *delta = json_pack("{s:i}", "index", r->started - 1);
	if (name && r->short_ids)
		json_object_set_new(delta, "short_id", json_true());
	json_t *value = name ? json_stringn(r->name, r->name_bytes) : json_stringn(r->arguments, r->arguments_bytes);
	const int failed = json_object_set_new(delta, name ? "name" : "arguments", value);
	r->arguments_bytes = 0;
	if (!failed)
		return json_array_append_new(*calls, delta) == 0 ? STATUS_OK : STATUS_NOMEM;
	json_decref(delta);
	return STATUS_NOMEM;
}

static status add_arguments(call_reader *r, json_t **calls)
{
	return r->arguments_bytes > 0 ? add_delta(r, calls, false) : STATUS_OK;
}

static void go_to(call_reader *r, stage next, size_t left)
{
	r->stage = next;
	r->left = left;
}

/* --- bytes -------------------------------------------------------------------------------------------- */

static bool is_white(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void open_call(call_reader *r)
{
	r->search.first = r->search.first && r->bare;
	r->search.n = 1; /* stops count in text only: they may be the beginning of what is between calls */
	go_to(r, OPENING, r->opening);
	if (r->opening == 0)
		go_to(r, NAME, 0);
	r->name_bytes = 0;
}

static status text_byte(call_reader *r, char byte)
{
	if (!MEMORY_ROOM(r->text, r->capacity, r->used + 1))
		return STATUS_NOMEM;
	r->text[r->used++] = byte;
	const int found = call_search_step(&r->search, &r->state, (unsigned char)byte);
	const size_t held = call_search_held(&r->search, &r->state);
	if (found == 0 && r->calls) {
		r->used -= r->search.bytes[0];
		while (r->used > r->given && is_white(r->text[r->used - 1]))
			r->used--;
		r->given = r->used;
		open_call(r);
	} else if (found > 0) {
		r->given = r->used -= r->search.bytes[found];
		go_to(r, ENDED, 0);
	} else {
		size_t final = r->used - held;
		for (int i = 0; i < WHITE && final > r->given && is_white(r->text[final - 1]); i++)
			final--;
		r->given = final > r->given ? final : r->given;
	}
	return STATUS_OK;
}

static status arguments_byte(call_reader *r, char byte, json_t **calls)
{
	if (!MEMORY_ROOM(r->arguments, r->arguments_capacity, r->arguments_bytes + 1))
		return STATUS_NOMEM;
	r->arguments[r->arguments_bytes++] = byte;
	if (r->quoted) {
		r->quoted = r->escaped || byte != '"';
		r->escaped = !r->escaped && byte == '\\';
		return STATUS_OK;
	}
	r->quoted = byte == '"';
	r->depth += (byte == '{' || byte == '[') - (byte == '}' || byte == ']');
	if (r->depth > 0)
		return STATUS_OK;
	go_to(r, CLOSING, r->closing);
	return add_arguments(r, calls);
}

static status name_byte(call_reader *r, char byte, json_t **calls)
{
	if (byte != '"') {
		if (r->name_bytes < NAME_BYTES)
			r->name[r->name_bytes++] = byte;
		return STATUS_OK;
	}
	r->started++;
	go_to(r, KEY, r->key);
	return add_delta(r, calls, true);
}

/* One byte after the mark of a call. */
static status call_byte(call_reader *r, char byte, json_t **calls)
{
	switch (r->stage) {
	case NAME:
		return name_byte(r, byte, calls);
	case ARGUMENTS:
		return arguments_byte(r, byte, calls);
	case BETWEEN:
		if (r->next > 0) {
			r->name_bytes = 0;
			go_to(r, byte == r->separator ? OPENING : ENDED, r->next - 1);
			return STATUS_OK;
		}
		if (call_search_step(&r->search, &r->state, (unsigned char)byte) == 0 && !r->search.first)
			open_call(r);
		return STATUS_OK;
	case OPENING:
	case KEY:
	case CLOSING:
		break;
	case TEXT:
	case ENDED:
		return STATUS_OK;
	}
	if (--r->left > 0)
		return STATUS_OK;
	if (r->stage == CLOSING) {
		r->ended++;
		r->state = (call_search_state){{0}};
		go_to(r, BETWEEN, 0);
	} else {
		go_to(r, r->stage == OPENING ? NAME : ARGUMENTS, 0);
	}
	return STATUS_OK;
}

static status read_bytes(call_reader *r, const char *part, size_t bytes, bool last, json_t **calls)
{
	for (size_t i = 0; i < bytes; i++)
		TRY(r->stage == TEXT ? text_byte(r, part[i]) : call_byte(r, part[i], calls));
	if (last && r->stage == TEXT)
		r->given = r->used;
	return add_arguments(r, calls);
}

status call_reader_push(call_reader *r, const char *part, size_t bytes, bool last, const char **text,
                        size_t *text_bytes, json_t **calls)
{
	if (r->given > 0)
		memmove(r->text, r->text + r->given, r->used - r->given);
	r->used -= r->given;
	r->given = 0;
	*calls = NULL;
	const status s = read_bytes(r, part, bytes, last, calls);
	if (s != STATUS_OK) {
		json_decref(*calls);
		*calls = NULL;
	}
	*text = r->text ? r->text : "";
	*text_bytes = r->given;
	return s;
}
