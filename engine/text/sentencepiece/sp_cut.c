/* The normaliser reads from left to right. Text before the space affects the text after it in two ways only. A rule or
 * a user-defined piece may span the place, and a space after a space may be dropped. Both are excluded. The second is
 * excluded by the character before the space. It is an ASCII letter, or, without rules, any character of more than a
 * byte that is not the mark of a space.
 *
 * No piece has the mark after another character, so both algorithms cut there. The mark is a piece, so the text after
 * it never becomes one unknown together with an unknown before it. */
#include "engine/text/sentencepiece/sp_model.h"

#include <string.h>

bool sp_cut_is_safe(const sp_model *m)
{
	if ((m->algorithm != SP_BPE && m->algorithm != SP_CHAR) || !m->escape_whitespaces || m->whitespace_as_suffix ||
	    trie_find(&m->vocabulary, SPACE_MARK, SPACE_MARK_BYTES) < 0)
		return false;
	for (int32_t i = 0; i < m->size; i++)
		if (space_mark_is_inside(m->pieces[i].text, m->pieces[i].bytes))
			return false;
	return charsmap_keeps_letters(&m->rules);
}

static bool ends_with_letter(const sp_model *m, const char *text, size_t bytes)
{
	const unsigned char last = bytes > 0 ? (unsigned char)text[bytes - 1] : 0;
	if (last < 0x80)
		return (last >= 'a' && last <= 'z') || (last >= 'A' && last <= 'Z');
	return m->rules.n_units == 0 && !(bytes >= SPACE_MARK_BYTES &&
	                                  memcmp(text + bytes - SPACE_MARK_BYTES, SPACE_MARK, SPACE_MARK_BYTES) == 0);
}

size_t sp_cut_find(const sp_model *m, const char *text, size_t bytes)
{
	size_t at = bytes;
	for (const char *space; (space = memrchr(text, ' ', at));) {
		at = (size_t)(space - text);
		if (at + 1 < bytes && space[1] != ' ' && ends_with_letter(m, text, at))
			return at;
		while (at > 0 && text[at - 1] == ' ')
			at--;
	}
	return 0;
}
