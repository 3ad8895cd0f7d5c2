/* tokenizer.h - text to token ids and back.
 *
 * A tokenizer is the files that define it, which lie in a model folder and are kept unchanged, and one of several
 * kinds, recognised by their content:
 *
 *   tokenizer.json with a string "type"     one of ours; {"type": "bytes"}: three specials, then byte b is id b + 3
 *   tokenizer.json with an object "model"   Hugging Face's (huggingface/)
 *   tokenizer.model, spiece.model, …        SentencePiece's (sentencepiece/)
 *   vocab.json and merges.txt, vocab.txt    Hugging Face's from before tokenizer.json (huggingface/slow_files.c)
 *   (no file at all)                        bytes
 *
 * Files of other tokenizers are refused by name. generation_config.json, or else config.json, names ids that end a text
 * (eos_token_id)
 *
 * Which ids have a role (end of a text, padding, …) is a property of each tokenizer: nothing outside engine/text knows
 * an id. A tokenizer is immutable and thread-safe. */
#ifndef ENGINE_TEXT_TOKENIZER_H
#define ENGINE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "engine/base/error.h"

enum { TOKEN_NONE = -1 /* no token has the role */, TOKEN_MAX_BYTES = 1024 /* of text that one token stands for */ };

typedef struct tokenizer tokenizer;

/* --- making one ------------------------------------------------------------------------- */

/* From an API object such as {"type": "bytes"}; NULL: bytes. STATUS_UNSUPPORTED for an unknown type, and for one that
 * has to be trained (param "type"). */
status tokenizer_new(tokenizer **out, const json_t *spec, error *err);
/* From a model folder. vocab: the model's vocabulary; a tokenizer with more ids than that is STATUS_INVALID. A file
 * that differs from the folder's manifest.json, if it has one, is STATUS_STORAGE. What a file asks for that is not
 * implemented is STATUS_UNSUPPORTED, by its name. Folders with the same files share one tokenizer: the files are read
 * and verified each time, and made a tokenizer of the first time. */
status tokenizer_open(tokenizer **out, const char *folder, int64_t vocab, error *err);
/* From one file, recognised by its content: a tokenizer.json or a SentencePiece model. STATUS_INVALID for anything
 * else. */
status tokenizer_open_data(tokenizer **out, const char *data, size_t bytes, error *err);
/* Write the tokenizer's files into a folder, byte for byte as they were read or made. */
status tokenizer_save(const tokenizer *t, const char *folder, error *err);
/* Of a tokenizer that folders share, with its last user. NULL is legal. */
void tokenizer_free(tokenizer *t);

/* Texts to train on, one after another. next: *text NULL at the end; a text is valid until the following call. */
typedef struct text_source {
	status (*next)(void *context, const char **text, size_t *bytes, error *err);
	void *context;
} text_source;
/* Does this spec need a text to train on? False also of a spec that tokenizer_new refuses. */
bool tokenizer_trains(const json_t *spec);
/* Check a spec before there is a text. Errors as of tokenizer_new; param: the key. */
status tokenizer_check(const json_t *spec, error *err);
/* How many ids a tokenizer will have that is trained by this checked spec; 0: the spec needs no training. */
int32_t tokenizer_trained_size(const json_t *spec);
/* Make the tokenizer that spec describes. A spec that needs no training reads nothing from the source; one that does is
 * {"type": "bpe", "vocab_size": N} (huggingface/bpe_trainer.c), whose memory grows with the different words of the
 * texts.
 * A text that gives fewer ids than "vocab_size" is STATUS_INVALID, unless "vocab_size" is absent or "at_most" is true.
 */
status tokenizer_train(tokenizer **out, const json_t *spec, const text_source *source, error *err);

/* --- what it is --------------------------------------------------------------------------- */

const char *tokenizer_type(const tokenizer *t);
int32_t tokenizer_size(const tokenizer *t);
/* Ids by their role, or TOKEN_NONE: fills up a row; ends a text (the one to append); begins one; stands for what has no
 * token; stands for a token that is to be guessed. */
int32_t tokenizer_pad(const tokenizer *t);
int32_t tokenizer_end(const tokenizer *t);
int32_t tokenizer_begin(const tokenizer *t);
int32_t tokenizer_unknown(const tokenizer *t);
int32_t tokenizer_mask(const tokenizer *t);
/* The id that a decoder's sequence begins with where its model names none (model_dims.start): the first there is of
 * begin, pad and end; or TOKEN_NONE. */
int32_t tokenizer_start(const tokenizer *t);
/* An id that may stand where nothing reads it: pad, end or 0. */
int32_t tokenizer_filler(const tokenizer *t);
/* The ids of <extra_id_0>, <extra_id_1>, …, as T5's vocabulary has them, which stand for spans that are left out of a
 * text: up to `room` of them, as far as there is each. Returns how many. */
int tokenizer_sentinels(const tokenizer *t, int32_t *ids, int room);
/* Does this id end a text? Several may, of which tokenizer_end is one. */
bool tokenizer_ends(const tokenizer *t, int32_t id);
/* One of the files (tokenizer_config.json, chat_template.jinja, …), NUL-terminated; NULL: it has none of that name. */
const char *tokenizer_file(const tokenizer *t, const char *name, size_t *bytes);
/* The same as a JSON object; *out NULL: there is none. STATUS_INVALID. */
status tokenizer_file_json(const tokenizer *t, const char *name, json_t **out, error *err);

