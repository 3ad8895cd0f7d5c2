/* The kind "huggingface": a tokenizer.json of the library `tokenizers`.
 *
 * A text goes through: added tokens of the text as it is; the normalizer; added tokens of the normalized text; the
 * pre-tokenizer; the model, word by word. Each stage hands its parts to the following one.
 *
 * Differences from the library:
 *
 *   - Byte tokens that are not UTF-8 become U+FFFD for each maximal subpart, as in a stream. The library puts one for
 *     each byte of the whole run.
 *   - The name of a special token in a text that is not trusted is text, in Unigram too.
 *   - Special tokens that are also "normalized" are omitted from a text like all special ones. The library prints them.
 *   - A mark of capitals before a character that it does not change is omitted. The library prints it.
 *   - BPEDecoder's space after the last word is kept. The library drops it.
 *   - Characters of recent versions of Unicode may be cut or normalized differently. PCRE2 and utf8proc of Debian 12
 *     have Unicode 14 and 15; the library has 16 for patterns, and older tables for normal forms.
 *   - `truncation` and `padding` are not applied, and growth is bounded (tokenizer_growth_limit). */
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "engine/text/huggingface/added.h"
#include "engine/text/huggingface/cut.h"
#include "engine/text/huggingface/decoder.h"
#include "engine/text/huggingface/normalizer.h"
#include "engine/text/huggingface/pre_tokenizer.h"
#include "engine/text/huggingface/reading.h"
#include "engine/text/huggingface/roles.h"
#include "engine/text/huggingface/template.h"
#include "engine/text/huggingface/word_cache.h"
#include "engine/text/huggingface/word_model.h"
#include "engine/text/tokenizer_kind.h"

typedef struct huggingface {
	vocabulary names;
	added added;
	normalizer normalizer;
	pre_tokenizer words;
	word_model model;
	word_cache cache;
	decoder decoder;
	text_template wrap;
	char *bytes;     /* texts of the tokens, concatenated */
	uint32_t *first; /* [size + 1]: where a token's begins */
	bool *special;   /* [size] */
	bool cuts;       /* cut_is_safe */
} huggingface;

/* --- opening ------------------------------------------------------------------------------------- */

static status measure_vocabulary(const json_t *list, int32_t *size, size_t *bytes, error *err)
{
	const char *name;
	json_t *id;
	json_object_foreach((json_t *)(uintptr_t)list, name, id)
	{
		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= VOCABULARY_MAX_IDS)
			return reading_blame(err, "model.vocab", "has \"%.40s\" without an id below %d", name,
			                     VOCABULARY_MAX_IDS);
		if (strlen(name) > VOCABULARY_MAX_NAME)
			return reading_refuse(err, "model.vocab", "has a name of more than %d bytes, id %lld",
			                      VOCABULARY_MAX_NAME, (long long)json_integer_value(id));
		if (json_integer_value(id) >= *size)
			*size = (int32_t)json_integer_value(id) + 1;
		*bytes += strlen(name);
	}
	return STATUS_OK;
}

static status read_vocabulary(huggingface *h, const json_t *list, const json_t *more, int32_t *size, error *err)
{
	const char *name;
	json_t *id;
	size_t bytes = 0, other;
	*size = 0;
	TRY(measure_vocabulary(list, size, &bytes, err));
	TRY(added_measure(more, size, &bytes, err));
	const size_t tokens = json_object_size(list) + json_array_size(more);
	if (*size == 0)
		return reading_blame(err, "model.vocab", "is empty");
	if ((size_t)*size > VOCABULARY_GAPS + VOCABULARY_SPARSE * tokens)
		return reading_blame(err, "model.vocab", "has the id %d among %zu tokens", (int)*size - 1, tokens);
	if (bytes >= UINT32_MAX || vocabulary_init(&h->names, *size, bytes) != STATUS_OK)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	json_object_foreach((json_t *)(uintptr_t)list, name, id)
	{
		if (vocabulary_name(&h->names, (int32_t)json_integer_value(id), &other))
			return reading_blame(err, "model.vocab", "has the id of \"%.40s\" twice", name);
		vocabulary_add(&h->names, name, strlen(name), (int32_t)json_integer_value(id), true);
	}
	return STATUS_OK;
}

