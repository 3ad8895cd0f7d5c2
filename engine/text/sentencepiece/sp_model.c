/* The fields of the messages are those of the library's protobuf definition. Only those that encoding and decoding
 * depend on are read. Every length is checked against the message around it. */
#include "engine/text/sentencepiece/sp_model.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"

enum { MAX_PIECE_BYTES = 1024, JOIN_BITS = 20 };

/* --- the wire format of protocol buffers ------------------------------------------------------ */

typedef struct wire {
	const unsigned char *at, *end;
} wire;

typedef struct field {
	uint64_t number, value; /* value: of a varint, or the bits of a fixed number */
	wire bytes;             /* contents of a string or message */
	int type;               /* 0 varint, 1 and 5 fixed, 2 bytes */
} field;

static bool read_varint(wire *w, uint64_t *out)
{
	*out = 0;
	for (int shift = 0; shift < 64 && w->at < w->end; shift += 7) {
		unsigned char b = *w->at++;
		*out |= (uint64_t)(b & 0x7F) << shift;
		if (b < 0x80)
			return true;
	}
	return false;
}

static bool read_fixed(wire *w, size_t bytes, uint64_t *out)
{
	*out = 0;
	if ((size_t)(w->end - w->at) < bytes)
		return false;
	for (size_t i = 0; i < bytes; i++)
		*out |= (uint64_t)*w->at++ << 8 * i;
	return true;
}

/* The next field of a message; false: it is damaged. */
static bool read_field(wire *w, field *f)
{
	uint64_t tag;
	if (!read_varint(w, &tag))
		return false;
	*f = (field){.number = tag >> 3, .type = (int)(tag & 7)};
	switch (f->type) {
	case 0:
		return read_varint(w, &f->value);
	case 1:
		return read_fixed(w, 8, &f->value);
	case 2: {
		uint64_t n;
		if (!read_varint(w, &n) || n > (uint64_t)(w->end - w->at))
			return false;
		f->bytes = (wire){w->at, w->at + n};
		w->at += n;
		return true;
	}
	case 5:
		return read_fixed(w, 4, &f->value);
	default:
		return false;
	}
}

static size_t length(wire w)
{
	return (size_t)(w.end - w.at);
}

/* --- messages ------------------------------------------------------------------------------------ */

/* Parts of a file before they are combined. */
typedef struct parts {
	wire trainer, normalizer;
	wire unknown_name, begin_name, end_name, pad_name;
	bool denormalizes;
} parts;

static status sp_model_damaged(error *err)
{
	return error_set(err, STATUS_INVALID, NULL, "this is not a SentencePiece model, or it is truncated");
}

static status read_piece(sp_model *m, wire w, error *err)
{
	sp_piece *p = &m->pieces[m->size];
	field f;
	p->type = SP_NORMAL;
	while (w.at < w.end) {
		if (!read_field(&w, &f))
			return sp_model_damaged(err);
		if (f.number == 1 && f.type == 2) {
			p->text = (const char *)f.bytes.at;
			p->bytes = (uint32_t)length(f.bytes);
		} else if (f.number == 2 && f.type == 5) {
			uint32_t bits = (uint32_t)f.value;
			memcpy(&p->score, &bits, sizeof p->score);
		} else if (f.number == 3 && f.type == 0) {
			p->type = f.value >= SP_NORMAL && f.value <= SP_BYTE ? (sp_type)f.value : SP_UNUSED;
		}
	}
	if (!p->text || p->bytes == 0 || p->bytes > MAX_PIECE_BYTES || p->score != p->score)
		return error_set(err, STATUS_INVALID, NULL, "piece %d has no text, too long a text, or no score",
		                 (int)m->size);
	m->size++;
	return STATUS_OK;
}

static status read_trainer(sp_model *m, parts *p, error *err)
{
	wire w = p->trainer;
	field f;
	while (w.at < w.end) {
		if (!read_field(&w, &f))
			return sp_model_damaged(err);
		if (f.number == 3 && f.type == 0)
			m->algorithm = (sp_algorithm)(f.value & 0xFF);
		else if (f.number == 24 && f.type == 0)
			m->whitespace_as_suffix = f.value;
		else if (f.number == 35 && f.type == 0)
			m->byte_fallback = f.value;
		else if (f.number == 44 && f.type == 2) {
			m->unknown_surface = (const char *)f.bytes.at;
			m->unknown_surface_bytes = length(f.bytes);
		} else if (f.number >= 45 && f.number <= 48 && f.type == 2)
			*(wire *[]){&p->unknown_name, &p->begin_name, &p->end_name, &p->pad_name}[f.number - 45] =
			    f.bytes;
	}
	if (m->algorithm < SP_UNIGRAM || m->algorithm > SP_CHAR)
		return error_set(err, STATUS_UNSUPPORTED, "model_type", "there is no SentencePiece model type %d",
		                 (int)m->algorithm);
	if (m->unknown_surface_bytes > MAX_PIECE_BYTES)
		return error_set(err, STATUS_INVALID, NULL, "the text of the unknown piece is too long");
	return STATUS_OK;
}