/* A hash of all that it is made of: what one of the same hash made of a text, this one makes too. */
uint64_t tokenizer_digest(const tokenizer *t);

/* What stands before, between and behind the texts that a classifier reads, in place of 0 of them where there is one
 * text alone. */
enum { TOKENIZER_FRAME_IDS = 16 };
typedef struct tokenizer_frame {
	int32_t before[TOKENIZER_FRAME_IDS], between[TOKENIZER_FRAME_IDS], behind[TOKENIZER_FRAME_IDS];
	int n_before, n_between, n_behind;
} tokenizer_frame;
/* Of a pair, or of a single text: that of the tokenizer's own files, if they end a text; else its end token, if it has
 * one, behind each text. */
tokenizer_frame tokenizer_frame_of(const tokenizer *t, bool pair);

/* What tokenizer_encode puts before and behind a text with `begin` and `end`. STATUS_UNSUPPORTED: more than there is
 * room for. */
status tokenizer_source_frame(const tokenizer *t, tokenizer_frame *out, error *err);

/* --- text to ids ---------------------------------------------------------------------------- */

typedef struct byte_range {
	size_t first, bytes;
} byte_range;

typedef struct encode_options {
	const byte_range *trusted; /* ascending: where the name of a special token becomes that token */
	size_t n_trusted;
	bool begin, end; /* add the tokens with which the tokenizer begins a text, and ends one */
	bool continues;  /* the text goes on where another was cut (tokenizer_safe_cut): nothing is put before it */
	bool spans;      /* fill token_list.spans */
	int threads;     /* that may share a long text; 0: one for each core. They change no token */
} encode_options;

typedef struct token_list {
	int32_t *ids;
	byte_range *spans; /* [count]: the bytes of the text that a token is made of; none of begin's and end's */
	size_t count;
} token_list;
void token_list_fini(token_list *list);

/* Encode `bytes` bytes of text. o NULL: plain text, in which no name of a special token is recognised, and nothing is
 * added. A trusted range is no border: text is cut only where it holds a special token. Bytes that are not UTF-8 are
 * read as U+FFFD by tokenizers that read characters. A text of 256 KiB and more without trusted ranges is encoded on
 * several threads where it can be cut (tokenizer_safe_cut). On error the list is empty. */
status tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, const encode_options *o, token_list *out,
                        error *err);

/* Lower bound on the tokens of any text of this many bytes; 0: none is known. */
int64_t tokenizer_least_tokens(const tokenizer *t, size_t bytes);

/* The last place, at most `bytes`, where plain text can be cut in two so that the tokens of both, the second encoded as
 * one that `continues`, are those of the whole; 0: none is known. What is behind `bytes` does not matter.
 *
 * Bytes can be cut everywhere.
 *
 * huggingface: before a space between two letters. Of byte-level tokenizers with a known pattern of words, of those
 * that cut at white space or at "▁", and of Llama 2's form if no merge joins something and a "▁" behind it. Not with
 * normalizers that strip, or replace more than spaces; nor with added tokens of plain text that reach over such a place
 * or take white space beside them.
 *
 * sentencepiece: before a single space behind a letter. Of BPE and char models without a piece that has a "▁" behind
 * something else, in a text that has such a place in every mebibyte. Not of unigram models, whose rounding of scores
 * depends on all the text before; nor of word models, in which unknown words side by side are one token. */
size_t tokenizer_safe_cut(const tokenizer *t, const char *text, size_t bytes);
/* Where a text that is too long to be tokenized as one is cut in pieces that are: such a place, or else behind the last
 * newline, where a text of its own begins: a token that would span the two is lost, and a space may be put before the
 * second. 0: none. */
size_t tokenizer_cut(const tokenizer *t, const char *text, size_t bytes);

/* --- ids to text ---------------------------------------------------------------------------- */

/* The bytes that a token stands for within a text ("" for specials); at most `size` are written, the full count, at
 * most TOKEN_MAX_BYTES, is returned. Not NUL-terminated. */
size_t tokenizer_token_bytes(const tokenizer *t, int32_t id, char *out, size_t size);
/* The same for a token's name in the vocabulary, of specials too ("<s>"); "" where it has none. */
size_t tokenizer_token_name(const tokenizer *t, int32_t id, char *out, size_t size);

/* Incremental detokenizer: whole UTF-8 characters out. A character split over tokens is held back until it is whole; an
 * invalid byte becomes U+FFFD. Zero at the beginning of a text; `begun` alone set: in the middle of one. */
typedef struct text_stream {
	unsigned char held[4];
	int n_held;
	int n_before;   /* characters of the last output that replace bytes held before the token */
	bool started;   /* a token of text was pushed: some tokenizers drop the space before the first one */
	bool raised;    /* the next character is to be changed, by the token before it */
	bool each_byte; /* the tokenizer's: each byte of a broken character becomes a U+FFFD, not the longest part that
	                   could have begun one */
} text_stream;
enum { TEXT_STREAM_ROOM = 3 * (TOKEN_MAX_BYTES + 4) };
/* Append what a token completes to out (room for TEXT_STREAM_ROOM); returns the bytes written. flush: nothing more is
 * coming, held bytes become U+FFFD. */
size_t text_stream_token(text_stream *s, const tokenizer *t, int32_t id, bool flush, char *out);
/* The same for bytes; out: room for 3 * (n + 3). */
size_t text_stream_push(text_stream *s, const char *bytes, size_t n, bool flush, char *out);

#endif