static status mark_specials(huggingface *h, int32_t size, error *err)
{
	h->special = memory_new((size_t)size, sizeof *h->special);
	if (!h->special)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	for (int set = 0; set < 2; set++)
		for (size_t i = 0; i < h->added.sets[set].count; i++)
			h->special[h->added.sets[set].tokens[i].id] |= h->added.sets[set].tokens[i].special;
	return STATUS_OK;
}

/* Decode all tokens, as within a text. */
static status decode_all(tokenizer *t, huggingface *h, int32_t size, error *err)
{
	size_t used = 0, capacity = 65536;
	char token[TOKEN_MAX_BYTES];
	h->first = memory_new((size_t)size + 1, sizeof *h->first);
	h->bytes = malloc(capacity); /* not NULL if all tokens are empty */
	if (!h->first || !h->bytes)
		return STATUS_NOMEM;
	for (int32_t id = 0; id < size; id++) {
		size_t bytes, count = 0;
		const char *name = vocabulary_name(&h->names, id, &bytes);
		h->first[id] = (uint32_t)used;
		if (!name || h->special[id])
			continue;
		if (!decoder_token(&h->decoder, name, bytes, false, token, &count))
			return reading_refuse(err, "model.vocab", "has a token of more than %d bytes, id %d",
			                      TOKEN_MAX_BYTES, (int)id);
		if (decoder_is_mark(&h->decoder, token, count)) {
			t->raiser = id;
			continue;
		}
		if (!MEMORY_ROOM(h->bytes, capacity, used + count))
			return STATUS_NOMEM;
		memcpy(h->bytes + used, token, count);
		used += count;
	}
	h->first[size] = (uint32_t)used;
	return STATUS_OK;
}

/* True if every byte of a text belongs to a token. Then nothing is normalized, added tokens absorb no white space, no
 * part is removed, and each byte has a token of its own. */
static bool keeps_bytes(const huggingface *h)
{
	bool keeps = h->model.kind == &bpe_kind && h->model.bpe.byte_level && h->normalizer.count == 0;
	for (int i = 0; i < h->words.count; i++)
		keeps &= !h->words.steps[i].pattern || h->words.steps[i].behavior != SPLIT_REMOVED;
	for (int i = 0; i < 256 && keeps; i++)
		keeps = h->model.bpe.byte[i] >= 0;
	for (int set = 0; set < 2; set++)
		for (size_t i = 0; i < h->added.sets[set].count; i++)
			keeps &= !h->added.sets[set].tokens[i].left && !h->added.sets[set].tokens[i].right;
	return keeps;
}

/* Most bytes of text of one token; 0: no bound is known. */
static size_t longest_text(const huggingface *h, int32_t size)
{
	size_t longest = 1;
	if (!keeps_bytes(h))
		return 0;
	for (int32_t id = 0; id < size; id++)
		longest = h->first[id + 1] - h->first[id] > longest ? h->first[id + 1] - h->first[id] : longest;
	for (int set = 0; set < 2; set++)
		for (size_t i = 0; i < h->added.sets[set].count; i++) {
			const size_t bytes = h->added.sets[set].tokens[i].bytes;
			longest = bytes > longest ? bytes : longest;
		}
	return longest;
}

