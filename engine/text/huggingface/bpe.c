/* The model "BPE": a word begins as its characters, and of all pairs of neighbours that may merge the one of
 * lowest rank does, the leftmost first, until none may.
 *
 * A word of up to FEW characters, as nearly all are, keeps the ranks of its neighbours in an array that is searched for
 * the least one after each merge. A longer one has its pairs in a heap, by rank and place; an entry whose pair has
 * changed meanwhile is skipped.
 *
 * A word of more than two windows is encoded part by part, so memory does not grow with it. A place ends a part if no
 * merge of the whole word crosses it. Both sides of such a place merge as if the other were not there. So the text
 * between two of them has the same tokens alone.
 *
 * The first window is merged alone. A token has at most `longest` bytes, so some such place p is in the last `longest`
 * bytes of the window, but it is not known. A candidate q is chosen before them, at the end of a token of the window.
 * The text from q to each possible p is merged. If it always begins with the token that follows q in the window, then
 * the tokens on both sides of q are two neighbours of the window. The merges of two neighbours depend on their text
 * alone. So no merge of the whole word crosses q. */
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/huggingface/pieces.h"
#include "engine/text/huggingface/reading.h"
#include "engine/text/huggingface/word_model.h"

enum {
	FEW = 48,
	END = UINT32_MAX,
	WINDOW_BYTES = 128 << 10,
	CHARACTER_BYTES = 4,
	MOST_TAIL = 16 /* times `longest`: the most between the end of a part and that of the window */
};

/* The token of a name that text may become. */
static int32_t find_plain(const bpe *b, const char *name, size_t bytes)
{
	const int32_t id = vocabulary_find(b->names, name, bytes);
	return id >= 0 && b->special[id] ? -1 : id;
}

/* --- a word's characters ---------------------------------------------------------------------------- */

/* Characters without a token, while they may be one unknown. */
typedef struct unknown_run {
	bool waits;
	uint32_t length;
} unknown_run;

static void add_unknown(const bpe *b, word_room *r, unknown_run *run, uint32_t length)
{
	if (b->unknown < 0)
		return;
	if (run->waits && !b->fuse_unknown) {
		word_room_add(r, b->unknown, run->length);
		run->length = 0;
	}
	run->length = run->waits ? run->length + length : length;
	run->waits = true;
}

static bool add_fallback(const bpe *b, word_room *r, const char *spelling, size_t bytes, uint32_t length)
{
	for (size_t i = 0; i < bytes; i++)
		if (b->fallback[(unsigned char)spelling[i]] < 0)
			return false;
	for (size_t i = 0; i < bytes; i++)
		word_room_add(r, b->fallback[(unsigned char)spelling[i]], i < length ? 1 : 0);
	return true;
}

/* The tokens of a word's characters. `length` bytes of the word are a character, whose name is `spelling`. */
static void add_character(const bpe *b, word_room *r, unknown_run *run, int32_t id, const char *spelling, size_t bytes,
                          uint32_t length)
{
	if (id >= 0) {
		if (run->waits)
			word_room_add(r, b->unknown, run->length);
		run->waits = false;
		word_room_add(r, id, length);
	} else if (!add_fallback(b, r, spelling, bytes, length)) {
		add_unknown(b, r, run, length);
	}
}

/* The token of a character with its affixes. */
static int32_t find_affixed(const bpe *b, const char *spelling, size_t bytes, bool first, bool last)
{
	char name[2 * BPE_MAX_AFFIX + 4];
	size_t n = first ? 0 : strlen(b->prefix);
	memcpy(name, b->prefix, n);
	memcpy(name + n, spelling, bytes);
	n += bytes;
	if (last) {
		memcpy(name + n, b->suffix, strlen(b->suffix));
		n += strlen(b->suffix);
	}
	return find_plain(b, name, n);
}

static void split(const bpe *b, const char *word, size_t bytes, word_room *r)
{
	unknown_run run = {0};
	r->count = 0;
	for (size_t at = 0, length = 1; at < bytes; at += length) {
		const unsigned char first = (unsigned char)word[at];
		const char *name = word + at;
		char spelling[4];
		size_t n = length = 1;
		int32_t id = b->byte[first];
		if (!b->byte_level && first >= 0x80)
			pieces_first(word + at, &length);
		const bool affixed = (at > 0 && b->prefix[0]) || (at + length == bytes && b->suffix[0]);
		if (!b->byte_level) {
			n = length;
		} else if (id < 0 || affixed) {
			n = pieces_write(pieces_spelling(first), spelling);
			name = spelling;
		}
		if (affixed)
			id = find_affixed(b, name, n, at == 0, at + length == bytes);
		else if (!b->byte_level && first >= 0x80)
			id = find_plain(b, name, n);
		add_character(b, r, &run, id, name, n, (uint32_t)length);
	}
	if (run.waits)
		word_room_add(r, b->unknown, run.length);
}

