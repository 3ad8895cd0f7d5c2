/* `document` collects the document that is being read. A line of running text may extend over several pieces, and a
 * document of data consists of several texts. */
#include "engine/text/text_counts.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/base/utf8.h"
#include "engine/text/document_tokens.h"
#include "engine/text/preferences.h"

enum { PIECE_BYTES = 1 << 20 };

typedef struct counting {
	text_counts *counts;
	const text_counts_options *options;
	document_tokens encoder;
	/* the document so far */
	int64_t characters, tokens;
	bool blank; /* a line without a character but white space */
	digest_stream *content;
} counting;

/* --- documents ------------------------------------------------------------------------- */

static void begin_document(counting *c)
{
	c->characters = c->tokens = 0;
	c->blank = true;
	digest_stream_reset(c->content);
}

static status end_document(counting *c, error *err)
{
	text_counts *to = c->counts;
	to->documents++;
	length_counts_add(&to->lengths[0], c->characters);
	length_counts_add(&to->lengths[1], c->tokens);
	status s = duplicate_count_add(to->duplicates, digest_stream_wide(c->content), err);
	begin_document(c);
	return s;
}

/* The character that begins well-formed UTF-8; *bytes: its length. */
static uint32_t character_at(const unsigned char *p, size_t n, size_t *bytes)
{
	uint32_t code = p[0];
	*bytes = 1;
	if (code < 0x80)
		return code;
	utf8_next(p, n, bytes);
	code &= 0x7fu >> *bytes;
	for (size_t i = 1; i < *bytes; i++)
		code = code << 6 | (p[i] & 0x3fu);
	return code;
}

static bool is_space(uint32_t code)
{
	return code == ' ' || (code >= '\t' && code <= '\r');
}

/* Add text to the document, with `line` up to the end of a line. Returns the offset where it stopped. */
static size_t count_text(counting *c, const char *text, size_t n, bool line)
{
	size_t at = 0, bytes;
	for (; at < n; at += bytes) {
		const uint32_t code = character_at((const unsigned char *)text + at, n - at, &bytes);
		if (line && (code == '\n' || code == '\r'))
			break;
		c->characters++;
		c->counts->characters++;
		c->blank &= is_space(code);
		script_counts_add(&c->counts->scripts, code);
	}
	digest_stream_add(c->content, text, at);
	return at;
}

static void add_to_tokens(counting *c, int64_t n)
{
	c->tokens += n;
	c->counts->tokens += n;
}

static status encode(counting *c, const char *text, size_t bytes, const encode_options *how, error *err)
{
	token_list tokens;
	encode_options alone = how ? *how : (encode_options){0};
	alone.threads = 1;
	TRY(tokenizer_encode(c->options->tokenizer, text, bytes, &alone, &tokens, err));
	add_to_tokens(c, (int64_t)tokens.count);
	token_list_fini(&tokens);
	return STATUS_OK;
}

/* --- running text ------------------------------------------------------------------------ */

/* Number of tokens that begin a text. */
static status count_begin(const counting *c, size_t *n, error *err)
{
	token_list tokens;
	TRY(tokenizer_encode(c->options->tokenizer, "", 0, &(encode_options){.begin = true}, &tokens, err));
	*n = tokens.count;
	token_list_fini(&tokens);
	return STATUS_OK;
}

/* Add the lines of a piece. tokens: the piece's, with their spans if it has several lines. k: the first token of the
 * text itself. */
static status add_lines(counting *c, const corpus_piece *piece, const token_list *tokens, size_t k, error *err)
{
	c->counts->tokens += (int64_t)tokens->count;
	if (!tokens->spans)
		c->tokens += (int64_t)(tokens->count - k);
	for (size_t at = 0; at < piece->bytes;) {
		const size_t end = at + count_text(c, piece->text + at, piece->bytes - at, true);
		for (; tokens->spans && k < tokens->count && tokens->spans[k].first < end; k++)
			c->tokens += tokens->spans[k].first >= at;
		at = end;
		if (at == piece->bytes)
			break;
		script_counts_add(&c->counts->scripts, (unsigned char)piece->text[at++]);
		c->counts->characters++;
		if (c->blank)
			begin_document(c);
		else
			TRY(end_document(c, err));
	}
	return STATUS_OK;
}