static status read_parts(tokenizer *t, huggingface *h, const json_t *json, error *err)
{
	const json_t *model = json_object_get(json, "model"), *more = json_object_get(json, "added_tokens");
	json_t *names;
	/* Truncation and padding, which the library's users leave in a file, are not applied: no text is cut or filled
	 * up. */
	static const char *const keys[] = {"version", "truncation",    "padding",        "added_tokens", "normalizer",
	                                   "model",   "pre_tokenizer", "post_processor", "decoder",      NULL};
	TRY(reading_keys(json, "the file", keys, err));
	TRY(word_model_check(&h->model, model, err));
	TRY(normalizer_read(&h->normalizer, json_object_get(json, "normalizer"), err));
	TRY(pre_tokenizer_read(&h->words, json_object_get(json, "pre_tokenizer"), err));
	TRY(decoder_read(&h->decoder, json_object_get(json, "decoder"), err));
	TRY(word_model_names(&h->model, model, &names, err));
	status s = read_vocabulary(h, names, more, &t->size, err);
	json_decref(names);
	TRY(s);
	TRY(added_read(&h->added, more, &h->names, &h->normalizer, err));
	TRY(mark_specials(h, t->size, err));
	TRY(h->model.kind->read(&h->model, model, &h->names, h->special, h->words.byte_level, err));
	TRY(template_read(&h->wrap, json_object_get(json, "post_processor"), t->size, err));
	h->cuts = cut_is_safe(&h->normalizer, &h->added, &h->words, &h->model);
	s = decode_all(t, h, t->size, err);
	if (s == STATUS_OK)
		s = word_cache_init(&h->cache);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "%s", status_text(s));
	t->longest = longest_text(h, t->size);
	t->unknown = h->model.unknown;
	return roles_read(t, &h->names, &h->added, err);
}

