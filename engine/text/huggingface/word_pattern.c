/* Let x be a letter followed by a space. No alternative below matches x together with that space, has a lookbehind, or
 * looks ahead past the character after white space. A match that begins before the space therefore ends before it, and
 * is the same if the text ends with x. If all letters and symbols are matched, x is the end of a match. The text is
 * divided there, and matching continues from the space as from the beginning of a text. (A character that is a letter
 * only in newer versions of Unicode is a symbol in older ones; the same holds for symbols.)
 *
 * If only numbers are matched, none of x, the space and the letter after it is. */
#include "engine/text/huggingface/word_pattern.h"

#include <stdbool.h>
#include <string.h>

enum { UPPER = 1, LOWER = 2, SYMBOLS = 4, NUMBERS = 8, ALL = UPPER | LOWER | SYMBOLS };

/* An alternative, and the characters that it matches anywhere; without NUMBERS it may match others too. */
typedef struct alternative {
	const char *text;
	int matches;
} alternative;

#define LETTERS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

static const alternative known[] = {
    {"'s", 0},
    {"'t", 0},
    {"'re", 0},
    {"'ve", 0},
    {"'m", 0},
    {"'ll", 0},
    {"'d", 0},
    {SUFFIX, 0},
    {"'(?:[sdmt]|ll|ve|re)", 0},
    {"'(?i:[sdmt]|ll|ve|re)", 0},
    {" ?\\p{L}+", UPPER | LOWER},
    {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", UPPER | LOWER},
    {"[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+", UPPER | LOWER},
    {"[^\\r\\n\\p{L}\\p{N}]?" LETTERS "*" SMALL "+" SUFFIX "?", LOWER},
    {"[^\\r\\n\\p{L}\\p{N}]?" LETTERS "+" SMALL "*" SUFFIX "?", UPPER},
    {"[^\\r\\n\\p{L}\\p{N}]?" LETTERS "*" SMALL "+", LOWER},
    {"[^\\r\\n\\p{L}\\p{N}]?" LETTERS "+" SMALL "*", UPPER},
    {" ?\\p{N}+", 0},
    {"\\p{N}", NUMBERS},
    {"\\p{N}+", NUMBERS},
    {"\\p{N}{1,3}", NUMBERS},
    {"[0-9]", NUMBERS},
    {"[0-9][0-9][0-9]", NUMBERS},
    {" ?[^\\s\\p{L}\\p{N}]+", SYMBOLS},
    {" ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*", SYMBOLS},
    {" ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*", SYMBOLS},
    {"\\s*[\\r\\n]+", 0},
    {"\\s*[\\r\\n]", 0},
    {"\\s+(?!\\S)", 0},
    {"\\s+", 0},
    {"\\s", 0},
};

/* The bytes of the first alternative: up to a bar outside of groups and sets. */
static size_t first_alternative(const char *text, size_t bytes)
{
	int groups = 0;
	bool set = false;
	for (size_t i = 0; i < bytes; i++) {
		if (text[i] == '\\')
			i++;
		else if (set || text[i] == '[')
			set = text[i] != ']';
		else if (text[i] == '(' || text[i] == ')')
			groups += text[i] == '(' ? 1 : -1;
		else if (text[i] == '|' && groups == 0)
			return i;
	}
	return bytes;
}

/* NULL: it is not known. */
static const alternative *word_pattern_find(const char *text, size_t bytes)
{
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strlen(known[i].text) == bytes && memcmp(known[i].text, text, bytes) == 0)
			return &known[i];
	return NULL;
}

division word_pattern_divides(const char *pattern, size_t bytes)
{
	int matches = 0;
	bool numbers = true;
	if (bytes == 0 || pattern[bytes - 1] == '|') /* an alternative that matches nothing */
		return DIVISION_UNKNOWN;
	for (size_t at = 0, n; at < bytes; at += n + 1) {
		n = first_alternative(pattern + at, bytes - at);
		const alternative *a = word_pattern_find(pattern + at, n);
		if (!a)
			return DIVISION_UNKNOWN;
		matches |= a->matches;
		numbers &= a->matches == NUMBERS;
	}
	if (numbers)
		return DIVISION_NONE;
	return (matches & ALL) == ALL ? DIVISION_BEFORE : DIVISION_UNKNOWN;
}
