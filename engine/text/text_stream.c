/* Bytes join the held ones one at a time, and utf8_next classifies them. A byte that breaks a character ends the
 * maximal subpart before it and starts a new one, so the output does not depend on how the input was cut. */
#include "engine/text/tokenizer.h"

#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/tokenizer_kind.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */
enum { REPLACEMENT_BYTES = 3 };

/* Replacement for the first n held bytes, which never become a character. */
static size_t replace(const text_stream *s, int n, char *out)
{
	size_t written = 0;
	for (int i = 0; i < (s->each_byte ? n : 1); i++, written += REPLACEMENT_BYTES)
		memcpy(out + written, replacement, REPLACEMENT_BYTES);
	return written;
}

/* Put one byte in; returns the bytes written to out. *old: how many of the held bytes belong to earlier tokens. */
static size_t text_stream_put(text_stream *s, unsigned char byte, int *old, char *out)
{
	size_t length, written = 0;
	s->held[s->n_held++] = byte;
	utf8_kind kind = utf8_next(s->held, (size_t)s->n_held, &length);
	if (kind == UTF8_INVALID && s->n_held > 1) {
		written = replace(s, s->n_held - 1, out);
		s->n_before += s->each_byte ? *old : *old == s->n_held - 1;
		*old = 0;
		s->held[0] = byte;
		s->n_held = 1;
		kind = utf8_next(s->held, 1, &length);
	}
	if (kind == UTF8_PARTIAL)
		return written;
	const void *text = kind == UTF8_WHOLE ? (const void *)s->held : replacement;
	length = kind == UTF8_WHOLE ? length : REPLACEMENT_BYTES;
	memcpy(out + written, text, length);
	s->n_held = *old = 0;
	return written + length;
}

size_t text_stream_token(text_stream *s, const tokenizer *t, int32_t id, bool flush, char *out)
{
	char bytes[TOKEN_MAX_BYTES];
	s->each_byte = t->replaces_each_byte;
	size_t n = tokenizer_text_bytes(t, id, !s->started, bytes, sizeof bytes);
	s->started |= n > 0 || (!t->drops_leading_spaces && tokenizer_token_bytes(t, id, NULL, 0) > 0);
	size_t written = text_stream_push(s, bytes, n, flush, out);
	if (s->raised && written > 0) {
		written = t->kind->raise(t, out, written);
		s->raised = false;
	}
	s->raised |= id == t->raiser && id != TOKEN_NONE;
	return written;
}

size_t text_stream_push(text_stream *s, const char *bytes, size_t n, bool flush, char *out)
{
	size_t written = 0;
	int old = s->n_held;
	s->n_before = 0;
	for (size_t i = 0; i < n; i++)
		written += text_stream_put(s, (unsigned char)bytes[i], &old, out + written);
	if (flush && s->n_held > 0) {
		written += replace(s, s->n_held, out + written);
		s->n_held = 0;
	}
	return written;
}