static status add_piece_of_text(counting *c, const corpus_piece *piece, bool begins, bool *continues, error *err)
{
	token_list tokens;
	size_t n_begin = 0;
	const encode_options how = {.begin = begins,
	                            .continues = *continues,
	                            .spans = memchr(piece->text, '\n', piece->bytes) ||
	                                     memchr(piece->text, '\r', piece->bytes),
	                            .threads = 1};
	if (begins)
		TRY(count_begin(c, &n_begin, err));
	TRY(tokenizer_encode(c->options->tokenizer, piece->text, piece->bytes, &how, &tokens, err));
	status s = add_lines(c, piece, &tokens, n_begin, err);
	token_list_fini(&tokens);
	*continues = piece->text[piece->bytes - 1] != '\n';
	return s;
}

/* --- documents of data --------------------------------------------------------------------- */

static status add_document_tokens(void *context, const char *text, size_t bytes, const encode_options *how, int kind,
                                  error *err)
{
	counting *c = context;
	token_list tokens;
	TRY(document_tokens_encode(&c->encoder, text, bytes, how, kind, &tokens, err));
	add_to_tokens(c, (int64_t)tokens.count);
	token_list_fini(&tokens);
	return kind & DOCUMENT_LAST ? end_document(c, err) : STATUS_OK;
}

static void add_whole_text(counting *c, const char *text, size_t bytes)
{
	count_text(c, text, bytes, false);
	digest_stream_add(c->content, &bytes, sizeof bytes); /* where texts of a document end makes a difference */
}

static status add_document(void *context, const char *text, size_t bytes, const encode_options *how, int kind,
                           error *err)
{
	add_whole_text(context, text, bytes);
	return add_document_tokens(context, text, bytes, how, kind, err);
}

