/* tokenizer.h - text to token ids and back.
 *
 * A tokenizer consists of the files that define it, which are kept unchanged in a model folder. It is one of several
 * kinds, recognised by their content:
 *
 *   tokenizer.json with a string "type"     one of ours; {"type": "bytes"}: three specials, then byte b is id b + 3
 *   tokenizer.json with an object "model"   Hugging Face's (huggingface/)
 *   tokenizer.model, spiece.model, …        SentencePiece's (sentencepiece/)
 *   vocab.json and merges.txt, vocab.txt    Hugging Face's from before tokenizer.json (huggingface/slow_files.c)
 *   (no file at all)                        bytes
 *
 * Files of other tokenizers are refused by name. generation_config.json, or else config.json, names ids that end a text
 * (eos_token_id).
 *
 * Roles of ids (end of a text, padding, …) are a property of each tokenizer: nothing outside engine/text knows an id. A
 * tokenizer is immutable and thread-safe. */
#ifndef ENGINE_TEXT_TOKENIZER_H
#define ENGINE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "engine/base/error.h"

enum { TOKEN_NONE = -1 /* no token has the role */, TOKEN_MAX_BYTES = 1024 /* bytes of text of one token */ };

typedef struct tokenizer tokenizer;

/* --- making one ------------------------------------------------------------------------- */

/* Make a tokenizer from an API object such as {"type": "bytes"}; NULL: bytes. STATUS_UNSUPPORTED for an unknown type,
 * and for one that must be trained (param "type"). */
status tokenizer_new(tokenizer **out, const json_t *spec, error *err);
/* Open the tokenizer of a model folder. vocab: the model's vocabulary; a tokenizer with more ids is STATUS_INVALID. A
 * file that differs from the folder's manifest.json, if it has one, is STATUS_STORAGE. An option in a file that is not
 * implemented is STATUS_UNSUPPORTED, by its name. Folders with the same files share one tokenizer: the files are read
 * and verified each time, and parsed only the first time. */
status tokenizer_open(tokenizer **out, const char *folder, int64_t vocab, error *err);
/* Open a tokenizer from one file, recognised by its content: a tokenizer.json or a SentencePiece model. STATUS_INVALID
 * for anything else. */
status tokenizer_open_data(tokenizer **out, const char *data, size_t bytes, error *err);
/* Write the tokenizer's files into a folder, byte for byte as they were read or made. */
status tokenizer_save(const tokenizer *t, const char *folder, error *err);
/* A shared tokenizer is freed with its last user. NULL is legal. */
void tokenizer_free(tokenizer *t);

/* Texts to train on, in order. next: *text is NULL at the end; a text is valid until the following call. */
typedef struct text_source {
	status (*next)(void *context, const char **text, size_t *bytes, error *err);
	void *context;
} text_source;
/* True if this spec needs a text to train on. False for a spec that tokenizer_new refuses. */
bool tokenizer_trains(const json_t *spec);
/* Check a spec before there is a text. Errors as for tokenizer_new; param: the key. */
status tokenizer_check(const json_t *spec, error *err);
/* Number of ids of a tokenizer trained with this checked spec; 0: the spec needs no training. */
int32_t tokenizer_trained_size(const json_t *spec);
/* Make the tokenizer that spec describes. A spec that needs no training reads nothing from the source. One that does is
 * {"type": "bpe", "vocab_size": N} (huggingface/bpe_trainer.c), whose memory grows with the number of different words
 * in the texts. A text that yields fewer ids than "vocab_size" is STATUS_INVALID, unless "vocab_size" is absent or
 * "at_most" is true. */
status tokenizer_train(tokenizer **out, const json_t *spec, const text_source *source, error *err);

/* --- what it is --------------------------------------------------------------------------- */

const char *tokenizer_type(const tokenizer *t);
int32_t tokenizer_size(const tokenizer *t);
/* Ids by their role, or TOKEN_NONE. pad: fills up a row. end: ends a text (the one to append). begin: begins a text.
 * unknown: replaces characters without a token. mask: a token to predict. */
int32_t tokenizer_pad(const tokenizer *t);
int32_t tokenizer_end(const tokenizer *t);
int32_t tokenizer_begin(const tokenizer *t);
int32_t tokenizer_unknown(const tokenizer *t);
int32_t tokenizer_mask(const tokenizer *t);
/* The id that begins a decoder's sequence if its model names none (model_dims.start): the first available of begin, pad
 * and end; or TOKEN_NONE. */
int32_t tokenizer_start(const tokenizer *t);
/* An id for positions that nothing reads: pad, end or 0. */
int32_t tokenizer_filler(const tokenizer *t);
/* The ids of <extra_id_0>, <extra_id_1>, …, as in T5's vocabulary, which represent spans removed from a text: up to
 * `room` consecutive ones. Returns their number. */
int tokenizer_sentinels(const tokenizer *t, int32_t *ids, int room);
/* True if this id ends a text. Several ids may; tokenizer_end is one. */
bool tokenizer_ends(const tokenizer *t, int32_t id);
/* One of the files (tokenizer_config.json, chat_template.jinja, …), NUL-terminated; NULL: there is no such file. */
const char *tokenizer_file(const tokenizer *t, const char *name, size_t *bytes);
/* One of the files as a JSON object; *out NULL: there is none. STATUS_INVALID. */
status tokenizer_file_json(const tokenizer *t, const char *name, json_t **out, error *err);

/* A hash of all its files. Tokenizers with the same hash produce the same tokens. */
uint64_t tokenizer_digest(const tokenizer *t);

