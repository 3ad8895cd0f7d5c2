#include "engine/text/sequence.h"

#include <stdlib.h>
#include <string.h>

/* Keep of two texts of n[0] and n[1] tokens what fits into `room`. */
static void shorten(size_t n[2], size_t room)
{
	size_t half = room / 2;
	if (n[0] + n[1] <= room)
		return;
	if (n[1] <= half)
		n[0] = room - n[1];
	else if (n[0] <= room - half)
		n[1] = room - n[0];
	else
		n[0] = room - half, n[1] = half;
}

status sequence_encode(const tokenizer *t, const char *text, size_t bytes, const char *second, size_t second_bytes,
                       int64_t length, int32_t *ids, int64_t *count, error *err)
{
	int32_t *tokens[2] = {NULL, NULL};
	size_t n[2] = {0, 0}, texts = second ? 2 : 1, at = 0;
	*count = 0;
	status s = tokenizer_encode(t, text, bytes, &tokens[0], &n[0], err);
	if (s == STATUS_OK && second)
		s = tokenizer_encode(t, second, second_bytes, &tokens[1], &n[1], err);
	if (s == STATUS_OK) {
		shorten(n, (size_t)length - texts);
		for (size_t i = 0; i < texts; i++) {
			memcpy(ids + at, tokens[i], n[i] * sizeof *ids);
			at += n[i];
			ids[at++] = tokenizer_end(t);
		}
		*count = (int64_t)at;
	}
	free(tokens[0]);
	free(tokens[1]);
	return s;
}
