/* The tokens of a set are sorted by their bytes; at each place where one may begin, the range of those that agree with
 * the text is narrowed byte by byte, and the longest of them is taken. */
#include "engine/text/huggingface/added.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/huggingface/reading.h"
#include "engine/text/tokenizer_kind.h"

static const char path[] = "added_tokens";
static const char *const keys[] = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special", NULL};

/* --- reading ------------------------------------------------------------------------------------- */

status added_measure(const json_t *list, int32_t *size, size_t *bytes, error *err)
{
	if (list && !json_is_null(list) && !json_is_array(list))
		return reading_blame(err, path, "must be an array");
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *token = json_array_get(list, i), *id = json_object_get(token, "id");
		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= VOCABULARY_MAX_IDS)
			return reading_blame(err, path, "[%zu] needs an \"id\" below %d", i, VOCABULARY_MAX_IDS);
		if (json_string_length(json_object_get(token, "content")) == 0)
			return reading_blame(err, path, "[%zu] needs a string \"content\"", i);
		if (json_string_length(json_object_get(token, "content")) > VOCABULARY_MAX_NAME)
			return reading_refuse(err, path, "[%zu] has a name of more than %d bytes", i,
			                      VOCABULARY_MAX_NAME);
		if (json_integer_value(id) >= *size)
			*size = (int32_t)json_integer_value(id) + 1;
		*bytes += json_string_length(json_object_get(token, "content"));
	}
	return STATUS_OK;
}

