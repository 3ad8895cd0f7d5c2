/* A place is safe if in each stage neither side affects the other's result. Added tokens: none of plain text spans the
 * place, absorbs the space, or depends on the letter. Normalizer: its steps change characters one by one, or as
 * Unicode's forms do; no segment of those continues with a space, and the two letters stay letters. Pre-tokenizer: it
 * divides the text there, or it does nothing there and the model cuts before the mark that replaces the space.
 *
 * Text that is added before a text is omitted if the text continues. */
#include "engine/text/huggingface/cut.h"

#include <string.h>
#include <utf8proc.h>

#include "engine/base/utf8.h"

bool cut_is_safe(const normalizer *n, const added *a, const pre_tokenizer *words, const word_model *model)
{
	space_form space = normalizer_space(n);
	/* After an added token, text would be added even before a text that continues. */
	if (space == SPACE_UNKNOWN || added_cross_spaces(a) || (normalizer_prepends(n) && a->sets[false].plain))
		return false;
	const division d = pre_tokenizer_divides(words, &space);
	return d == DIVISION_BEFORE ||
	       (d == DIVISION_NONE && space == SPACE_MARKED && model->kind == &bpe_kind && model->bpe.cut_at_metaspace);
}

static bool is_letter(const normalizer *n, uint32_t c)
{
	if (c < 0x80)
		return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
	const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
	return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO && normalizer_keeps(n, c);
}

/* True if a text ends with a letter. */
static bool ends_with_letter(const normalizer *n, const char *text, size_t bytes)
{
	size_t first = bytes, length;
	do {
		if (first == 0)
			return false;
		first--;
	} while (((unsigned char)text[first] & 0xC0) == 0x80 && bytes - first < 4);
	return utf8_next((const unsigned char *)text + first, bytes - first, &length) == UTF8_WHOLE &&
	       length == bytes - first && is_letter(n, pieces_first(text + first, &length));
}

static bool begins_with_letter(const normalizer *n, const char *text, size_t bytes)
{
	size_t length;
	return bytes > 0 && utf8_next((const unsigned char *)text, bytes, &length) == UTF8_WHOLE &&
	       is_letter(n, pieces_first(text, &length));
}

size_t cut_find(const normalizer *n, const char *text, size_t bytes)
{
	size_t at = bytes;
	for (const char *space; (space = memrchr(text, ' ', at));) {
		at = (size_t)(space - text);
		if (ends_with_letter(n, text, at) && begins_with_letter(n, space + 1, bytes - at - 1))
			return at;
		while (at > 0 &&
		       text[at - 1] == ' ') /* in a run of spaces, one follows a letter, but none is followed by one */
			at--;
	}
	return 0;
}
