/* sections.h - an input of several files as one: each section begins with the byte 0x1E and a letter, and ends where
 * the next one begins. */
#ifndef TESTS_FUZZ_SECTIONS_H
#define TESTS_FUZZ_SECTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct section {
	char letter;
	const char *data;
	size_t bytes;
} section;

enum { SECTION_MARK = 0x1E, SECTIONS_MOST = 16 };

/* letters: those that are known. Returns how many sections there are; a letter that comes twice counts once. */
static inline int sections_read(section out[SECTIONS_MOST], const char *letters, const uint8_t *data, size_t size)
{
	int n = 0;
	for (size_t at = 0; at + 1 < size && n < SECTIONS_MOST; at++) {
		if (data[at] != SECTION_MARK || !data[at + 1] || !strchr(letters, data[at + 1]))
			continue;
		bool seen = false;
		for (int i = 0; i < n; i++)
			seen |= out[i].letter == (char)data[at + 1];
		if (seen)
			continue;
		if (n > 0)
			out[n - 1].bytes = (size_t)((const char *)data + at - out[n - 1].data);
		out[n++] = (section){(char)data[at + 1], (const char *)data + at + 2, size - at - 2};
	}
	return n;
}

/* NULL: there is none. */
static inline const section *sections_find(const section *all, int n, char letter)
{
	for (int i = 0; i < n; i++)
		if (all[i].letter == letter)
			return &all[i];
	return NULL;
}

#endif
