#include "engine/text/script_counts.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unictype.h>

enum { NONE = SCRIPT_COUNTS_MAX - 1 };

static int script_number(uint32_t character)
{
	const uc_script_t *all, *found = uc_script(character);
	size_t n;
	uc_all_scripts(&all, &n);
	return found && found - all < NONE ? (int)(found - all) : NONE;
}

static const char *script_name(int number)
{
	const uc_script_t *all;
	size_t n;
	uc_all_scripts(&all, &n);
	return number < NONE ? all[number].name : "Unknown";
}

void script_counts_add(script_counts *c, uint32_t character)
{
	if (character < 128)
		c->ascii[character]++;
	else
		c->each[script_number(character)]++;
}

static void add_ascii(script_counts *c)
{
	for (uint32_t i = 0; i < 128; i++) {
		c->each[script_number(i)] += c->ascii[i];
		c->ascii[i] = 0;
	}
}

static bool precedes(const script_counts *c, int a, int b)
{
	return c->each[a] != c->each[b] ? c->each[a] > c->each[b] : strcmp(script_name(a), script_name(b)) < 0;
}

const char *script_counts_at(script_counts *c, int i, int64_t *characters)
{
	add_ascii(c);
	for (int a = 0; a < SCRIPT_COUNTS_MAX; a++) {
		int before = 0;
		for (int b = 0; b < SCRIPT_COUNTS_MAX; b++)
			before += c->each[a] > 0 && c->each[b] > 0 && precedes(c, b, a);
		if (c->each[a] > 0 && before == i) {
			*characters = c->each[a];
			return script_name(a);
		}
	}
	return NULL;
}