/* The tokens before, between and after the texts that a classifier reads. Ids before 0 of them are used for a single
 * text. */
enum { TOKENIZER_FRAME_IDS = 16 };
typedef struct tokenizer_frame {
	int32_t before[TOKENIZER_FRAME_IDS], between[TOKENIZER_FRAME_IDS], behind[TOKENIZER_FRAME_IDS];
	int n_before, n_between, n_behind;
} tokenizer_frame;
/* The frame of a pair, or of a single text: that of the tokenizer's own files if they end a text. Otherwise its end
 * token, if it has one, after each text. */
tokenizer_frame tokenizer_frame_of(const tokenizer *t, bool pair);

/* The tokens that tokenizer_encode adds before and after a text with `begin` and `end`. STATUS_UNSUPPORTED: they do not
 * fit. */
status tokenizer_source_frame(const tokenizer *t, tokenizer_frame *out, error *err);

/* --- text to ids ---------------------------------------------------------------------------- */

typedef struct byte_range {
	size_t first, bytes;
} byte_range;

typedef struct encode_options {
	const byte_range *trusted; /* ascending: ranges where the name of a special token becomes that token */
	size_t n_trusted;
	bool begin, end; /* add the tokens that begin a text, and those that end one */
	bool continues;  /* the text continues one that was cut (tokenizer_safe_cut): nothing is added before it */
	bool spans;      /* fill token_list.spans */
	int threads;     /* threads that may share a long text; 0: one for each core. They change no token */
} encode_options;

typedef struct token_list {
	int32_t *ids;
	byte_range *spans; /* [count]: the bytes of the text of each token; empty for those of begin and end */
	size_t count;
} token_list;
void token_list_fini(token_list *list);

/* Encode `bytes` bytes of text. o NULL: plain text, in which no name of a special token is recognised, and nothing is
 * added. The edge of a trusted range does not split the text, only a special token in it does. Bytes that are not UTF-8
 * are read as U+FFFD by tokenizers that read characters. A text of 256 KiB or more without trusted ranges is encoded on
 * several threads if it can be cut (tokenizer_safe_cut). On error the list is empty. */
status tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, const encode_options *o, token_list *out,
                        error *err);

/* Lower bound of the number of tokens of any text of this many bytes; 0: unknown. */
int64_t tokenizer_least_tokens(const tokenizer *t, size_t bytes);

/* The last offset, at most `bytes`, where plain text can be cut without changing tokens: those of both parts, the
 * second encoded with `continues`, are those of the whole. 0: none is known. Text after `bytes` does not matter.
 *
 * Bytes can be cut everywhere.
 *
 * huggingface: before a space between two letters. This holds for byte-level tokenizers with a known pattern of words,
 * and for those that cut at white space or at "▁". It holds for Llama 2's form if no merge joins a piece with a
 * following "▁". It does not hold with normalizers that strip, or replace more than spaces; nor with added tokens of
 * plain text that span such a place or absorb white space beside them.
 *
 * sentencepiece: before a single space after a letter. This holds for BPE and char models without a piece that has a
 * "▁" after another character, in a text that has such a place in every mebibyte. It does not hold for unigram models,
 * whose rounding of scores depends on all the text before, nor for word models, in which adjacent unknown words are one
 * token. */
size_t tokenizer_safe_cut(const tokenizer *t, const char *text, size_t bytes);
/* Offset at which a text is cut if it is too long to be tokenized as a whole: that of tokenizer_safe_cut, or else after
 * the last newline. There a new text begins: a token that would span the cut is lost, and a space may be added before
 * the second part. 0: none. */
size_t tokenizer_cut(const tokenizer *t, const char *text, size_t bytes);

/* --- ids to text ---------------------------------------------------------------------------- */

/* The bytes of a token within a text ("" for specials, except the marks of calls, which are their names). At most
 * `size` are written; the full count, at most TOKEN_MAX_BYTES, is returned. Not NUL-terminated. */
size_t tokenizer_token_bytes(const tokenizer *t, int32_t id, char *out, size_t size);
/* True if the token is a special one whose text is its name: a mark of calls. */
bool tokenizer_is_mark(const tokenizer *t, int32_t id);
bool tokenizer_has_marks(const tokenizer *t);
/* A token's name in the vocabulary, also of specials ("<s>"), like tokenizer_token_bytes; "" if it has none. */
size_t tokenizer_token_name(const tokenizer *t, int32_t id, char *out, size_t size);

/* Incremental detokenizer that outputs whole UTF-8 characters. A character split over tokens is held back until it is
 * complete; an invalid byte becomes U+FFFD. Zero at the beginning of a text; with only `started` set, in the middle of
 * one. */
typedef struct text_stream {
	unsigned char held[4];
	int n_held;
	int n_before;   /* characters of the last output that replace bytes held from before the token */
	bool started;   /* a token of text was pushed: some tokenizers drop the space before the first one */
	bool raised;    /* the next character is changed by the token before it */
	bool each_byte; /* the tokenizer's: each byte of a broken character becomes a U+FFFD, instead of the longest
	                 * part that could have begun one */
} text_stream;
enum { TEXT_STREAM_ROOM = 3 * (TOKEN_MAX_BYTES + 4) };
/* Append the text that a token completes to out (room for TEXT_STREAM_ROOM); returns the bytes written. flush: nothing
 * follows, held bytes become U+FFFD. */
size_t text_stream_token(text_stream *s, const tokenizer *t, int32_t id, bool flush, char *out);
/* Append bytes instead of a token; out: room for 3 * (n + 3). */
size_t text_stream_push(text_stream *s, const char *bytes, size_t n, bool flush, char *out);

#endif
