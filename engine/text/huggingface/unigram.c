/* The model "Unigram": it cuts a word into the tokens whose scores have the largest sum; if equal, the cut
 * found first, from left to right. A character that begins no token of its own length may be unknown, at a score of 10
 * below the lowest. Neighbouring unknown characters are one token, or bytes if the model has them.
 *
 * Time and memory are linear in the word. Memory is less if the best paths to neighbouring places share a beginning:
 * tokens that are certain whatever follows are returned every UNIGRAM_RUN bytes. Immutable, thread-safe. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/huggingface/pieces.h"
#include "engine/text/huggingface/reading.h"
#include "engine/text/huggingface/word_model.h"

enum { UNIGRAM_RUN = 1 << 12 };
static const double unknown_penalty = 10;

/* --- the best ways ---------------------------------------------------------------------------------- */

typedef struct node {
	double score;   /* score of the best path that ends here */
	int32_t id;     /* its last token */
	uint32_t bytes; /* bytes of its last token; 0: no path ends here */
} node;

/* A part of a word, and the best ways to its places. */
typedef struct run {
	const unigram *model;
	const char *text;
	size_t bytes;
	node *nodes;           /* [bytes + 1] */
	unsigned char *needed; /* [bytes + 1] */
} run;

static void improve(node *n, double score, int32_t id, size_t bytes)
{
	if (n->bytes == 0 || score > n->score)
		*n = (node){score, id, (uint32_t)bytes};
}

static size_t character_at(const run *r, size_t at)
{
	size_t length;
	pieces_first(r->text + at, &length);
	return length;
}

static void find_ways(const run *r, double before)
{
	const unigram *u = r->model;
	memset(r->nodes, 0, (r->bytes + 1) * sizeof *r->nodes);
	r->nodes[0].score = before;
	for (size_t at = 0, n; at < r->bytes; at += n) {
		const double score = r->nodes[at].score;
		bool single = false;
		uint32_t place = 0;
		n = character_at(r, at);
		for (size_t end = at; u->tokens.size > 0 && end < r->bytes &&
		                      (place = trie_step(&u->tokens, place, (unsigned char)r->text[end]));) {
			const int32_t id = u->tokens.units[place].value;
			end++;
			if (id < 0)
				continue;
			improve(&r->nodes[end], u->scores[id] + score, id, end - at);
			single |= end - at == n;
		}
		if (!single)
			improve(&r->nodes[at + n], u->unknown_score + score, u->unknown, n);
	}
}

/* The last place on the best paths to all places from which a token can extend past the run's end. */
static size_t find_certain(const run *r)
{
	const size_t first = r->bytes > r->model->longest ? r->bytes - r->model->longest : 0;
	size_t at = 0, open = 1;
	memset(r->needed, 0, r->bytes + 1);
	for (; at < r->bytes; at += character_at(r, at))
		open += r->needed[at] = at > first;
	for (r->needed[at = r->bytes] = 1; open > 1; at--) {
		if (!r->needed[at])
			continue;
		unsigned char *from = &r->needed[at - r->nodes[at].bytes];
		open -= *from;
		*from = 1;
	}
	while (!r->needed[at])
		at--;
	return at;
}

static status unigram_reserve(run *r, word_room *room)
{
	const size_t bytes = (r->bytes + 1) * (sizeof *r->nodes + 1);
	if (bytes > room->nodes_bytes) {
		free(room->nodes);
		room->nodes = malloc(bytes);
		room->nodes_bytes = room->nodes ? bytes : 0;
	}
	r->nodes = room->nodes;
	r->needed = room->nodes ? (unsigned char *)room->nodes + (r->bytes + 1) * sizeof *r->nodes : NULL;
	return r->nodes ? STATUS_OK : STATUS_NOMEM;
}

/* --- tokens ---------------------------------------------------------------------------------------------- */

/* A token, or a character that has none, which belongs to an unknown one before it. */
static void unigram_add(const run *r, word_room *room, size_t at, const node *n)
{
	const unigram *u = r->model;
	const bool unknown = n->id == u->unknown;
	if (unknown && u->has_bytes) {
		for (size_t i = 0; i < n->bytes; i++)
			word_room_add(room, u->bytes[(unsigned char)(r->text + at)[i]], 1);
	} else if (unknown && room->count > 0 && room->ids[room->count - 1] == n->id && n->id >= 0)
		room->lengths[room->count - 1] += n->bytes;
	else if (n->id >= 0)
		word_room_add(room, n->id, n->bytes);
}

/* The tokens of the best way to `end`: its places are marked backwards, and gone through forwards. */
static void add_way(const run *r, word_room *room, size_t end)
{
	memset(r->needed, 0, end + 1);
	for (size_t at = end; at > 0; at -= r->nodes[at].bytes)
		r->needed[at] = 1;
	for (size_t at = 0, next = 1; next <= end; next++) {
		if (!r->needed[next])
			continue;
		unigram_add(r, room, at, &r->nodes[next]);
		at = next;
	}
}

