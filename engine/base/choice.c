#include "engine/base/choice.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "proto/nearest.h"

typedef struct line {
	char text[sizeof((error *)0)->message];
	size_t used;
} line;

/* Append; what does not fit is cut off. */
__attribute__((format(printf, 2, 3))) static void append(line *l, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(l->text + l->used, sizeof l->text - l->used, format, args);
	va_end(args);
	l->used += strlen(l->text + l->used);
}

void choice_suggest(const char *given, const char *const *allowed, char *out, size_t size)
{
	nearest near = nearest_of(given);
	for (int i = 0; allowed[i]; i++)
		nearest_offer(&near, allowed[i]);
	*out = 0;
	if (nearest_found(&near))
		snprintf(out, size, " (did you mean \"%s\"?)", nearest_found(&near));
}

status choice_refuse(error *err, const char *field, const char *given, const char *const *allowed)
{
	enum { SHOWN = 40 };
	line l = {.text = "must be "};
	char meant[80];
	choice_suggest(given ? given : "", allowed, meant, sizeof meant);
	l.used = strlen(l.text);
	for (int i = 0; allowed[i]; i++)
		append(&l, "%s\"%s\"", i == 0 ? "" : allowed[i + 1] ? ", " : " or ", allowed[i]);
	if (given)
		append(&l, ", not \"%.*s\"", (int)utf8_valid_prefix(given, strnlen(given, SHOWN)), given);
	append(&l, "%s", meant);
	return error_set(err, STATUS_INVALID, field, "%s", l.text);
}