/* --- merging a few ------------------------------------------------------------------------------------ */

static void merge_few(const bpe *b, word_room *r)
{
	uint32_t rank[FEW];
	int32_t made[FEW];
	size_t n = r->count;
	for (size_t i = 0; i + 1 < n; i++)
		rank[i] = merges_find(&b->merges, r->ids[i], r->ids[i + 1], &made[i]);
	while (n > 1) {
		size_t least = 0;
		for (size_t i = 1; i + 1 < n; i++)
			least = rank[i] < rank[least] ? i : least;
		if (rank[least] == MERGES_NONE)
			break;
		r->ids[least] = made[least];
		r->lengths[least] += r->lengths[least + 1];
		n--;
		for (size_t i = least + 1; i < n; i++) {
			r->ids[i] = r->ids[i + 1];
			r->lengths[i] = r->lengths[i + 1];
		}
		for (size_t i = least + 1; i + 1 < n; i++) {
			rank[i] = rank[i + 1];
			made[i] = made[i + 1];
		}
		if (least > 0)
			rank[least - 1] = merges_find(&b->merges, r->ids[least - 1], r->ids[least], &made[least - 1]);
		if (least + 1 < n)
			rank[least] = merges_find(&b->merges, r->ids[least], r->ids[least + 1], &made[least]);
	}
	r->count = n;
}

/* --- merging many --------------------------------------------------------------------------------------- */

/* A heap of rank << 32 | place. */
typedef struct heap {
	uint64_t *items;
	size_t count;
} heap;

static void sift_down(heap *h, size_t at)
{
	const uint64_t item = h->items[at];
	for (size_t child; (child = 2 * at + 1) < h->count; at = child) {
		child += child + 1 < h->count && h->items[child + 1] < h->items[child];
		if (h->items[child] >= item)
			break;
		h->items[at] = h->items[child];
	}
	h->items[at] = item;
}

static void push(heap *h, uint64_t item)
{
	size_t at = h->count++;
	for (; at > 0 && h->items[(at - 1) / 2] > item; at = (at - 1) / 2)
		h->items[at] = h->items[(at - 1) / 2];
	h->items[at] = item;
}

static uint64_t pop(heap *h)
{
	const uint64_t least = h->items[0];
	h->items[0] = h->items[--h->count];
	if (h->count > 0)
		sift_down(h, 0);
	return least;
}

static uint32_t rank_at(const bpe *b, const word_room *r, uint32_t at, int32_t *made)
{
	const uint32_t next = r->next[at];
	return next == END ? MERGES_NONE : merges_find(&b->merges, r->ids[at], r->ids[next], made);
}

static void push_pair(const bpe *b, const word_room *r, heap *h, uint32_t at)
{
	int32_t made;
	const uint32_t rank = rank_at(b, r, at, &made);
	if (rank != MERGES_NONE)
		push(h, (uint64_t)rank << 32 | at);
}

/* Every merge ends at most three entries and adds at most two, so the heap never has more than twice the symbols. */
static status reserve_many(word_room *r)
{
	if (r->next)
		return STATUS_OK;
	r->next = malloc(r->capacity * sizeof *r->next);
	r->previous = malloc(r->capacity * sizeof *r->previous);
	r->heap = malloc(2 * r->capacity * sizeof *r->heap);
	return r->next && r->previous && r->heap ? STATUS_OK : STATUS_NOMEM;
}

static void merge_heap(const bpe *b, word_room *r, heap *h)
{
	while (h->count > 0) {
		const uint64_t least = pop(h);
		const uint32_t at = (uint32_t)least, next = r->next[at];
		int32_t made;
		if (r->ids[at] < 0 || rank_at(b, r, at, &made) != least >> 32)
			continue;
		r->ids[at] = made;
		r->lengths[at] += r->lengths[next];
		r->ids[next] = -1;
		r->next[at] = r->next[next];
		if (r->next[at] != END)
			r->previous[r->next[at]] = at;
		if (r->previous[at] != END)
			push_pair(b, r, h, r->previous[at]);
		push_pair(b, r, h, at);
	}
}

