/* Differences from PCRE2 in the syntax that occurs in tokenizers:
 *
 *   \s \w \d       Unicode properties; PCRE2's \s also has U+180E, and its \w lacks marks
 *   \h             a hexadecimal digit; in PCRE2 horizontal space
 *   \p{Han}        the script; in PCRE2 the script extensions
 *   \uHHHH         a code point
 *   (?m)           the dot matches newlines: PCRE2's (?s); ^ and $ always match at lines (PCRE2_MULTILINE)
 *   {,n}           {0,n}
 *   {n,m}+         a repeated repeat, where PCRE2 has a possessive one: refused
 *   [a[b]] [a&&b]  sets within sets: refused */
#include "engine/text/huggingface/pattern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/huggingface/reading.h"

typedef struct translation {
	const char *text, *path;
	size_t bytes, at;
	char *out;
	size_t used, capacity;
	bool in_class;
	error *err;
} translation;

static status onig_put(translation *t, const char *text, size_t bytes)
{
	if (!MEMORY_ROOM(t->out, t->capacity, t->used + bytes + 1))
		return error_set(t->err, STATUS_NOMEM, NULL, "out of memory");
	memcpy(t->out + t->used, text, bytes);
	t->used += bytes;
	t->out[t->used] = 0;
	return STATUS_OK;
}

/* Copy `bytes` bytes unchanged. */
static status onig_keep(translation *t, size_t bytes)
{
	t->at += bytes;
	return onig_put(t, t->text + t->at - bytes, bytes);
}

static status replace(translation *t, size_t bytes, const char *by)
{
	t->at += bytes;
	return onig_put(t, by, strlen(by));
}

static status onig_refuse(translation *t, const char *what)
{
	return reading_refuse(t->err, t->path, "has a pattern with %s, which is not supported", what);
}

/* Inside a set, or as a set of its own. */
static status put_set(translation *t, bool negated, const char *members)
{
	if (t->in_class && negated)
		return onig_refuse(t, "\\W or \\H within a set");
	char set[160];
	snprintf(set, sizeof set, t->in_class ? "%s%s" : negated ? "[^%s%s]" : "[%s%s]", "", members);
	return replace(t, 2, set);
}

/* \p{…}: general categories and binary properties are the same in both; any other name is a script. */
static status property(translation *t)
{
	static const char *const same[] = {"Any",       "Alphabetic",  "White_Space", "Uppercase",
	                                   "Lowercase", "Ideographic", "Emoji",       NULL};
	const char *begin = t->text + t->at + 2, *close = memchr(begin, '}', t->bytes - t->at - 2);
	char name[48], out[64];
	if (t->bytes - t->at < 4 || *begin != '{' || !close)
		return onig_refuse(t, "\\p without a name in braces");
	const bool negated = begin[1] == '^';
	const char *first = begin + 1 + negated;
	const size_t length = (size_t)(close - first);
	if (length == 0 || length >= sizeof name)
		return onig_refuse(t, "an unknown property");
	snprintf(name, sizeof name, "%.*s", (int)length, first);
	bool known = length <= 2;
	for (int i = 0; same[i] && !known; i++)
		known = strcmp(same[i], name) == 0;
	const char letter = (t->text[t->at + 1] == 'P') != negated ? 'P' : 'p';
	snprintf(out, sizeof out, "\\%c{%s%s}", letter, known ? "" : "sc:", name);
	return replace(t, (size_t)(close + 1 - (t->text + t->at)), out);
}

static status escape(translation *t)
{
	if (t->bytes - t->at < 2)
		return onig_refuse(t, "a backslash at its end");
	const char c = t->text[t->at + 1];
	switch (c) {
	case 's':
		return replace(t, 2, "\\p{White_Space}");
	case 'S':
		return replace(t, 2, "\\P{White_Space}");
	case 'd':
		return replace(t, 2, "\\p{Nd}");
	case 'D':
		return replace(t, 2, "\\P{Nd}");
	case 'w':
	case 'W':
		return put_set(t, c == 'W', "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}");
	case 'h':
	case 'H':
		return put_set(t, c == 'H', "0-9a-fA-F");
	case 'p':
	case 'P':
		return property(t);
	case 'u': {
		char out[16];
		if (t->bytes - t->at < 6 || strspn(t->text + t->at + 2, "0123456789abcdefABCDEF") < 4)
			return onig_refuse(t, "\\u without four hexadecimal digits");
		snprintf(out, sizeof out, "\\x{%.4s}", t->text + t->at + 2);
		return replace(t, 6, out);
	}
	case 'x':
		return t->bytes - t->at > 2 && t->text[t->at + 2] != '{' && t->text[t->at + 2] > '7'
		           ? onig_refuse(t, "\\x of a single byte above 7F")
		           : onig_keep(t, 2);
	default:
		/* Plain characters, and what is the same in both. */
		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
			char what[4] = {'\\', c, 0};
			if (!strchr(t->in_class ? "aefnrt" : "aefnrtAzZR", c))
				return onig_refuse(t, what);
		}
		return onig_keep(t, 2);
	}
}