static status copy_text(added_token *t, const char *name, size_t bytes, const normalizer *n, error *err)
{
	pattern_search search = {0};
	const size_t limit = tokenizer_growth_limit(bytes);
	text_buffer room[2] = {{.limit = limit}, {.limit = limit}};
	text_piece p = {.text = name, .bytes = bytes}, out = p;
	status s = t->normalized ? normalizer_apply(n, &search, &p, room, &out) : STATUS_OK;
	t->text = s == STATUS_OK ? memory_new(out.bytes + 1, 1) : NULL;
	if (t->text) {
		memcpy(t->text, out.text, out.bytes);
		t->bytes = out.bytes;
	}
	pattern_search_fini(&search);
	pieces_fini(&room[0]);
	pieces_fini(&room[1]);
	if (s == STATUS_INVALID || s == STATUS_TOO_LARGE)
		return reading_refuse(err, path, "has \"%.40s\", which the normalizer makes too long", name);
	return t->text ? STATUS_OK : error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* The id that the token must have: that of the vocabulary, or else the following one. */
static status check_id(const added_token *t, const char *name, size_t bytes, vocabulary *names, error *err)
{
	const int32_t known = vocabulary_find(names, name, bytes);
	size_t other;
	if (known == t->id)
		return STATUS_OK;
	if (known >= 0)
		return reading_blame(err, path, "has \"%.40s\" as %d, the vocabulary as %d", name, (int)t->id,
		                     (int)known);
	if (vocabulary_name(names, t->id, &other))
		return reading_blame(err, path, "has \"%.40s\" as %d, which is another token's id", name, (int)t->id);
	vocabulary_add(names, name, bytes, t->id, false);
	return STATUS_OK;
}

static status read_token(added *a, const json_t *object, vocabulary *names, const normalizer *n, error *err)
{
	const json_t *content = json_object_get(object, "content");
	const char *name = json_string_value(content);
	const size_t bytes = json_string_length(content);
	added_token t = {.id = (int32_t)json_integer_value(json_object_get(object, "id"))};
	TRY(reading_keys(object, path, keys, err));
	TRY(reading_bool(object, path, "special", false, &t.special, err));
	TRY(reading_bool(object, path, "single_word", false, &t.single_word, err));
	TRY(reading_bool(object, path, "lstrip", false, &t.left, err));
	TRY(reading_bool(object, path, "rstrip", false, &t.right, err));
	TRY(reading_bool(object, path, "normalized", !t.special, &t.normalized, err));
	TRY(check_id(&t, name, bytes, names, err));
	if (t.single_word && !a->word)
		TRY(pattern_own(&a->word, "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]", err));
	TRY(copy_text(&t, name, bytes, n, err));
	added_set *set = &a->sets[t.normalized];
	set->tokens[set->count++] = t;
	set->begins[(unsigned char)t.text[0]] |= t.bytes > 0;
	set->plain |= !t.special;
	return STATUS_OK;
}

static int compare(const void *x, const void *y)
{
	const added_token *a = x, *b = y;
	const int order = memcmp(a->text, b->text, a->bytes < b->bytes ? a->bytes : b->bytes);
	return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

status added_read(added *a, const json_t *list, vocabulary *names, const normalizer *n, error *err)
{
	for (int i = 0; i < 2; i++) {
		a->sets[i].tokens = memory_new(json_array_size(list), sizeof *a->sets[i].tokens);
		if (!a->sets[i].tokens)
			return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	}
	for (size_t i = 0; i < json_array_size(list); i++)
		TRY(read_token(a, json_array_get(list, i), names, n, err));
	for (int i = 0; i < 2; i++)
		qsort(a->sets[i].tokens, a->sets[i].count, sizeof *a->sets[i].tokens, compare);
	return STATUS_OK;
}

void added_fini(added *a)
{
	for (int i = 0; i < 2; i++) {
		for (size_t k = 0; k < a->sets[i].count; k++)
			free(a->sets[i].tokens[k].text);
		free(a->sets[i].tokens);
	}
	pattern_free(a->word);
	*a = (added){0};
}

/* --- searching -------------------------------------------------------------------------------------- */

/* The longest token that the text begins with; NULL: none. */
static const added_token *match(const added_set *set, const char *text, size_t bytes)
{
	size_t low = 0, high = set->count;
	const added_token *longest = NULL;
	for (size_t at = 0; low < high; at++) {
		if (set->tokens[low].bytes == at) {
			longest = at > 0 ? &set->tokens[low] : NULL;
			low++;
		}
		if (at == bytes)
			break;
		const unsigned char c = (unsigned char)text[at];
		size_t l = low, h = high;
		while (l < h) { /* the first whose byte is at least c */
			const size_t middle = l + (h - l) / 2;
			if ((unsigned char)set->tokens[middle].text[at] < c)
				l = middle + 1;
			else
				h = middle;
		}
		low = l;
		h = high;
		while (l < h) { /* and the first whose byte is above it */
			const size_t middle = l + (h - l) / 2;
			if ((unsigned char)set->tokens[middle].text[at] <= c)
				l = middle + 1;
			else
				h = middle;
		}
		high = l;
	}
	return longest;
}

/* A piece while it is searched. */
typedef struct hunt {
	const added *a;
	const text_piece *p;
	const encode_options *o;
	pattern_search *search;
	size_t range; /* the first trusted range that does not end before the current place */
} hunt;

static bool is_trusted(hunt *h, size_t first, size_t bytes)
{
	const byte_range where = pieces_origin(h->p, first, bytes);
	const encode_options *o = h->o;
	while (h->range < o->n_trusted && o->trusted[h->range].first + o->trusted[h->range].bytes <= where.first)
		h->range++;
	return h->range < o->n_trusted && o->trusted[h->range].first <= where.first &&
	       where.first + where.bytes <= o->trusted[h->range].first + o->trusted[h->range].bytes;
}

static status added_is_word(const hunt *h, const char *character, size_t bytes, bool *out)
{
	byte_range found;
	return pattern_find(h->a->word, h->search, character, bytes, 0, out, &found);
}

/* *out: a letter is next to the match. */
static status is_within_word(const hunt *h, size_t first, size_t end, bool *out)
{
	const text_piece *p = h->p;
	size_t length;
	*out = false;
	if (first > 0) {
		pieces_last(p->text, first, &length);
		TRY(added_is_word(h, p->text + first - length, length, out));
	}
	if (!*out && end < p->bytes) {
		pieces_first(p->text + end, &length);
		TRY(added_is_word(h, p->text + end, length, out));
	}
	return STATUS_OK;
}

/* *out: the token that matches here applies. */
static status counts(hunt *h, const added_token *t, size_t at, bool *out)
{
	bool within = false;
	*out = !t->special || is_trusted(h, at, t->bytes);
	if (*out && t->single_word)
		TRY(is_within_word(h, at, at + t->bytes, &within));
	*out = *out && !within;
	return STATUS_OK;
}

static size_t spaces_before(const text_piece *p, size_t end, size_t least)
{
	size_t length;
	while (end > least && pieces_is_space(pieces_last(p->text, end, &length)))
		end -= length;
	return end > least ? end : least;
}

static size_t spaces_behind(const text_piece *p, size_t at)
{
	size_t length;
	while (at < p->bytes && pieces_is_space(pieces_first(p->text + at, &length)))
		at += length;
	return at;
}

status added_search(const added *a, bool normalized, const text_piece *p, const encode_options *o,
                    pattern_search *search, added_each each, void *context)
{
	const added_set *set = &a->sets[normalized];
	if (set->count == 0 || (!set->plain && o->n_trusted == 0))
		return each(context, p, NULL);
	hunt h = {.a = a, .p = p, .o = o, .search = search};
	size_t done = 0;
	for (size_t at = 0; at < p->bytes;) {
		const added_token *t =
		    set->begins[(unsigned char)p->text[at]] ? match(set, p->text + at, p->bytes - at) : NULL;
		bool matches = false;
		if (t)
			TRY(counts(&h, t, at, &matches));
		const size_t end = at + (t ? t->bytes : 1);
		if (matches) {
			/* As the library does, white space that a token took is searched again, and may be taken twice.
			 */
			const size_t until = t->right ? spaces_behind(p, end) : end;
			const size_t before = t->left ? spaces_before(p, at, done) : at;
			const size_t first = before < until ? before : until;
			text_piece part = pieces_part(p, done, first > done ? first - done : 0);
			if (part.bytes > 0)
				TRY(each(context, &part, NULL));
			part = pieces_part(p, first, until - first);
			TRY(each(context, &part, t));
			done = until;
		}
		at = end;
	}
	const text_piece rest = pieces_part(p, done, p->bytes - done);
	return rest.bytes > 0 ? each(context, &rest, NULL) : STATUS_OK;
}

/* --- spaces ----------------------------------------------------------------------------------------- */

bool added_cross_spaces(const added *a)
{
	for (int i = 0; i < 2; i++)
		for (size_t k = 0; k < a->sets[i].count && a->sets[i].plain; k++) {
			const added_token *t = &a->sets[i].tokens[k];
			/* A special token is passed over in plain text, and so is what would be found within it. */
			if (space_mark_is_inside(t->text, t->bytes) ||
			    (!t->special &&
			     (t->left || t->right || (t->single_word && space_mark_at(t->text, t->bytes) > 0))))
				return true;
		}
	return false;
}
