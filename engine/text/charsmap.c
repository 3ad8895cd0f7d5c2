#include "engine/text/charsmap.h"

#include <string.h>

enum { RULES_AT_A_PLACE = 32 }; /* the library looks at no more */

static uint32_t read_unit(const unsigned char *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

bool charsmap_read(charsmap *out, const unsigned char *table, size_t bytes)
{
	const uint32_t size = bytes >= 4 ? read_unit(table) : 0;
	*out = (charsmap){0};
	if (size == 0 || size % 4 != 0 || size >= bytes - 4 || table[bytes - 1] != 0)
		return false;
	*out = (charsmap){.units = table + 4,
	                  .n_units = size / 4,
	                  .replacements = (const char *)table + 4 + size,
	                  .replacements_bytes = bytes - 4 - size};
	return true;
}

static uint32_t unit(const charsmap *m, uint32_t at)
{
	return read_unit(m->units + (size_t)4 * at);
}

static uint32_t children(uint32_t u)
{
	return (u >> 10) << ((u & 1 << 9) >> 6);
}

/* After `limit` texts that match no longer one is looked for. */
static charsmap_match charsmap_find(const charsmap *m, const char *text, size_t bytes, int limit)
{
	size_t length = 0;
	uint32_t made = 0, at = m->n_units ? children(unit(m, 0)) : 0;
	for (size_t i = 0, found = 0; m->n_units && i < bytes && found < (size_t)limit; i++) {
		const unsigned char byte = (unsigned char)text[i];
		at ^= byte;
		if (at >= m->n_units)
			break;
		const uint32_t u = unit(m, at);
		if ((u & (UINT32_C(1) << 31 | 0xFF)) != byte)
			break;
		at ^= children(u);
		if (!(u >> 8 & 1))
			continue;
		if (at >= m->n_units)
			break;
		made = unit(m, at) & ~(UINT32_C(1) << 31);
		length = i + 1;
		found++;
	}
	if (length == 0 || made >= m->replacements_bytes)
		return (charsmap_match){0};
	return (charsmap_match){length, strlen(m->replacements + made), m->replacements + made};
}

charsmap_match charsmap_longest(const charsmap *m, const char *text, size_t bytes)
{
	return charsmap_find(m, text, bytes, RULES_AT_A_PLACE);
}

charsmap_match charsmap_shortest(const charsmap *m, const char *text, size_t bytes)
{
	return charsmap_find(m, text, bytes, 1);
}

/* True if the node whose children are at `base` has this child. *ends: a text with a rule ends at it. */
static bool has_child(const charsmap *m, uint32_t base, unsigned char byte, bool *ends)
{
	const uint32_t at = base ^ byte;
	if (at >= m->n_units)
		return false;
	const uint32_t u = unit(m, at);
	*ends = u >> 8 & 1;
	return (u & (UINT32_C(1) << 31 | 0xFF)) == byte;
}

/* Every unit is taken for a node that is reached: what is free may look like one. */
bool charsmap_keeps_letters(const charsmap *m)
{
	bool ends = false;
	for (uint32_t at = 0; at < m->n_units; at++) {
		const uint32_t u = unit(m, at), base = at ^ children(u);
		if (at > 0 && u >> 31) /* the place of a replacement */
			continue;
		if (at > 0 && has_child(m, base, ' ', &ends))
			return false;
		for (unsigned char c = 'A'; c <= 'Z'; c++)
			if ((has_child(m, base, c, &ends) && ends) ||
			    (has_child(m, base, (unsigned char)(c | 0x20), &ends) && ends))
				return false;
	}
	return true;
}
