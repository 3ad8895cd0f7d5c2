/* The kind of tokenizer for SentencePiece models.
 *
 * Encoding and decoding from the model's file are implemented here. The library builds a message with two strings for
 * each piece, which takes longer than finding the pieces. It also uses several dozen bytes of memory for each byte of a
 * text. Ids equal the library's, up to the rounding of scores. The library trains (sp_train.cc).
 *
 * Control pieces, T5's extra ids and tokens added after the pieces are special: only trusted text can become them. */
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/sentencepiece/sp_model.h"
#include "engine/text/sentencepiece/sp_normalizer.h"
#include "engine/text/sentencepiece/sp_pieces.h"
#include "engine/text/sentencepiece/sp_roles.h"
#include "engine/text/tokenizer_kind.h"

typedef struct sentencepiece {
	sp_model model;
	sp_roles roles;
	bool cuts; /* sp_cut_is_safe */
} sentencepiece;

static const sentencepiece *of(const tokenizer *t)
{
	return t->data;
}

/* --- opening ---------------------------------------------------------------------------------- */

const char *const sentencepiece_files[] = {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", NULL};

bool sentencepiece_recognise(const char *data, size_t bytes)
{
	return sp_model_recognise(data, bytes);
}

static status sentencepiece_open(tokenizer *t, const json_t *json, error *err)
{
	const char *file = NULL;
	size_t bytes = 0;
	if (json)
		return error_set(err, STATUS_INVALID, "type", "a SentencePiece model has no tokenizer.json");
	for (int i = 0; !file && sentencepiece_files[i]; i++)
		file = tokenizer_file(t, sentencepiece_files[i], &bytes);
	sentencepiece *s = t->data = memory_new(1, sizeof *s);
	if (!s || !file)
		return STATUS_NOMEM;
	TRY(sp_model_read(&s->model, file, bytes, err));
	s->cuts = sp_cut_is_safe(&s->model);
	TRY(sp_roles_read(&s->roles, &s->model, t, err));
	t->size = s->model.size + s->roles.n_added;
	t->begin = s->roles.begin;
	t->end = s->roles.end;
	t->pad = s->roles.pad;
	t->unknown = s->roles.unknown;
	t->mask = s->roles.mask;
	t->drops_leading_spaces = s->model.remove_extra_whitespaces;
	t->replaces_each_byte = true;
	return STATUS_OK;
}

static void sentencepiece_close(tokenizer *t)
{
	sentencepiece *s = t->data;
	if (!s)
		return;
	sp_roles_fini(&s->roles);
	sp_model_fini(&s->model);
	free(s);
}

/* --- encoding --------------------------------------------------------------------------------- */

/* The tokens of a text so far. */
typedef struct sink {
	const sp_model *model;
	token_list *out;
	size_t room;
	size_t budget; /* bytes of normalised text that may still be made */
	bool spans, after_unknown;
} sink;

static status sink_add(sink *k, int32_t id, size_t first, size_t end)
{
	token_list *out = k->out;
	if (out->count == k->room) {
		size_t room = k->room ? 2 * k->room : 64;
		int32_t *ids = realloc(out->ids, room * sizeof *ids);
		if (!ids)
			return STATUS_NOMEM;
		out->ids = ids;
		byte_range *spans = k->spans ? realloc(out->spans, room * sizeof *spans) : NULL;
		if (k->spans && !spans)
			return STATUS_NOMEM;
		out->spans = spans;
		k->room = room;
	}
	if (k->spans)
		out->spans[out->count] = (byte_range){first, end - first};
	out->ids[out->count++] = id;
	return STATUS_OK;
}

/* A piece of normalised text. Characters without a piece become their bytes, of which the last has the span, or else
 * one unknown token for all in a row. */
static status sink_add_piece(sink *k, const char *text, sp_cut cut, size_t first, size_t end)
{
	const sp_model *m = k->model;
	bool unknown = cut.id == m->unknown, joined = unknown && k->after_unknown;
	k->after_unknown = unknown;
	if (unknown && m->byte_fallback) {
		for (size_t i = 0; i < cut.bytes; i++)
			TRY(sink_add(k, m->bytes[(unsigned char)text[i]], first, i + 1 < cut.bytes ? first : end));
		return STATUS_OK;
	}
	if (!joined)
		return sink_add(k, cut.id, first, end);
	if (k->spans) {
		byte_range *last = &k->out->spans[k->out->count - 1];
		last->bytes = end - last->first;
	}
	return STATUS_OK;
}

/* Move what has been cut from the normaliser to the sink. */
static status sink_take(sink *k, sp_normalizer *n, const sp_pieces *p, size_t base)
{
	size_t at = 0;
	for (size_t i = 0; i < p->count; i++) {
		size_t next = at + p->cuts[i].bytes;
		TRY(sink_add_piece(k, n->out + at, p->cuts[i], k->spans ? base + n->origin[at] : 0,
		                   k->spans ? base + n->origin[next] : 0));
		at = next;
	}
	sp_normalizer_drop(n, at);
	return STATUS_OK;
}

/* Encode text without specials; base: its offset in the whole text. */
static status encode_plain(sink *k, const char *text, size_t bytes, size_t base, bool continues)
{
	sp_normalizer n;
	sp_pieces p = {.model = k->model};
	status s = STATUS_OK;
	size_t goal = SP_RUN;
	sp_normalizer_init(&n, k->model, text, bytes, k->spans, continues, &k->budget);
	k->after_unknown = false;
	for (bool done = false; !done && s == STATUS_OK;) {
		s = sp_normalizer_fill(&n, goal);
		done = n.ended;
		if (s == STATUS_OK)
			s = sp_pieces_cut(&p, n.out, n.settled, n.ended);
		size_t before = n.count;
		if (s == STATUS_OK)
			s = sink_take(k, &n, &p, base);
		goal = n.count < before ? n.count + SP_RUN : 2 * before;
	}
	sp_pieces_fini(&p);
	sp_normalizer_fini(&n);
	return s;
}

/* The end of the next special token's name in [from, bytes), all of it trusted; *name: where it begins. bytes: none. */
static size_t next_special(const sentencepiece *s, const char *text, size_t from, size_t bytes, const encode_options *o,
                           size_t *name, int32_t *id)
{
	for (size_t i = 0; i < o->n_trusted; i++) {
		size_t end = o->trusted[i].first + o->trusted[i].bytes;
		end = end < bytes ? end : bytes;
		for (size_t at = o->trusted[i].first > from ? o->trusted[i].first : from; at < end; at++) {
			size_t n = trie_prefix(&s->roles.specials, text + at, end - at, id);
			*name = at;
			if (n > 0)
				return at + n;
		}
	}
	*name = bytes;
	return bytes;
}

static status encode_all(sink *k, const sentencepiece *s, const char *text, size_t bytes, const encode_options *o)
{
	const sp_roles *r = &s->roles;
	if (o->begin && r->wraps_begin && r->begin >= 0)
		TRY(sink_add(k, r->begin, 0, 0));
	for (size_t at = 0, name, end; at < bytes; at = end) {
		int32_t id;
		end = next_special(s, text, at, bytes, o, &name, &id);
		if (name > at)
			TRY(encode_plain(k, text + at, name - at, at, o->continues && at == 0));
		if (name < bytes)
			TRY(sink_add(k, id, name, end));
	}
	return o->end && r->wraps_end && r->end >= 0 ? sink_add(k, r->end, bytes, bytes) : STATUS_OK;
}

static status sentencepiece_encode(const tokenizer *t, const char *text, size_t bytes, const encode_options *o,
                                   token_list *out, error *err)
{
	sink k = {.model = &of(t)->model, .out = out, .budget = tokenizer_growth_limit(bytes), .spans = o->spans};
	status s = encode_all(&k, of(t), text, bytes, o);
	if (s == STATUS_OK && !out->ids && !(out->ids = memory_new(1, sizeof *out->ids)))
		s = STATUS_NOMEM;
	if (s == STATUS_INVALID)
		return tokenizer_refuse_growth(bytes, err);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "out of memory for the tokens of %zu bytes", bytes);
}