/* Conversations are equal if all members of their messages and functions are. */
static status add_to_content(counting *c, const json_t *value, error *err)
{
	char *text = value ? json_text(value, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
	if (value && !text)
		return error_settle(err, STATUS_NOMEM);
	if (text)
		digest_stream_add(c->content, text, strlen(text));
	free(text);
	return STATUS_OK;
}

static void count_string(counting *c, const json_t *text)
{
	if (json_is_string(text))
		count_text(c, json_string_value(text), json_string_length(text), false);
}

/* Count the content of a message: a string or an array of text parts. */
static void count_content(counting *c, const json_t *content)
{
	size_t i;
	const json_t *part;
	count_string(c, content);
	json_array_foreach(content, i, part) count_string(c, json_object_get(part, "text"));
}

static status add_conversation(const void *context, const json_t *messages, const json_t *tools, long line,
                               document_piece each, void *to, error *err)
{
	counting *c = to;
	size_t i;
	json_t *message;
	(void)each;
	json_array_foreach(messages, i, message) count_content(c, json_object_get(message, "content"));
	digest_stream_reset(c->content);
	TRY(add_to_content(c, messages, err));
	TRY(add_to_content(c, tools, err));
	return conversation_pieces(context, messages, tools, line, add_document_tokens, c, err);
}

/* --- labelled texts, pairs and preferences ----------------------------------------------------- */

/* Add the text of a member that must be a string. */
static status add_member(counting *c, const json_t *object, const char *key, long line, const encode_options *how,
                         error *err)
{
	const json_t *text = json_object_get(object, key);
	if (!json_is_string(text))
		return jsonl_refuse_member(err, line, object, key);
	add_whole_text(c, json_string_value(text), json_string_length(text));
	return encode(c, json_string_value(text), json_string_length(text), how, err);
}

static status add_labelled(counting *c, const json_t *object, long line, error *err)
{
	const json_t *label = jsonl_member(object, "label");
	const bool pair = jsonl_member(object, "text_pair");
	const tokenizer_frame f = tokenizer_frame_of(c->options->tokenizer, pair);
	if (!label)
		return jsonl_refuse_keys(err, line, object, "a \"label\"");
	if (!json_is_integer(label) && !json_is_string(label))
		return jsonl_refuse(err, line, "\"label\" must be a string or an integer");
	TRY(add_member(c, object, "text", line, NULL, err));
	if (pair)
		TRY(add_member(c, object, "text_pair", line, NULL, err));
	add_to_tokens(c, f.n_before + f.n_between + f.n_behind);
	const json_int_t number = json_integer_value(label);
	if (json_is_string(label))
		digest_stream_add(c->content, json_string_value(label), json_string_length(label));
	else
		digest_stream_add(c->content, &number, sizeof number);
	return end_document(c, err);
}

static status add_pair(counting *c, const json_t *object, long line, error *err)
{
	TRY(add_member(c, object, "source", line, &(encode_options){.begin = true, .end = true}, err));
	TRY(add_member(c, object, "target", line, NULL, err));
	add_to_tokens(c, tokenizer_end(c->options->tokenizer) != TOKEN_NONE);
	return end_document(c, err);
}

static status add_record(void *context, const json_t *object, long line, error *err)
{
	counting *c = context;
	if (!json_is_object(object))
		return jsonl_refuse(err, line, "not a JSON object");
	return c->options->records == RECORD_PAIR ? add_pair(c, object, line, err)
	       : c->options->records == RECORD_PREFERENCE
	           ? preferences_pieces(c->options->chat, object, line, add_document, c, err)
	           : add_labelled(c, object, line, err);
}

/* --- the whole ---------------------------------------------------------------------------------- */

static size_t cut(const void *context, const char *text, size_t bytes)
{
	return tokenizer_cut(context, text, bytes);
}

static status open_reader(corpus_reader **out, byte_source *source, const text_counts_options *o, error *err)
{
	const size_t piece = o->piece_bytes ? o->piece_bytes : PIECE_BYTES;
	return o->records == RECORD_BLOCK ? corpus_reader_new(out, source, piece, cut, o->tokenizer, err)
	                                  : corpus_reader_new_data(out, source, piece, err);
}

static status count_piece(counting *c, const corpus_piece *piece, bool begins, bool *continues, error *err)
{
	return !c->counts->data ? add_piece_of_text(c, piece, begins, continues, err)
	       : c->options->records == RECORD_BLOCK
	           ? documents_read(piece, add_conversation, c->options->chat, add_document, c, err)
	           : jsonl_walk(piece, add_record, c, err);
}

static status read_pieces(counting *c, corpus_reader *r, error *err)
{
	bool begins = true, continues = false;
	for (;; begins = false) {
		corpus_piece piece;
		if (c->options->cancel && atomic_load(c->options->cancel))
			return error_set(err, STATUS_CANCELLED, NULL, "cancelled");
		TRY(corpus_reader_next(r, &piece, err));
		if (!piece.text)
			return c->blank || c->counts->data ? STATUS_OK
			                                   : end_document(c, err); /* a last line without an end */
		status s = count_piece(c, &piece, begins, &continues, err);
		free(piece.text);
		TRY(s);
	}
}

static status text_counts_begin(counting *c, error *err)
{
	c->content = digest_stream_new();
	if (!c->content)
		return error_no_memory(err, "the hash of a document");
	begin_document(c);
	TRY(length_counts_init(&c->counts->lengths[0], err));
	TRY(length_counts_init(&c->counts->lengths[1], err));
	return duplicate_count_new(&c->counts->duplicates, c->options->documents, err);
}

status text_counts_read(text_counts *out, byte_source *source, const text_counts_options *o, error *err)
{
	counting c = {.counts = out, .options = o, .encoder = {.t = o->tokenizer}};
	corpus_reader *reader = NULL;
	*out = (text_counts){0};
	status s = open_reader(&reader, source, o, err);
	if (s == STATUS_OK)
		s = text_counts_begin(&c, err);
	if (s == STATUS_OK) {
		out->data = corpus_reader_is_data(reader);
		corpus_reader_repair(reader, &out->invalid_lines);
		s = read_pieces(&c, reader, err);
	}
	corpus_reader_free(reader);
	digest_stream_free(c.content);
	return s;
}

void text_counts_fini(text_counts *c)
{
	length_counts_fini(&c->lengths[0]);
	length_counts_fini(&c->lengths[1]);
	duplicate_count_free(c->duplicates);
	*c = (text_counts){0};
}