static status unigram_encode(const word_model *m, const char *word, size_t bytes, word_room *room)
{
	const unigram *u = &m->unigram;
	double score = 0;
	size_t length = UNIGRAM_RUN;
	if (bytes >= UINT32_MAX / 2)
		return STATUS_TOO_LARGE;
	TRY(word_room_reserve(room, bytes));
	room->count = 0;
	for (size_t at = 0; at < bytes;) {
		const bool last = bytes - at <= length;
		run r = {.model = u, .text = word + at, .bytes = last ? bytes - at : length};
		while (!last && (word[at + r.bytes] & 0xC0) == 0x80)
			r.bytes--;
		TRY(unigram_reserve(&r, room));
		find_ways(&r, score);
		const size_t end = last ? r.bytes : find_certain(&r);
		length = end > 0 ? UNIGRAM_RUN : 2 * length;
		score = r.nodes[end].score;
		add_way(&r, room, end);
		at += end;
	}
	return STATUS_OK;
}

/* --- reading --------------------------------------------------------------------------------------------- */

/* NaN: it has none. */
static double score_of(const json_t *entry)
{
	const json_t *score = json_array_get(entry, 1);
	return json_is_number(score) ? json_number_value(score) : NAN;
}

static status unigram_check(const json_t *model, error *err)
{
	static const char *const keys[] = {"type", "unk_id", "vocab", "byte_fallback", NULL};
	TRY(reading_keys(model, "model", keys, err));
	const json_t *unknown = json_object_get(model, "unk_id"), *list = json_object_get(model, "vocab");
	if (!json_is_array(list) || json_array_size(list) == 0)
		return reading_blame(err, "model", "needs an array \"vocab\"");
	if (unknown && !json_is_null(unknown) &&
	    (!json_is_integer(unknown) || json_integer_value(unknown) < 0 ||
	     json_integer_value(unknown) >= (json_int_t)json_array_size(list)))
		return reading_blame(err, "model", "has an unk_id that is not in the vocabulary");
	size_t i;
	json_t *entry;
	json_array_foreach(list, i, entry)
	{
		if (!json_is_string(json_array_get(entry, 0)) || !isfinite(score_of(entry)))
			return reading_blame(err, "model.vocab", "[%zu] is not a name and a score", i);
	}
	return STATUS_OK;
}

/* The scores, and the names that text may become: *count strings. */
static void read_scores(unigram *u, const json_t *list, const bool *special, trie_string *strings, size_t *count)
{
	double lowest = INFINITY;
	size_t i;
	json_t *entry;
	json_array_foreach(list, i, entry)
	{
		const json_t *name = json_array_get(entry, 0);
		const size_t bytes = json_string_length(name);
		u->scores[i] = score_of(entry);
		lowest = fmin(lowest, u->scores[i]);
		if (special[i] || bytes == 0)
			continue;
		u->longest = bytes > u->longest ? bytes : u->longest;
		strings[(*count)++] = (trie_string){json_string_value(name), (uint32_t)bytes, (int32_t)i, 0};
	}
	u->unknown_score = lowest - unknown_penalty;
}

/* The library has bytes only if it has all of those that a text needs. */
static status find_bytes(unigram *u, const vocabulary *names, error *err)
{
	for (int i = 0; i < 256; i++) {
		char name[8];
		snprintf(name, sizeof name, "<0x%02X>", i);
		u->bytes[i] = vocabulary_find(names, name, strlen(name));
		if (u->bytes[i] < 0)
			return reading_refuse(err, "model", "has byte_fallback without the token %s", name);
	}
	return STATUS_OK;
}

static status unigram_read(word_model *m, const json_t *model, const vocabulary *names, const bool *special,
                           bool byte_level, error *err)
{
	unigram *u = &m->unigram;
	const json_t *list = json_object_get(model, "vocab"), *unknown = json_object_get(model, "unk_id");
	size_t count = 0, same;
	if (byte_level)
		return reading_refuse(err, "model", "is Unigram after ByteLevel, which is not supported");
	*u = (unigram){.unknown = json_is_integer(unknown) ? (int32_t)json_integer_value(unknown) : -1};
	m->unknown = u->unknown;
	TRY(reading_bool(model, "model", "byte_fallback", false, &u->has_bytes, err));
	if (u->has_bytes)
		TRY(find_bytes(u, names, err));
	u->scores = memory_new(json_array_size(list), sizeof *u->scores);
	trie_string *strings = memory_new(json_array_size(list), sizeof *strings);
	status s = u->scores && strings ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK)
		read_scores(u, list, special, strings, &count);
	if (s == STATUS_OK)
		s = trie_build(&u->tokens, strings, count, &same);
	free(strings);
	return error_settle(err, s);
}

static void unigram_fini(word_model *m)
{
	trie_fini(&m->unigram.tokens);
	free(m->unigram.scores);
}

const word_kind unigram_kind = {.type = "Unigram",
                                .scored = true,
                                .check = unigram_check,
                                .read = unigram_read,
                                .fini = unigram_fini,
                                .encode = unigram_encode};
