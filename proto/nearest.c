/* nearest.c - optimal string alignment: insertions, deletions, substitutions and swaps of neighbours count one each. */
#include "proto/nearest.h"

#include <stdio.h>
#include <string.h>

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

size_t nearest_distance(const char *a, size_t n, const char *b, size_t m)
{
	size_t rows[3][NEAREST_BYTES];
	size_t *before = rows[0], *last = rows[1], *now = rows[2];

	for (size_t j = 0; j <= m; j++)
		last[j] = before[j] = j;
	for (size_t i = 1; i <= n; i++) {
		now[0] = i;
		for (size_t j = 1; j <= m; j++) {
			now[j] = least(least(now[j - 1], last[j]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				now[j] = least(now[j], before[j - 2] + 1);
		}
		size_t *spare = before;
		before = last;
		last = now;
		now = spare;
	}
	return last[m];
}

nearest nearest_of(const char *word)
{
	return (nearest){.word = word, .distance = NEAREST_BYTES};
}

void nearest_offer(nearest *n, const char *known)
{
	size_t bytes = strlen(n->word);

	if (bytes == 0 || bytes >= NEAREST_BYTES || !*known || strlen(known) >= NEAREST_BYTES)
		return;
	size_t d = nearest_distance(n->word, bytes, known, strlen(known));
	if (bytes >= 3 && strncmp(n->word, known, bytes) == 0)
		d = 1;
	if (d >= n->distance)
		return;
	n->distance = d;
	snprintf(n->best, sizeof(n->best), "%s", known);
}

const char *nearest_found(const nearest *n)
{
	return n->best[0] && n->distance <= 1 + strlen(n->word) / 4 ? n->best : NULL;
}