static status merge_many(const bpe *b, word_room *r)
{
	TRY(reserve_many(r));
	heap h = {.items = r->heap};
	for (uint32_t i = 0; i < r->count; i++) {
		r->next[i] = i + 1 < r->count ? i + 1 : END;
		r->previous[i] = i > 0 ? i - 1 : END;
	}
	for (uint32_t i = 0; i < r->count; i++) {
		int32_t made;
		const uint32_t rank = rank_at(b, r, i, &made);
		if (rank != MERGES_NONE)
			h.items[h.count++] = (uint64_t)rank << 32 | i;
	}
	for (size_t i = h.count / 2; i-- > 0;)
		sift_down(&h, i);
	merge_heap(b, r, &h);
	size_t n = 0;
	for (size_t i = 0; i < r->count; i++)
		if (r->ids[i] >= 0) {
			r->ids[n] = r->ids[i];
			r->lengths[n++] = r->lengths[i];
		}
	r->count = n;
	return STATUS_OK;
}

/* --- a word ------------------------------------------------------------------------------------------------ */

/* *id: the word itself is a token. */
static status find_whole(const bpe *b, const char *word, size_t bytes, word_room *r, int32_t *id)
{
	if (!b->byte_level) {
		*id = find_plain(b, word, bytes);
		return STATUS_OK;
	}
	*id = -1;
	if (bytes > TOKEN_MAX_BYTES)
		return STATUS_OK;
	if (!r->name)
		r->name = malloc(2 * TOKEN_MAX_BYTES);
	if (!r->name)
		return STATUS_NOMEM;
	size_t n = 0;
	for (size_t i = 0; i < bytes; i++)
		n += pieces_write(pieces_spelling((unsigned char)word[i]), r->name + n);
	*id = find_plain(b, r->name, n);
	return STATUS_OK;
}

static status merge_symbols(const bpe *b, const char *word, size_t bytes, word_room *r)
{
	if (bytes >= UINT32_MAX / 2)
		return STATUS_TOO_LARGE;
	TRY(word_room_reserve(r, b->byte_level ? 2 * bytes : bytes));
	split(b, word, bytes, r);
	if (r->count > FEW)
		return merge_many(b, r);
	merge_few(b, r);
	return STATUS_OK;
}

static bool begins_character(const bpe *b, const char *at)
{
	return b->byte_level || ((unsigned char)*at & 0xC0) != 0x80;
}

/* *final: no merge crosses word[at], where a token of `length` bytes begins in the window up to `end`. */
static status find_final(const bpe *b, const char *word, size_t at, size_t end, uint32_t length, word_room *r,
                         bool *final)
{
	*final = true;
	for (size_t p = end; p > end - b->longest && *final; p--) {
		if (!begins_character(b, word + p))
			continue;
		TRY(merge_symbols(b, word + at, p - at, r));
		*final = r->lengths[0] == length;
	}
	return STATUS_OK;
}

/* Reduce the tokens of word[0…end) to those of a part that can be encoded apart from the rest of the word. */
static status end_part(const bpe *b, const char *word, size_t end, word_room *r, word_room *tail, bool *final)
{
	*final = false;
	for (size_t n = 2 * b->longest, k = r->count, at = end; n <= MOST_TAIL * b->longest && !*final; n *= 2) {
		while (k > 0 && (at + n > end || !begins_character(b, word + at)))
			at -= r->lengths[--k];
		if (k == 0)
			break;
		TRY(find_final(b, word, at, end, r->lengths[k], tail, final));
		if (*final) {
			r->count = k;
			r->bytes = at;
		}
	}
	return STATUS_OK;
}

/* The tokens of a first part; of the whole word if it is short or no end of a part is found. */
static status merge_part(const bpe *b, const char *word, size_t bytes, word_room *r, word_room *tail)
{
	bool final = false;
	for (size_t end = b->window; b->parts && end < bytes / 2 && !final; end *= 2) {
		size_t n = end;
		while (!begins_character(b, word + n))
			n--;
		TRY(merge_symbols(b, word, n, r));
		TRY(end_part(b, word, n, r, tail, &final));
	}
	return final ? STATUS_OK : merge_symbols(b, word, bytes, r);
}

static status bpe_encode(const word_model *m, const char *word, size_t bytes, word_room *r)
{
	const bpe *b = &m->bpe;
	if (b->ignore_merges) { /* a rest of a word is longer than a token */
		int32_t id;
		TRY(word_room_reserve(r, 1));
		TRY(find_whole(b, word, bytes, r, &id));
		if (id >= 0) {
			r->count = 0;
			word_room_add(r, id, (uint32_t)bytes);
			return STATUS_OK;
		}
	}
	word_room tail = {0};
	status s = merge_part(b, word, bytes, r, &tail);
	word_room_fini(&tail);
	return s;
}

