#include "engine/text/json_scan.h"

#include <string.h>

void json_place_pass(json_place *p, const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		const bool ends = text[i] == '\r' || (text[i] == '\n' && !p->cr);
		p->line += ends;
		p->column = ends || text[i] == '\n' ? 1 : p->column + 1;
		p->cr = text[i] == '\r';
	}
}

static bool is_one_of(char c, const char *set)
{
	return c && strchr(set, c);
}

static void end_value(json_scan *s, size_t end)
{
	s->within = s->quoted = s->escaped = false;
	s->depth = 0;
	s->cut = end;
	s->state = s->state == JSON_SCAN_TOP ? JSON_SCAN_TOP : JSON_SCAN_AFTER;
}

/* A byte of a string. */
static void pass_quoted(json_scan *s, char c, size_t at)
{
	if (c == '\n' || c == '\r')
		end_value(s, at);
	else if (s->escaped || c == '\\')
		s->escaped = !s->escaped;
	else if (c == '"') {
		s->quoted = false;
		if (s->depth == 0)
			end_value(s, at + 1);
	}
}

/* A byte of a value that is not in a string. False: it is the first byte after a number or a word. */
static bool pass_value(json_scan *s, char c, size_t at)
{
	const bool opens = c == '{' || c == '[', closes = c == '}' || c == ']';
	if (s->depth == 0 && (opens || closes || is_one_of(c, " \t\r\n,\""))) {
		end_value(s, at);
		return false;
	}
	s->quoted = c == '"';
	s->depth += opens - closes;
	if (s->depth == 0 && closes)
		end_value(s, at + 1);
	return true;
}

static void begin_value(json_scan *s, char c)
{
	s->within = true;
	s->quoted = c == '"';
	s->depth = c == '{' || c == '[';
}

/* A byte between values. */
static const char *pass_between(json_scan *s, char *c)
{
	static const char *const misplaced[] = {
	    [JSON_SCAN_TOP] = "a value is expected: values of JSON lines have nothing between them but white space",
	    [JSON_SCAN_FIRST] = "a value or ] is expected",
	    [JSON_SCAN_NEXT] = "a value is expected after the comma",
	    [JSON_SCAN_AFTER] = "a comma or ] is expected after an element of the array"};
	const bool comma = *c == ',' && s->state == JSON_SCAN_AFTER;
	const bool ends = *c == ']' && (s->state == JSON_SCAN_FIRST || s->state == JSON_SCAN_AFTER);
	const bool opens = *c == '[' && s->state == JSON_SCAN_TOP;
	if (is_one_of(*c, " \t\r\n"))
		return NULL;
	if (comma || ends || opens) {
		s->state = comma ? JSON_SCAN_NEXT : ends ? JSON_SCAN_TOP : JSON_SCAN_FIRST;
		*c = ' ';
		return NULL;
	}
	if (s->state == JSON_SCAN_AFTER || is_one_of(*c, ",:]}"))
		return misplaced[s->state];
	begin_value(s, *c);
	return NULL;
}

const char *json_scan_run(json_scan *s, char *text, size_t bytes)
{
	while (s->at < bytes) {
		const char c = text[s->at];
		if (s->quoted) {
			pass_quoted(s, c, s->at);
		} else if (!s->within || !pass_value(s, c, s->at)) {
			const char *wrong = pass_between(s, &text[s->at]);
			if (wrong)
				return wrong;
		}
		s->at++;
	}
	return NULL;
}

const char *json_scan_end(const json_scan *s)
{
	return s->within || s->state == JSON_SCAN_TOP ? NULL : "the array does not end";
}

void json_scan_drop(json_scan *s, size_t bytes)
{
	s->at -= bytes;
	s->cut = 0;
}
