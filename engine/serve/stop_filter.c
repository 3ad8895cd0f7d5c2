/* stop_filter.c - compares every new end of the text with every stop sequence. With at most four short sequences and a
 * few bytes per token, an automaton (Aho-Corasick) would only be longer. */
#include "engine/serve/stop_filter.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

status stop_filter_init(stop_filter *f, const char *const *stops, int count, error *err)
{
	*f = (stop_filter){.count = 0};
	if (count < 0 || count > SCHEDULER_MAX_STOPS)
		return error_set(err, STATUS_INVALID, "stop", "at most %d stop sequences", SCHEDULER_MAX_STOPS);
	for (int i = 0; i < count; i++) {
		f->length[i] = strlen(stops[i]);
		if (f->length[i] < 1 || f->length[i] > SCHEDULER_MAX_STOP_BYTES)
			return error_set(err, STATUS_INVALID, "stop", "a stop sequence has 1 to %d bytes",
			                 SCHEDULER_MAX_STOP_BYTES);
		memcpy(f->stops[i], stops[i], f->length[i]);
	}
	f->count = count;
	return STATUS_OK;
}

void stop_filter_fini(stop_filter *f)
{
	free(f->text);
	f->text = NULL;
}

static status stop_filter_append(stop_filter *f, const char *text, size_t bytes)
{
	if (f->given > 0)
		memmove(f->text, f->text + f->given, f->used - f->given);
	f->used -= f->given;
	f->given = 0;
	if (!MEMORY_ROOM(f->text, f->capacity, f->used + bytes))
		return STATUS_NOMEM;
	memcpy(f->text + f->used, text, bytes);
	f->used += bytes;
	return STATUS_OK;
}

/* Length of the longest stop sequence that ends at `end`; 0: none. */
static size_t stop_ending_at(const stop_filter *f, size_t end)
{
	size_t longest = 0;
	for (int i = 0; i < f->count; i++) {
		size_t n = f->length[i];
		if (n > longest && n <= end && memcmp(f->text + end - n, f->stops[i], n) == 0)
			longest = n;
	}
	return longest;
}

/* Length of the longest prefix of a stop sequence with which the text ends. */
static size_t stop_beginning(const stop_filter *f)
{
	size_t longest = 0;
	for (int i = 0; i < f->count; i++) {
		size_t n = f->length[i] - 1 < f->used ? f->length[i] - 1 : f->used;
		while (n > longest && memcmp(f->text + f->used - n, f->stops[i], n) != 0)
			n--;
		if (n > longest)
			longest = n;
	}
	return longest;
}

status stop_filter_push(stop_filter *f, const char *text, size_t bytes, bool flush, const char **out, size_t *out_bytes)
{
	*out = "";
	*out_bytes = 0;
	if (f->found || (bytes == 0 && f->given == f->used))
		return STATUS_OK;
	size_t old = f->used - f->given;
	TRY(stop_filter_append(f, text, bytes));
	for (size_t end = old + 1; end <= f->used && !f->found; end++) {
		size_t n = stop_ending_at(f, end);
		if (n > 0) {
			f->found = true;
			f->used = f->given = end - n;
		}
	}
	if (!f->found)
		f->given = flush ? f->used : f->used - stop_beginning(f);
	*out = f->text;
	*out_bytes = f->given;
	return STATUS_OK;
}
