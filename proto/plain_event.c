#include "proto/plain_event.h"

#include <string.h>

/* The words of the form. */
#define INDEX "{\"index\":"
#define TEXT ",\"text\":\""
#define TOKENS "\",\"tokens\":["
#define TIME "],\"time_ms\":"
#define END "}"

/* --- writing -------------------------------------------------------------------------- */

static char *put_text(char *at, const char *text)
{
	size_t n = strlen(text);
	memcpy(at, text, n);
	return at + n;
}

static char *put_number(char *at, uint64_t n)
{
	char digits[20];
	int i = 0;
	do
		digits[i++] = (char)('0' + n % 10);
	while (n /= 10);
	while (i > 0)
		*at++ = digits[--i];
	return at;
}

/* The characters of a JSON string. */
static char *put_escaped(char *at, const char *text, size_t bytes)
{
	static const char hex[] = "0123456789abcdef";
	for (size_t i = 0; i < bytes; i++) {
		unsigned char c = (unsigned char)text[i];
		if (c == '"' || c == '\\') {
			*at++ = '\\';
			*at++ = (char)c;
		} else if (c < ' ') {
			at = put_text(at, "\\u00");
			*at++ = hex[c >> 4];
			*at++ = hex[c & 15];
		} else {
			*at++ = (char)c;
		}
	}
	return at;
}

size_t plain_event_write(const plain_event *e, char json[PLAIN_EVENT_BYTES])
{
	uint64_t us = e->time_ms > 0 ? (uint64_t)(e->time_ms * 1000 + 0.5) : 0;
	char *at = put_number(put_text(json, INDEX), (uint64_t)e->index);
	at = put_escaped(put_text(at, TEXT), e->text, e->text_bytes);
	at = put_text(at, TOKENS);
	for (int i = 0; i < e->n_tokens; i++)
		at = put_number(i > 0 ? put_text(at, ",") : at, (uint64_t)e->tokens[i]);
	at = put_number(put_text(at, TIME), us / 1000);
	*at++ = '.';
	for (uint64_t unit = 100; unit > 0; unit /= 10)
		*at++ = (char)('0' + us / unit % 10);
	return (size_t)(put_text(at, END) - json);
}

/* --- reading -------------------------------------------------------------------------- */

typedef struct scan {
	const char *at, *end;
} scan;

static bool scan_word(scan *s, const char *word)
{
	size_t bytes = strlen(word);
	if ((size_t)(s->end - s->at) < bytes || memcmp(s->at, word, bytes) != 0)
		return false;
	s->at += bytes;
	return true;
}

static size_t scan_digits(scan *s)
{
	const char *first = s->at;
	while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
		s->at++;
	return (size_t)(s->at - first);
}

/* To the closing quote. */
static bool scan_string(scan *s)
{
	for (; s->at < s->end && *s->at != '"'; s->at++) {
		if ((unsigned char)*s->at < ' ')
			return false;
		if (*s->at == '\\' && ++s->at == s->end)
			return false;
	}
	return s->at < s->end;
}

bool plain_event_read(plain_event_view *out, const char *json, size_t bytes)
{
	scan s = {json, json + bytes};
	if (!scan_word(&s, INDEX))
		return false;
	out->index = s.at;
	out->index_bytes = scan_digits(&s);
	if (out->index_bytes == 0 || !scan_word(&s, TEXT))
		return false;
	out->text = s.at;
	if (!scan_string(&s))
		return false;
	out->text_bytes = (size_t)(s.at - out->text);
	if (!scan_word(&s, TOKENS))
		return false;
	out->n_tokens = 0;
	do
		out->n_tokens++;
	while (scan_digits(&s) > 0 && scan_word(&s, ","));
	if (s.at[-1] == '[' || s.at[-1] == ',' || !scan_word(&s, TIME) || scan_digits(&s) == 0)
		return false;
	return scan_word(&s, ".") && scan_digits(&s) > 0 && scan_word(&s, END) && s.at == s.end;
}