static status huggingface_open(tokenizer *t, const json_t *json, error *err)
{
	huggingface *h = t->data = memory_new(1, sizeof *h);
	return h ? read_parts(t, h, json, err) : error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

static void huggingface_close(tokenizer *t)
{
	huggingface *h = t->data;
	if (!h)
		return;
	vocabulary_fini(&h->names);
	added_fini(&h->added);
	normalizer_fini(&h->normalizer);
	pre_tokenizer_fini(&h->words);
	word_model_fini(&h->model);
	word_cache_fini(&h->cache);
	free(h->bytes);
	free(h->first);
	free(h->special);
	free(h);
}

/* --- encoding -------------------------------------------------------------------------------------- */

typedef struct encoding {
	huggingface *h;
	const encode_options *options;
	bool mapped;
	token_list *out;
	size_t capacity;
	size_t limit, words; /* on the bytes of words; their bytes so far */
	pattern_search search;
	text_buffer normal[2];
	pre_tokenizer_run run;
	word_room room;
} encoding;

static status huggingface_reserve(encoding *e, size_t more)
{
	if (more <= e->capacity - e->out->count)
		return STATUS_OK;
	const size_t capacity = 2 * e->capacity + more + 64;
	int32_t *ids = realloc(e->out->ids, capacity * sizeof *ids);
	if (!ids)
		return STATUS_NOMEM;
	e->out->ids = ids;
	if (e->options->spans) {
		byte_range *spans = realloc(e->out->spans, capacity * sizeof *spans);
		if (!spans)
			return STATUS_NOMEM;
		e->out->spans = spans;
	}
	e->capacity = capacity;
	return STATUS_OK;
}

static status put_id(encoding *e, int32_t id, byte_range span)
{
	TRY(huggingface_reserve(e, 1));
	if (e->options->spans)
		e->out->spans[e->out->count] = span;
	e->out->ids[e->out->count++] = id;
	return STATUS_OK;
}

static status put_ids(encoding *e, const int32_t *ids, size_t count)
{
	TRY(huggingface_reserve(e, count));
	memcpy(e->out->ids + e->out->count, ids, count * sizeof *ids);
	e->out->count += count;
	return STATUS_OK;
}

/* With spans the cache is of no use: it does not know how long the tokens of a word are. */
static status encode_spans(encoding *e, const text_piece *word)
{
	size_t at = 0;
	TRY(e->h->model.kind->encode(&e->h->model, word->text, word->bytes, &e->room));
	for (size_t i = 0; i < e->room.count; i++) {
		TRY(put_id(e, e->room.ids[i], pieces_origin(word, at, e->room.lengths[i])));
		at += e->room.lengths[i];
	}
	return STATUS_OK;
}

static status encode_plain(encoding *e, const char *word, size_t bytes)
{
	huggingface *h = e->h;
	if (bytes > WORD_CACHE_MAX_BYTES) {
		TRY(h->model.kind->encode(&h->model, word, bytes, &e->room));
		return put_ids(e, e->room.ids, e->room.count);
	}
	const uint64_t hash = XXH3_64bits(word, bytes);
	const cached_word *known = word_cache_find(&h->cache, hash, word, bytes);
	if (known)
		return put_ids(e, known->ids, known->count);
	TRY(h->model.kind->encode(&h->model, word, bytes, &e->room));
	word_cache_add(&h->cache, hash, word, bytes, e->room.ids, e->room.count);
	return put_ids(e, e->room.ids, e->room.count);
}

static status encode_word(void *context, const text_piece *p)
{
	encoding *e = context;
	e->words += p->bytes;
	if (e->words > e->limit)
		return STATUS_INVALID;
	for (size_t at = 0, end = 0; at < p->bytes; at += e->room.bytes) {
		if (at == end)
			end += word_model_cut(&e->h->model, p->text + at, p->bytes - at);
		const text_piece word = pieces_part(p, at, end - at);
		e->room.bytes = word.bytes;
		TRY(e->options->spans ? encode_spans(e, &word) : encode_plain(e, word.text, word.bytes));
	}
	return STATUS_OK;
}

static status encode_normal(void *context, const text_piece *p, const added_token *token)
{
	encoding *e = context;
	return token ? put_id(e, token->id, pieces_origin(p, 0, p->bytes)) : pre_tokenizer_apply(&e->run, p, e->mapped);
}

static status encode_raw(void *context, const text_piece *p, const added_token *token)
{
	encoding *e = context;
	if (token)
		return put_id(e, token->id, pieces_origin(p, 0, p->bytes));
	text_piece normal;
	TRY(normalizer_apply(&e->h->normalizer, &e->search, p, e->normal, &normal));
	if (normal.bytes == 0)
		return STATUS_OK;
	return added_search(&e->h->added, true, &normal, e->options, &e->search, encode_normal, e);
}

/* Bytes that are not UTF-8 as U+FFFD. */
static status repair(const text_piece *p, text_buffer *out)
{
	for (size_t at = 0, length; at < p->bytes; at += length) {
		const utf8_kind kind = utf8_next((const unsigned char *)p->text + at, p->bytes - at, &length);
		TRY(kind == UTF8_WHOLE ? pieces_copy(out, p, at, length)
		                       : pieces_put(out, "\xEF\xBF\xBD", 3, pieces_origin(p, at, length)));
	}
	return STATUS_OK;
}

static status encode_text(encoding *e, const text_piece *p)
{
	/* Trusted ranges are places of the text as it was. */
	text_buffer whole = {.mapped = e->mapped || e->options->n_trusted > 0};
	text_piece valid = *p;
	status s = STATUS_OK;
	if (utf8_valid_prefix(p->text, p->bytes) < p->bytes) {
		s = repair(p, &whole);
		valid = pieces_made(&whole, p);
	}
	if (s == STATUS_OK && valid.bytes > 0)
		s = added_search(&e->h->added, false, &valid, e->options, &e->search, encode_raw, e);
	pieces_fini(&whole);
	return s;
}

static status encode_wrapped(encoding *e, const text_piece *p)
{
	const tokenizer_frame *w = &e->h->wrap.single;
	for (int i = 0; i < w->n_before && e->options->begin; i++)
		TRY(put_id(e, w->before[i], (byte_range){0, 0}));
	TRY(encode_text(e, p));
	for (int i = 0; i < w->n_behind && e->options->end; i++)
		TRY(put_id(e, w->behind[i], (byte_range){p->bytes, 0}));
	return STATUS_OK;
}

static status huggingface_encode(const tokenizer *t, const char *text, size_t bytes, const encode_options *o,
                                 token_list *out, error *err)
{
	huggingface *h = t->data;
	encoding e = {.h = h, .options = o, .out = out, .limit = tokenizer_growth_limit(bytes)};
	e.mapped = o->spans || (o->n_trusted > 0 && h->added.sets[true].count > 0);
	e.normal[0].mapped = e.normal[1].mapped = e.mapped;
	e.normal[0].limit = e.normal[1].limit = e.limit;
	e.run = (pre_tokenizer_run){
	    .steps = &h->words, .search = &e.search, .word = encode_word, .context = &e, .limit = e.limit};
	status s = huggingface_reserve(&e, bytes / 8 + 8);
	if (s == STATUS_OK)
		s = encode_wrapped(
		    &e, &(text_piece){.text = text, .bytes = bytes, .first = true, .continues = o->continues});
	pattern_search_fini(&e.search);
	pieces_fini(&e.normal[0]);
	pieces_fini(&e.normal[1]);
	pre_tokenizer_run_fini(&e.run);
	word_room_fini(&e.room);
	if (s == STATUS_INVALID)
		return tokenizer_refuse_growth(bytes, err);
	if (s == STATUS_TOO_LARGE)
		return error_set(err, s, NULL, "the text takes the tokenizer's patterns too many steps");
	return s == STATUS_OK ? s : error_set(err, s, NULL, "out of memory for the tokens of %zu bytes", bytes);
}

/* A template without an end says nothing of classifiers: models of plain text begin their texts so. */
static bool huggingface_frame(const tokenizer *t, bool pair, tokenizer_frame *out)
{
	const huggingface *h = t->data;
	*out = pair ? h->wrap.pair : h->wrap.single;
	return out->n_behind > 0;
}

static size_t huggingface_cut(const tokenizer *t, const char *text, size_t bytes)
{
	const huggingface *h = t->data;
	return h->cuts ? cut_find(&h->normalizer, text, bytes) : 0;
}

/* --- decoding ------------------------------------------------------------------------------------------ */

static size_t huggingface_token_bytes(const tokenizer *t, int32_t id, bool first, char *out, size_t size)
{
	const huggingface *h = t->data;
	char room[TOKEN_MAX_BYTES];
	const char *bytes = h->bytes + h->first[id];
	size_t count = h->first[id + 1] - h->first[id], length;
	if (first && h->decoder.first_differs && !h->special[id]) {
		const char *name = vocabulary_name(&h->names, id, &length);
		bytes = room;
		if (!name || !decoder_token(&h->decoder, name, length, true, room, &count))
			count = 0;
	}
	if (count > 0 && size > 0)
		memcpy(out, bytes, count < size ? count : size);
	return count;
}

static size_t huggingface_token_name(const tokenizer *t, int32_t id, char *out, size_t size)
{
	const huggingface *h = t->data;
	size_t bytes;
	const char *name = vocabulary_name(&h->names, id, &bytes);
	if (!name)
		return 0;
	if (size > 0)
		memcpy(out, name, bytes < size ? bytes : size);
	return bytes;
}

static size_t huggingface_raise(const tokenizer *t, char *text, size_t bytes)
{
	const huggingface *h = t->data;
	char by[4];
	size_t length;
	const size_t n = pieces_write(decoder_raise(&h->decoder, pieces_first(text, &length)), by);
	memmove(text + n, text + length, bytes - length);
	memcpy(text, by, n);
	return bytes + n - length;
}

const tokenizer_kind huggingface_kind = {
    .name = "huggingface",
    .open = huggingface_open,
    .close = huggingface_close,
    .encode = huggingface_encode,
    .cut = huggingface_cut,
    .frame = huggingface_frame,
    .token_bytes = huggingface_token_bytes,
    .token_name = huggingface_token_name,
    .raise = huggingface_raise,
};
