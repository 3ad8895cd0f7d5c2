#include "engine/text/sentencepiece/sp_sample.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

/* The last bits of a multiplicative hash of the sentence's place, mixed (splitmix64). */
static uint32_t draw(uint64_t place)
{
	uint64_t z = (place + 1) * UINT64_C(0x9E3779B97F4A7C15);
	z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
	return (uint32_t)(z >> 32);
}

static bool is_kept(const sp_sample *s, uint32_t number)
{
	return (uint64_t)number >> (32 - s->halvings) == 0;
}

/* Keep half as large a share as before. */
static void halve(sp_sample *s)
{
	size_t count = 0, bytes = 0;
	s->halvings++;
	for (size_t i = 0; i < s->count; i++) {
		sp_sentence one = s->sentences[i];
		if (!is_kept(s, one.number))
			continue;
		memmove(s->text + bytes, s->text + one.at, one.bytes);
		one.at = (uint32_t)bytes;
		bytes += one.bytes;
		s->sentences[count++] = one;
	}
	s->count = count;
	s->bytes = bytes;
}

static status add_sentence(sp_sample *s, const char *text, size_t bytes)
{
	sp_sentence one = {.number = draw(s->seen++), .bytes = (uint32_t)bytes};
	if (!is_kept(s, one.number))
		return STATUS_OK;
	if (!MEMORY_ROOM(s->text, s->bytes_room, s->bytes + bytes) ||
	    !MEMORY_ROOM(s->sentences, s->count_room, s->count + 1))
		return STATUS_NOMEM;
	one.at = (uint32_t)s->bytes;
	memcpy(s->text + s->bytes, text, bytes);
	s->bytes += bytes;
	s->sentences[s->count++] = one;
	while (s->bytes > SP_SAMPLE_BYTES)
		halve(s);
	return STATUS_OK;
}

/* Offset at which a long line is cut: after its last space, or else between two characters. */
static size_t sp_sample_cut(const char *text, size_t bytes)
{
	size_t n = bytes;
	while (n > bytes / 2 && text[n - 1] != ' ')
		n--;
	if (n > bytes / 2)
		return n;
	for (n = bytes; n > 1 && ((unsigned char)text[n] & 0xC0) == 0x80;)
		n--;
	return n;
}

status sp_sample_add(sp_sample *s, const char *text, size_t bytes)
{
	while (bytes > 0) {
		const char *end = memchr(text, '\n', bytes);
		size_t n = end ? (size_t)(end - text) + 1 : bytes;
		if (n > SP_SAMPLE_SENTENCE)
			n = sp_sample_cut(text, SP_SAMPLE_SENTENCE);
		if (n > 1 || *text != '\n')
			TRY(add_sentence(s, text, n));
		text += n;
		bytes -= n;
	}
	return STATUS_OK;
}

bool sp_sample_next(void *context, const char **text, size_t *bytes)
{
	sp_sample *s = context;
	if (s->next == s->count)
		return false;
	*text = s->text + s->sentences[s->next].at;
	*bytes = s->sentences[s->next++].bytes;
	return true;
}

void sp_sample_fini(sp_sample *s)
{
	free(s->text);
	free(s->sentences);
	*s = (sp_sample){0};
}