/* (?…: lookarounds and groups are the same; of options i, m and x. */
static status group(translation *t)
{
	const char *rest = t->text + t->at + 2;
	const size_t left = t->bytes - t->at - 2;
	if (left > 0 && strchr(":=!>#", *rest))
		return onig_keep(t, 2);
	if (left > 1 && *rest == '<')
		return onig_keep(t, 2);
	const size_t options = left > 0 ? strspn(rest, "imx-") : 0;
	if (options == 0 || options == left || (rest[options] != ':' && rest[options] != ')'))
		return onig_refuse(t, "a group of an unknown kind");
	TRY(onig_keep(t, 2));
	for (size_t i = 0; i < options; i++)
		TRY(*(t->text + t->at) == 'm' ? replace(t, 1, "s") : onig_keep(t, 1));
	return STATUS_OK;
}

/* {n}, {n,}, {n,m}, {,m}, or a brace that is only a brace. */
static status interval(translation *t)
{
	const char *p = t->text + t->at;
	const size_t left = t->bytes - t->at;
	size_t n = 1 + strspn(p + 1, "0123456789");
	const size_t low = n - 1;
	bool comma = n < left && p[n] == ',';
	n += comma ? 1 + strspn(p + n + 1, "0123456789") : 0;
	if (n >= left || p[n] != '}' || n == 1 || (comma && low == 0 && n == 2))
		return replace(t, 1, "\\{");
	n++;
	if (n < left && p[n] == '+')
		return onig_refuse(t, "{…}+");
	if (n < left && p[n] == '?' && !comma)
		return onig_refuse(t, "{n}?");
	if (low == 0) {
		TRY(onig_put(t, "{0", 2));
		t->at++;
		n--;
	}
	return onig_keep(t, n);
}

static status in_class(translation *t)
{
	const char *p = t->text + t->at;
	const size_t left = t->bytes - t->at;
	if (*p == '\\')
		return escape(t);
	if (*p == '[' && left > 1 && p[1] == ':')
		return onig_refuse(t, "a POSIX class");
	if (*p == '[')
		return onig_refuse(t, "a set within a set");
	if (*p == '&' && left > 1 && p[1] == '&')
		return onig_refuse(t, "an intersection of sets");
	if (*p == ']')
		t->in_class = false;
	return onig_keep(t, 1);
}

static status step(translation *t)
{
	const char c = t->text[t->at];
	if (t->in_class)
		return in_class(t);
	if (c == '\\')
		return escape(t);
	if (c == '[') {
		size_t n = 1;
		n += t->at + n < t->bytes && t->text[t->at + n] == '^';
		n += t->at + n < t->bytes && t->text[t->at + n] == ']';
		t->in_class = true;
		return onig_keep(t, n);
	}
	if (c == '{')
		return interval(t);
	if (c == '(' && t->at + 1 < t->bytes && t->text[t->at + 1] == '?')
		return group(t);
	if (c == '(' && t->at + 1 < t->bytes && t->text[t->at + 1] == '*')
		return onig_refuse(t, "(*");
	return onig_keep(t, 1);
}

status onig_translate(char **out, const char *text, size_t bytes, const char *path, error *err)
{
	translation t = {.text = text, .path = path, .bytes = bytes, .err = err};
	*out = NULL;
	status s = onig_put(&t, "", 0);
	while (s == STATUS_OK && t.at < bytes)
		s = step(&t);
	if (s == STATUS_OK)
		*out = t.out;
	else
		free(t.out);
	return s;
}
