/* The model "WordPiece": from left to right it takes the longest token that the rest of a word begins
 * with. After the first token only tokens count whose names begin with a prefix, which is not part of their text. A
 * word with a part without a token, or with too many characters, is unknown as a whole.
 *
 * Time is a word's bytes times the longest token's. Immutable, thread-safe. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/huggingface/pieces.h"
#include "engine/text/huggingface/reading.h"
#include "engine/text/huggingface/word_model.h"

/* --- a word ------------------------------------------------------------------------------------------------ */

static size_t count_characters(const wordpiece *w, const char *word, size_t bytes)
{
	size_t count = 0;
	for (size_t i = 0; i < bytes; i++)
		count += w->byte_level || (word[i] & 0xC0) != 0x80;
	return count;
}

static bool split(const wordpiece *w, const char *word, size_t bytes, word_room *r)
{
	for (size_t at = 0, length; at < bytes; at += length) {
		int32_t id;
		length = trie_prefix(at ? &w->inside : &w->begins, word + at, bytes - at, &id);
		if (length == 0)
			return false;
		word_room_add(r, id, (uint32_t)length);
	}
	return true;
}

static status wordpiece_encode(const word_model *m, const char *word, size_t bytes, word_room *r)
{
	const wordpiece *w = &m->wordpiece;
	if (bytes >= UINT32_MAX / 2)
		return STATUS_TOO_LARGE;
	TRY(word_room_reserve(r, bytes));
	r->count = 0;
	if ((bytes > w->most && count_characters(w, word, bytes) > w->most) || !split(w, word, bytes, r)) {
		r->count = 0;
		word_room_add(r, w->unknown, (uint32_t)bytes);
	}
	return STATUS_OK;
}

/* --- reading ------------------------------------------------------------------------------------------------- */

static status wordpiece_check(const json_t *model, error *err)
{
	static const char *const keys[] = {
	    "type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab", NULL};
	TRY(reading_keys(model, "model", keys, err));
	const json_t *most = json_object_get(model, "max_input_chars_per_word");
	if (most && (!json_is_integer(most) || json_integer_value(most) < 1))
		return reading_blame(err, "model", "has a max_input_chars_per_word that is no number from 1");
	return json_is_object(json_object_get(model, "vocab"))
	           ? STATUS_OK
	           : reading_blame(err, "model", "needs an object \"vocab\"");
}

/* Turn a name that spells bytes into them, in place. False: a character of it spells none. */
static bool unspell(const int16_t byte_of[0x144], char *text, size_t *bytes)
{
	size_t n = 0;
	for (size_t at = 0, length; at < *bytes; at += length) {
		const uint32_t c = pieces_first(text + at, &length);
		if (c >= 0x144 || byte_of[c] < 0)
			return false;
		text[n++] = (char)byte_of[c];
	}
	*bytes = n;
	return true;
}

static int compare(const void *x, const void *y)
{
	const trie_string *a = x, *b = y;
	const int order = memcmp(a->text, b->text, a->bytes < b->bytes ? a->bytes : b->bytes);
	return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* A trie of all names of the model that begin with a prefix, without it; added tokens are not among them. text: room
 * for all names; strings: for as many. */
static status wordpiece_build(trie *out, const wordpiece *w, const vocabulary *names, const bool *special,
                              const char *prefix, char *text, trie_string *strings)
{
	int16_t byte_of[0x144];
	size_t count = 0, same;
	const size_t skipped = strlen(prefix);
	memset(byte_of, 0xFF, sizeof byte_of);
	for (int i = 0; i < 256; i++)
		byte_of[pieces_spelling(i)] = (int16_t)i;
	for (int32_t id = 0; id < names->size; id++) {
		size_t bytes;
		const char *name = vocabulary_name(names, id, &bytes);
		if (!name || special[id] || vocabulary_find(names, name, bytes) != id || bytes <= skipped ||
		    memcmp(name, prefix, skipped) != 0)
			continue;
		bytes -= skipped;
		memcpy(text, name + skipped, bytes);
		if (w->byte_level && !unspell(byte_of, text, &bytes))
			continue;
		strings[count++] = (trie_string){text, (uint32_t)bytes, id, 0};
		text += bytes;
	}
	qsort(strings, count, sizeof *strings, compare);
	return trie_build(out, strings, count, &same);
}

static status wordpiece_read(word_model *m, const json_t *model, const vocabulary *names, const bool *special,
                             bool byte_level, error *err)
{
	wordpiece *w = &m->wordpiece;
	const json_t *most = json_object_get(model, "max_input_chars_per_word");
	const char *unknown, *prefix;
	*w = (wordpiece){.byte_level = byte_level, .most = most ? (size_t)json_integer_value(most) : 100};
	TRY(reading_string(model, "model", "unk_token", "[UNK]", &unknown, err));
	TRY(reading_string(model, "model", "continuing_subword_prefix", "##", &prefix, err));
	if ((w->unknown = vocabulary_find(names, unknown, strlen(unknown))) < 0)
		return reading_blame(err, "model", "has an unk_token that is not in the vocabulary");
	m->unknown = w->unknown;
	char *text = memory_new(names->used + 1, 1);
	trie_string *strings = memory_new((size_t)names->size, sizeof *strings);
	status s = text && strings ? wordpiece_build(&w->begins, w, names, special, "", text, strings) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = wordpiece_build(&w->inside, w, names, special, prefix, text, strings);
	free(text);
	free(strings);
	return error_settle(err, s);
}

static void wordpiece_fini(word_model *m)
{
	trie_fini(&m->wordpiece.begins);
	trie_fini(&m->wordpiece.inside);
}

const word_kind wordpiece_kind = {.type = "WordPiece",
                                  .check = wordpiece_check,
                                  .read = wordpiece_read,
                                  .fini = wordpiece_fini,
                                  .encode = wordpiece_encode};
