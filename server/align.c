/* E. Myers, "An O(ND) difference algorithm" (1986): with d tokens left out or put in, V_d[k] is how far the first text
 * can be followed on the diagonal k = i - j. All V_d are kept, V_d from d² on, so that the way back can be read. */
#include "server/align.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_MAX_EDITS = 512 };

typedef struct align_token {
	const char *text;
	size_t bytes;
	json_int_t id;
} align_token;

typedef struct align_texts {
	align_token *first, *second;
	size_t n, m;     /* tokens that are left to compare */
	size_t offset;   /* position of both tokens in their arrays */
	size_t *partner; /* from the offset on */
} align_texts;

static align_token *align_read(const json_t *tokens)
{
	size_t n = json_array_size(tokens);
	align_token *out = calloc(n + 1, sizeof *out);
	for (size_t i = 0; out && i < n; i++) {
		const json_t *token = json_array_get(tokens, i), *text = json_object_get(token, "text");
		out[i].text = json_is_string(text) ? json_string_value(text) : "";
		out[i].bytes = json_string_length(text);
		out[i].id = out[i].bytes > 0 ? 0 : json_integer_value(json_object_get(token, "id"));
	}
	return out;
}

static bool align_same(const align_texts *t, size_t i, size_t j)
{
	const align_token *a = &t->first[t->offset + i], *b = &t->second[t->offset + j];
	return a->bytes == b->bytes && a->id == b->id && memcmp(a->text, b->text, a->bytes) == 0;
}

static void align_ends(align_texts *t)
{
	while (t->n > 0 && t->m > 0 && align_same(t, 0, 0)) {
		*t->partner++ = t->offset++;
		t->n--;
		t->m--;
	}
	while (t->n > 0 && t->m > 0 && align_same(t, t->n - 1, t->m - 1)) {
		t->partner[--t->n] = t->offset + t->m - 1;
		t->m--;
	}
}

/* True if the path to diagonal k with d edits comes from the diagonal above, k + 1. before: V_(d-1), by diagonal. */
static bool align_from_above(const int32_t *before, int32_t d, int32_t k)
{
	return k == -d || (k != d && before[k - 1] < before[k + 1]);
}

/* Fills V_0, V_1, … until the ends of both texts are reached. The number of edits; -1: more than `most`. */
static int32_t align_follow(const align_texts *t, int32_t *v, int32_t most)
{
	const int32_t n = (int32_t)t->n, m = (int32_t)t->m;
	for (int32_t d = 0; d <= most; d++) {
		int32_t *now = v + (size_t)d * (size_t)d + d;
		const int32_t *before = d > 0 ? now - 2 * d : NULL; /* (d-1)² + (d-1) = d² + d - 2d */
		for (int32_t k = -d; k <= d; k += 2) {
			int32_t i = d == 0 ? 0 : align_from_above(before, d, k) ? before[k + 1] : before[k - 1] + 1;
			while (i < n && i - k < m && align_same(t, (size_t)i, (size_t)(i - k)))
				i++;
			now[k] = i;
			if (i >= n && i - k >= m)
				return d;
		}
	}
	return -1;
}

static void align_back(align_texts *t, const int32_t *v, int32_t edits)
{
	int32_t i = (int32_t)t->n, j = (int32_t)t->m;
	for (int32_t d = edits; d >= 0; d--) {
		const int32_t *before = v + (size_t)d * (size_t)d - d, k = i - j;
		const bool above = d > 0 && align_from_above(before, d, k);
		const int32_t from = d == 0  ? 0
		                     : above ? before[k + 1]
		                             : before[k - 1];               /* the first's, before the edit */
		const int32_t begin = d == 0 ? 0 : above ? from : from + 1; /* and after it */
		for (; i > begin; i--, j--)
			t->partner[i - 1] = t->offset + (size_t)j - 1;
		j = above ? j - 1 : j;
		i = from;
	}
}

static bool align_between(align_texts *t)
{
	const size_t edits = t->n + t->m, most = edits < ALIGN_MAX_EDITS ? edits : ALIGN_MAX_EDITS;
	int32_t *v = t->n < INT32_MAX / 4 && t->m < INT32_MAX / 4 ? malloc((most + 1) * (most + 1) * sizeof *v) : NULL;
	if (!v)
		return false;
	const int32_t found = align_follow(t, v, (int32_t)most);
	if (found >= 0)
		align_back(t, v, found);
	free(v);
	return true;
}

bool align_tokens(const json_t *first, const json_t *second, size_t *partner)
{
	align_texts t = {
	    align_read(first), align_read(second), json_array_size(first), json_array_size(second), 0, partner};
	bool whole = t.first && t.second;
	for (size_t i = 0; i < t.n; i++)
		partner[i] = SIZE_MAX;
	if (whole) {
		align_ends(&t);
		whole = t.n == 0 || t.m == 0 || align_between(&t);
	}
	free(t.first);
	free(t.second);
	return whole;
}