/* True if any merge joins a piece with a following metaspace. */
static bool crosses_metaspace(const char *left, size_t n, const char *right, size_t m)
{
	return m >= SPACE_MARK_BYTES && memcmp(right, SPACE_MARK, SPACE_MARK_BYTES) == 0 &&
	       (n < SPACE_MARK_BYTES || memcmp(left + n - SPACE_MARK_BYTES, SPACE_MARK, SPACE_MARK_BYTES) != 0);
}

/* --- reading -------------------------------------------------------------------------------------------------- */

static const char *const model_keys[] = {"type",
                                         "dropout",
                                         "unk_token",
                                         "continuing_subword_prefix",
                                         "end_of_word_suffix",
                                         "fuse_unk",
                                         "byte_fallback",
                                         "ignore_merges",
                                         "vocab",
                                         "merges",
                                         NULL};

static status read_affix(char out[BPE_MAX_AFFIX + 1], const json_t *model, const char *key, error *err)
{
	const char *affix;
	TRY(reading_string(model, "model", key, "", &affix, err));
	if (strlen(affix) > BPE_MAX_AFFIX)
		return reading_refuse(err, "model", "has a %s of more than %d bytes", key, BPE_MAX_AFFIX);
	strcpy(out, affix);
	return STATUS_OK;
}

/* With a fallback to bytes, each byte of an affix would become a token too. */
static status read_affixes(bpe *b, const json_t *model, error *err)
{
	TRY(read_affix(b->prefix, model, "continuing_subword_prefix", err));
	TRY(read_affix(b->suffix, model, "end_of_word_suffix", err));
	if ((b->prefix[0] || b->suffix[0]) && json_is_true(json_object_get(model, "byte_fallback")))
		return reading_refuse(err, "model", "has byte_fallback beside %s, which is not supported",
		                      b->prefix[0] ? "continuing_subword_prefix" : "end_of_word_suffix");
	return STATUS_OK;
}

static status bpe_check(const json_t *model, error *err)
{
	TRY(reading_keys(model, "model", model_keys, err));
	const json_t *dropout = json_object_get(model, "dropout");
	if (dropout && !json_is_null(dropout) && !(json_number_value(dropout) == 0 && json_is_number(dropout)))
		return reading_refuse(err, "model", "has a dropout, which is not supported");
	TRY(read_affixes(&(bpe){0}, model, err));
	if (!json_is_object(json_object_get(model, "vocab")) || !json_is_array(json_object_get(model, "merges")))
		return reading_blame(err, "model", "needs an object \"vocab\" and an array \"merges\"");
	return STATUS_OK;
}

/* True if the token may become a character that has no token, or a byte of one. */
static bool is_of_unknown(const bpe *b, int32_t id)
{
	bool found = id == b->unknown;
	size_t bytes;
	if (vocabulary_name(b->names, id, &bytes) && bytes == strlen("<0x00>"))
		for (int i = 0; i < 256; i++)
			found |= id == b->fallback[i];
	return found;
}

/* Bytes of a word whose characters have this name together. */
static size_t text_bytes(const bpe *b, const char *name, size_t bytes)
{
	size_t n = 0;
	for (size_t i = 0; i < bytes; i++)
		n += !b->byte_level || ((unsigned char)name[i] & 0xC0) != 0x80;
	return n;
}

/* True if every character of a word becomes tokens that depend on this character alone. */
static bool splits_each_character(const bpe *b)
{
	int known = 0;
	for (int i = 0; i < 256; i++)
		known += (b->byte_level ? b->byte[i] : b->fallback[i]) >= 0;
	const bool each = known == 256 || (known == 0 && !b->byte_level && b->unknown >= 0 && !b->fuse_unknown);
	return each && !b->prefix[0] && !b->suffix[0];
}

/* The two names of a merge: "a b", or ["a", "b"] where names may have spaces. */
static bool read_pair(const json_t *merge, const char *name[2], size_t bytes[2])
{
	if (json_is_array(merge)) {
		for (size_t i = 0; i < 2; i++) {
			name[i] = json_string_value(json_array_get(merge, i));
			bytes[i] = json_string_length(json_array_get(merge, i));
		}
		return name[0] && name[1] && json_array_size(merge) == 2;
	}
	name[0] = json_string_value(merge);
	const size_t all = json_string_length(merge);
	const char *space = name[0] ? memchr(name[0], ' ', all) : NULL;
	if (!space)
		return false;
	name[1] = space + 1;
	bytes[0] = (size_t)(space - name[0]);
	bytes[1] = all - bytes[0] - 1;
	return !memchr(name[1], ' ', bytes[1]);
}