static status read_rules(sp_model *m, wire w, error *err)
{
	if (length(w) == 0 || charsmap_read(&m->rules, w.at, length(w)))
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, NULL, "its table of normalisation rules is damaged");
}

static status read_normalizer(sp_model *m, const parts *p, error *err)
{
	wire w = p->normalizer;
	field f;
	while (w.at < w.end) {
		if (!read_field(&w, &f))
			return sp_model_damaged(err);
		if (f.number == 2 && f.type == 2)
			TRY(read_rules(m, f.bytes, err));
		else if (f.number == 3 && f.type == 0)
			m->dummy_prefix = f.value;
		else if (f.number == 4 && f.type == 0)
			m->remove_extra_whitespaces = f.value;
		else if (f.number == 5 && f.type == 0)
			m->escape_whitespaces = f.value;
	}
	return STATUS_OK;
}

static status read_denormalizer(parts *p, wire w, error *err)
{
	field f;
	while (w.at < w.end) {
		if (!read_field(&w, &f))
			return sp_model_damaged(err);
		if (f.number == 2 && f.type == 2 && length(f.bytes) > 0)
			p->denormalizes = true;
	}
	return STATUS_OK;
}

static status read_parts(sp_model *m, parts *p, wire w, error *err)
{
	field f;
	while (w.at < w.end) {
		if (!read_field(&w, &f))
			return sp_model_damaged(err);
		if (f.type != 2)
			continue;
		if (f.number == 1)
			TRY(read_piece(m, f.bytes, err));
		else if (f.number == 2)
			p->trainer = f.bytes;
		else if (f.number == 3)
			p->normalizer = f.bytes;
		else if (f.number == 5)
			TRY(read_denormalizer(p, f.bytes, err));
	}
	return STATUS_OK;
}

static size_t count_pieces(wire w)
{
	size_t n = 0;
	field f;
	while (w.at < w.end && read_field(&w, &f))
		n += f.number == 1 && f.type == 2;
	return n;
}

bool sp_model_recognise(const char *file, size_t bytes)
{
	wire w = {(const unsigned char *)file, (const unsigned char *)file + bytes};
	field f, piece;
	return read_field(&w, &f) && f.number == 1 && f.type == 2 && read_field(&f.bytes, &piece) &&
	       piece.number == 1 && piece.type == 2;
}

/* --- what follows from the pieces -------------------------------------------------------------------- */

static uint32_t sp_model_join(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
	uint64_t key = 0;
	memcpy(&key, a, a_bytes > 4 ? 4 : a_bytes);
	memcpy((char *)&key + 4, b, b_bytes > 4 ? 4 : b_bytes);
	return (uint32_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> (64 - JOIN_BITS));
}

bool sp_model_joins(const sp_model *m, const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
	uint32_t bit = sp_model_join(a, a_bytes, b, b_bytes);
	return m->joins[bit >> 3] >> (bit & 7) & 1;
}

static void note_joins(sp_model *m, const sp_piece *p)
{
	const char *before = p->text, *end = p->text + p->bytes;
	size_t n = sp_model_character((unsigned char)*before, p->bytes);
	for (const char *at = before + n; at < end; at += n) {
		size_t next = sp_model_character((unsigned char)*at, (size_t)(end - at));
		uint32_t bit = sp_model_join(before, n, at, next);
		m->joins[bit >> 3] |= (unsigned char)(1 << (bit & 7));
		before = at;
		n = next;
	}
}

static status index_piece(sp_model *m, int32_t id, error *err)
{
	const sp_piece *p = &m->pieces[id];
	if (p->type == SP_NORMAL && p->score < m->lowest_score)
		m->lowest_score = p->score;
	if (p->type == SP_UNUSED && m->algorithm == SP_BPE)
		return error_set(err, STATUS_UNSUPPORTED, NULL, "piece %d is unused: not supported in BPE models",
		                 (int)id);
	m->longest = p->bytes > m->longest ? p->bytes : m->longest;
	if (m->joins)
		note_joins(m, p);
	return STATUS_OK;
}

static bool is_text(sp_type type)
{
	return type == SP_NORMAL || type == SP_USER_DEFINED || type == SP_UNUSED;
}

/* One trie: of the user-defined pieces, or of all that text can become. The unigram algorithm never takes unused ones.
 */