static size_t sentencepiece_cut(const tokenizer *t, const char *text, size_t bytes)
{
	return of(t)->cuts ? sp_cut_find(&of(t)->model, text, bytes) : 0;
}

/* --- decoding ---------------------------------------------------------------------------------- */

static size_t sentencepiece_put(const char *text, size_t bytes, char *out, size_t size)
{
	memcpy(out, text, bytes < size ? bytes : size);
	return bytes;
}

/* A piece's text with its marks of spaces as spaces. */
static size_t put_piece(const char *text, size_t bytes, char *out, size_t size)
{
	size_t n = 0;
	for (size_t i = 0; i < bytes; n++) {
		bool space = bytes - i >= SPACE_MARK_BYTES && memcmp(text + i, SPACE_MARK, SPACE_MARK_BYTES) == 0;
		if (n < size)
			out[n] = space ? ' ' : text[i];
		i += space ? SPACE_MARK_BYTES : 1;
	}
	return n;
}

static size_t sentencepiece_token_bytes(const tokenizer *t, int32_t id, bool first, char *out, size_t size)
{
	const sp_model *m = &of(t)->model;
	if (id >= m->size || m->pieces[id].type == SP_CONTROL)
		return 0;
	const sp_piece *p = &m->pieces[id];
	if (p->type == SP_UNKNOWN)
		return sentencepiece_put(m->unknown_surface, m->unknown_surface_bytes, out, size);
	if (p->type == SP_BYTE) {
		unsigned byte = 0;
		sscanf(p->text, "<0x%2X>", &byte);
		return sentencepiece_put(&(char){(char)byte}, 1, out, size);
	}
	bool drop = first && (m->dummy_prefix || m->remove_extra_whitespaces) && p->bytes >= SPACE_MARK_BYTES &&
	            memcmp(p->text, SPACE_MARK, SPACE_MARK_BYTES) == 0;
	return put_piece(p->text + (drop ? SPACE_MARK_BYTES : 0), p->bytes - (drop ? SPACE_MARK_BYTES : 0), out, size);
}

static size_t sentencepiece_token_name(const tokenizer *t, int32_t id, char *out, size_t size)
{
	const sentencepiece *s = of(t);
	if (id < s->model.size)
		return sentencepiece_put(s->model.pieces[id].text, s->model.pieces[id].bytes, out, size);
	const char *name = s->roles.added[id - s->model.size];
	return name ? sentencepiece_put(name, strlen(name), out, size) : 0;
}

const tokenizer_kind sentencepiece_kind = {
    .name = "sentencepiece",
    .open = sentencepiece_open,
    .close = sentencepiece_close,
    .encode = sentencepiece_encode,
    .cut = sentencepiece_cut,
    .token_bytes = sentencepiece_token_bytes,
    .token_name = sentencepiece_token_name,
};