static status read_merge(bpe *b, const json_t *merge, size_t rank, error *err)
{
	const char *name[2];
	size_t bytes[2];
	int32_t ids[2];
	char joined[2 * (2 * TOKEN_MAX_BYTES)];
	if (!read_pair(merge, name, bytes))
		return reading_blame(err, "model.merges", "[%zu] is not a pair of tokens", rank);
	if (bytes[0] + bytes[1] > sizeof joined)
		return reading_refuse(err, "model.merges", "[%zu] makes a token that is too long", rank);
	const size_t prefix = strlen(b->prefix); /* the right one begins with it, whatever its bytes are */
	if (bytes[1] < prefix)
		return reading_blame(err, "model.merges", "[%zu] has no continuing_subword_prefix on its right", rank);
	memcpy(joined, name[0], bytes[0]);
	memcpy(joined + bytes[0], name[1] + prefix, bytes[1] - prefix);
	const int32_t made = vocabulary_find(b->names, joined, bytes[0] + bytes[1] - prefix);
	for (int i = 0; i < 2; i++)
		ids[i] = vocabulary_find(b->names, name[i], bytes[i]);
	if (ids[0] < 0 || ids[1] < 0 || made < 0)
		return reading_blame(err, "model.merges", "[%zu] is of a token that is not in the vocabulary", rank);
	b->cut_at_metaspace &= !crosses_metaspace(name[0], bytes[0], name[1], bytes[1]);
	if (b->special[made])
		return STATUS_OK;
	b->parts &= bytes[0] > 0 && bytes[1] > 0 && !is_of_unknown(b, ids[0]) && !is_of_unknown(b, ids[1]);
	const size_t length = text_bytes(b, name[0], bytes[0]) + text_bytes(b, name[1], bytes[1]);
	b->longest = length > b->longest ? length : b->longest;
	merges_add(&b->merges, ids[0], ids[1], (uint32_t)rank, made);
	return STATUS_OK;
}

static void find_bytes(bpe *b, bool fallback)
{
	for (int i = 0; i < 256; i++) {
		char name[8];
		const size_t n = pieces_write(b->byte_level ? pieces_spelling(i) : (uint32_t)i, name);
		b->byte[i] = b->byte_level || i < 0x80 ? find_plain(b, name, n) : -1;
		snprintf(name, sizeof name, "<0x%02X>", i);
		b->fallback[i] = fallback ? vocabulary_find(b->names, name, strlen(name)) : -1;
	}
}

static status bpe_read(word_model *m, const json_t *model, const vocabulary *names, const bool *special,
                       bool byte_level, error *err)
{
	bpe *b = &m->bpe;
	const json_t *list = json_object_get(model, "merges");
	const char *unknown;
	bool fallback;
	*b = (bpe){.names = names, .special = special, .byte_level = byte_level, .unknown = -1};
	TRY(read_affixes(b, model, err));
	TRY(reading_bool(model, "model", "ignore_merges", false, &b->ignore_merges, err));
	TRY(reading_bool(model, "model", "fuse_unk", false, &b->fuse_unknown, err));
	TRY(reading_bool(model, "model", "byte_fallback", false, &fallback, err));
	TRY(reading_string(model, "model", "unk_token", NULL, &unknown, err));
	if (unknown && (b->unknown = vocabulary_find(names, unknown, strlen(unknown))) < 0)
		return reading_blame(err, "model", "has an unk_token that is not in the vocabulary");
	m->unknown = b->unknown;
	find_bytes(b, fallback);
	if (merges_init(&b->merges, json_array_size(list)) != STATUS_OK)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	b->cut_at_metaspace = !byte_level && !b->ignore_merges && !b->prefix[0] && !b->suffix[0] &&
	                      vocabulary_find(names, SPACE_MARK, SPACE_MARK_BYTES) >= 0;
	b->longest = CHARACTER_BYTES;
	b->parts = splits_each_character(b);
	for (size_t i = 0; i < json_array_size(list); i++)
		TRY(read_merge(b, json_array_get(list, i), i, err));
	b->window = WINDOW_BYTES + b->longest * b->longest;
	return STATUS_OK;
}

static void bpe_fini(word_model *m)
{
	merges_fini(&m->bpe.merges);
}

const word_kind bpe_kind = {
    .type = "BPE", .check = bpe_check, .read = bpe_read, .fini = bpe_fini, .encode = bpe_encode};