static status build_trie(sp_model *m, trie *out, bool user_defined, error *err)
{
	trie_string *strings = memory_new((size_t)m->size, sizeof *strings);
	size_t n = 0, same;
	if (!strings)
		return STATUS_NOMEM;
	for (int32_t i = 0; i < m->size; i++) {
		const sp_piece *p = &m->pieces[i];
		if (user_defined ? p->type == SP_USER_DEFINED
		                 : is_text(p->type) && !(p->type == SP_UNUSED && m->algorithm == SP_UNIGRAM))
			strings[n++] =
			    (trie_string){p->text, p->bytes, i, p->type == SP_USER_DEFINED ? -0.1F : p->score};
	}
	status s = trie_build(out, strings, n, &same);
	if (s == STATUS_CONFLICT)
		s = error_set(err, STATUS_INVALID, NULL, "the pieces %d and %d are the same",
		              (int)strings[same - 1].value, (int)strings[same].value);
	free(strings);
	return s;
}

static status index_byte(sp_model *m, int32_t id, error *err)
{
	const sp_piece *p = &m->pieces[id];
	char name[8] = "", canonical[8] = "";
	unsigned value = 256;
	if (p->bytes == 6)
		memcpy(name, p->text, 6);
	if (sscanf(name, "<0x%2X>", &value) == 1)
		snprintf(canonical, sizeof canonical, "<0x%02X>", value);
	if (value > 255 || strcmp(name, canonical) != 0)
		return error_set(err, STATUS_INVALID, NULL, "piece %d is a byte, but not called one", (int)id);
	m->bytes[value] = id;
	return STATUS_OK;
}

static status index_all(sp_model *m, error *err)
{
	m->lowest_score = FLT_MAX;
	m->unknown = -1;
	memset(m->bytes, -1, sizeof m->bytes);
	if (m->algorithm == SP_BPE && !(m->joins = memory_new(1, (size_t)1 << (JOIN_BITS - 3))))
		return STATUS_NOMEM;
	for (int32_t i = 0; i < m->size; i++) {
		sp_type type = m->pieces[i].type;
		if (is_text(type))
			TRY(index_piece(m, i, err));
		else if (type == SP_BYTE)
			TRY(index_byte(m, i, err));
		else if (type == SP_UNKNOWN && m->unknown >= 0)
			return error_set(err, STATUS_INVALID, NULL, "it has two unknown pieces");
		else if (type == SP_UNKNOWN)
			m->unknown = i;
	}
	if (m->unknown < 0)
		return error_set(err, STATUS_INVALID, NULL, "it has no unknown piece");
	for (int b = 0; m->byte_fallback && b < 256; b++)
		if (m->bytes[b] < 0)
			return error_set(err, STATUS_INVALID, NULL, "it falls back to bytes, but has no piece <0x%02X>",
			                 b);
	TRY(build_trie(m, &m->vocabulary, false, err));
	return build_trie(m, &m->user_defined, true, err);
}

static int32_t find_control(const sp_model *m, wire name, const char *usual)
{
	const char *text = name.at ? (const char *)name.at : usual;
	size_t bytes = name.at ? length(name) : strlen(usual);
	for (int32_t i = 0; i < m->size; i++)
		if (m->pieces[i].type == SP_CONTROL && m->pieces[i].bytes == bytes &&
		    memcmp(m->pieces[i].text, text, bytes) == 0)
			return i;
	return -1;
}

status sp_model_read(sp_model *m, const char *file, size_t bytes, error *err)
{
	static const char surface[] = " \xE2\x81\x87 ";
	wire w = {(const unsigned char *)file, (const unsigned char *)file + bytes};
	parts p = {0};
	*m = (sp_model){.algorithm = SP_UNIGRAM,
	                .unknown_surface = surface,
	                .unknown_surface_bytes = sizeof surface - 1,
	                .dummy_prefix = true,
	                .remove_extra_whitespaces = true,
	                .escape_whitespaces = true};
	size_t n = count_pieces(w);
	if (n == 0 || n > INT32_MAX)
		return sp_model_damaged(err);
	m->pieces = memory_new(n, sizeof *m->pieces);
	if (!m->pieces)
		return STATUS_NOMEM;
	TRY(read_parts(m, &p, w, err));
	TRY(read_trainer(m, &p, err));
	TRY(read_normalizer(m, &p, err));
	if (p.denormalizes)
		return error_set(err, STATUS_UNSUPPORTED, "denormalizer_spec", "rules for decoding are not supported");
	TRY(index_all(m, err));
	m->begin = find_control(m, p.begin_name, "<s>");
	m->end = find_control(m, p.end_name, "</s>");
	m->pad = find_control(m, p.pad_name, "<pad>");
	return STATUS_OK;
}

void sp_model_fini(sp_model *m)
{
	free(m->pieces);
	free(m->joins);
	trie_fini(&m->vocabulary);
	trie_fini(&m->user_defined);
	*m = (sp_model){0};
}
