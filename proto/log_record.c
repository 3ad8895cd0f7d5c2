/* Strings end at STRINGS_END; what follows is room for the names and the punctuation, which are short and few. */
#include "proto/log_record.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TIME_BYTES = 32, STRINGS_END = LOG_RECORD_BYTES - 640 };

typedef struct line {
	char *data; /* [LOG_RECORD_BYTES] */
	size_t used;
} line;

static void put_raw(line *l, const char *text, size_t bytes)
{
	assert(l->used + bytes <= LOG_RECORD_BYTES);
	memcpy(l->data + l->used, text, bytes);
	l->used += bytes;
}

/* Return the size of the UTF-8 character at `text`; 0: there is none. */
static size_t utf8_bytes(const unsigned char *text)
{
	static const unsigned smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	const size_t n = *text < 0x80 ? 1 : *text < 0xc0 ? 0 : *text < 0xe0 ? 2 : *text < 0xf0 ? 3 : *text < 0xf8 ? 4 : 0;
	if (n < 2)
		return n;
	unsigned code = *text & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (text[i] & 0x3f);
	}
	return code >= smallest[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? n : 0;
}

static void put_string(line *l, const char *text)
{
	put_raw(l, "\"", 1);
	for (const char *at = text; *at && l->used < STRINGS_END;) {
		const size_t n = utf8_bytes((const unsigned char *)at);
		char escape[8];
		if (*at == '"' || *at == '\\')
			put_raw(l, escape, (size_t)snprintf(escape, sizeof escape, "\\%c", *at));
		else if ((unsigned char)*at < ' ')
			put_raw(l, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", *at));
		else if (n == 0)
			put_raw(l, "?", 1);
		else
			put_raw(l, at, n);
		at += n ? n : 1;
	}
	put_raw(l, "\"", 1);
}

static void put_member(line *l, const log_member *m)
{
	char name[24], number[32];
	const int n = snprintf(name, sizeof name, "%s\"%s\":", l->used ? "," : "{", m->name);
	assert(n > 0 && (size_t)n < sizeof name);
	put_raw(l, name, (size_t)n);
	if (m->text)
		put_string(l, m->text);
	else
		put_raw(l, number, (size_t)snprintf(number, sizeof number, "%.9g", m->number));
}

static void put_object(line *l, const log_record *r, const char *time)
{
	assert(r->n_members <= LOG_RECORD_MEMBERS);
	put_member(l, &(log_member){.name = "time", .text = time});
	put_member(l, &(log_member){.name = "level", .text = r->level});
	put_member(l, &(log_member){.name = "program", .text = r->program});
	if (r->request_id && r->request_id[0])
		put_member(l, &(log_member){.name = "request_id", .text = r->request_id});
	for (int i = 0; i < r->n_members; i++)
		put_member(l, &r->members[i]);
	put_member(l, &(log_member){.name = "message", .text = r->message});
	put_raw(l, "}\n", 2);
}

size_t log_record_format(const log_record *r, bool json, char out[LOG_RECORD_BYTES])
{
	char text[TIME_BYTES];
	const time_t now = time(NULL);
	struct tm utc;
	line l = {.data = out};
	gmtime_r(&now, &utc);
	if (strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
		text[0] = '\0';
	if (json) {
		put_object(&l, r, text);
		return l.used;
	}
	const int n = snprintf(out, LOG_RECORD_BYTES, "%s %s %s: %s", text, r->level, r->program, r->message);
	l.used = n < 0 ? 0 : n < LOG_RECORD_BYTES ? (size_t)n : LOG_RECORD_BYTES - 1;
	put_raw(&l, "\n", 1);
	return l.used;
}

void log_record_write(const log_record *r, bool json)
{
	char out[LOG_RECORD_BYTES];
	const ssize_t written = write(STDERR_FILENO, out, log_record_format(r, json, out));
	(void)written; /* there is no other place to report it */
}
