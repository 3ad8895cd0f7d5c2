/* tokenizer_kind.h - the interfaces of a kind of tokenizer and of a training method.
 *
 * A kind is one source (or folder) with a const tokenizer_kind, and a row in tokenizer.c. It defines the differences
 * between kinds; files and their recognition, roles and the check against a model's vocabulary are in tokenizer.c.
 * Training creates files, which are then opened like any others. */
#ifndef ENGINE_TEXT_TOKENIZER_KIND_H
#define ENGINE_TEXT_TOKENIZER_KIND_H

#include "engine/text/tokenizer.h"

enum { TOKENIZER_CUT_CONTEXT = 16 };

typedef struct tokenizer_kind {
	const char *name; /* "type" in our own tokenizer.json */
	/* Read json (the parsed tokenizer.json or a spec; NULL: there is none) and the other files (tokenizer_file),
	 * set t->size and the roles; t->data is the kind's own. An unknown key is an error that names it. */
	status (*open)(tokenizer *t, const json_t *json, error *err);
	/* Optional: free t->data, which may be NULL. */
	void (*close)(tokenizer *t);
	/* Like tokenizer_encode; o is not NULL. After an error tokenizer_encode frees the list. */
	status (*encode)(const tokenizer *t, const char *text, size_t bytes, const encode_options *o, token_list *out,
	                 error *err);
	/* Like tokenizer_token_bytes, for 0 <= id < size. first: the first token of a text. */
	size_t (*token_bytes)(const tokenizer *t, int32_t id, bool first, char *out, size_t size);
	/* Optional: like tokenizer_safe_cut. At most TOKENIZER_CUT_CONTEXT bytes decide whether an offset qualifies. */
	size_t (*cut)(const tokenizer *t, const char *text, size_t bytes);
	/* Optional: like tokenizer_frame_of; false: its files have none that ends a text. */
	bool (*frame)(const tokenizer *t, bool pair, tokenizer_frame *out);
	/* Optional: like tokenizer_token_name, for 0 <= id < size. */
	size_t (*token_name)(const tokenizer *t, int32_t id, char *out, size_t size);
	/* With a `raiser`: change the first character of well-formed text after it, in place, with room for 3 bytes
	 * more; returns the new number of bytes. */
	size_t (*raise)(const tokenizer *t, char *text, size_t bytes);
} tokenizer_kind;

typedef struct tokenizer_trainer {
	const char *name; /* the "type" of a spec */
	/* Check a spec's keys. */
	status (*check)(const json_t *spec, error *err);
	/* Optional: the number of ids of a checked spec's tokenizer; without it, its "vocab_size". */
	int32_t (*size)(const json_t *spec);
	/* Read the source and add the tokenizer's files to t (tokenizer_add_file). The spec is checked. */
	status (*train)(tokenizer *t, const json_t *spec, const text_source *source, error *err);
} tokenizer_trainer;

enum { TOKENIZER_MAX_FILES = 16, TOKENIZER_MAX_ENDS = 16, TOKENIZER_MAX_SHOWN = 3, TOKENIZER_TYPE_BYTES = 32 };

typedef struct tokenizer_file_data {
	const char *name; /* static */
	char *data;       /* NUL-terminated */
	size_t bytes;
} tokenizer_file_data;

struct tokenizer {
	const tokenizer_kind *kind;
	int32_t size, pad, end, begin, unknown, mask;
	int32_t raiser; /* a token without text that changes the character after it, such as one for capitals;
	                 * TOKEN_NONE */
	int32_t ends[TOKENIZER_MAX_ENDS];
	int n_ends, n_files;
	int32_t shown[TOKENIZER_MAX_SHOWN]; /* special tokens that are text in what is generated */
	int n_shown;
	size_t longest;                        /* most bytes of text of one token; 0: no bound is known */
	bool drops_leading_spaces;             /* leading tokens that are only spaces are dropped */
	bool replaces_each_byte;               /* as in text_stream.each_byte */
	char model_type[TOKENIZER_TYPE_BYTES]; /* from config.json; "" if absent */
	const char *unread; /* a file of the folder that belongs to an unknown tokenizer; NULL: none */
	tokenizer_file_data files[TOKENIZER_MAX_FILES];
	void *data;
	tokenizer *next; /* in the list of shared tokenizers */
	int users;       /* number of users, if shared */
};

/* Maximum bytes that a tokenizer's rules may make of a text of this size. Unicode's forms make at most 11 bytes of one
 * (U+FDFA). A new stage takes its bytes from the same budget. */
static inline size_t tokenizer_growth_limit(size_t bytes)
{
	return bytes < SIZE_MAX / 32 ? 16 * bytes + (1 << 16) : SIZE_MAX / 2;
}
/* STATUS_TOO_LARGE: the rules exceed that limit. */
status tokenizer_refuse_growth(size_t bytes, error *err);

/* As tokenizer_token_bytes; first: the first token of a text. */
size_t tokenizer_text_bytes(const tokenizer *t, int32_t id, bool first, char *out, size_t size);
/* Add a file; name: a literal. Takes data, which is malloc'ed and NUL-terminated, even on error. */
status tokenizer_add_file(tokenizer *t, const char *name, char *data, size_t bytes, error *err);
/* Let id end a text too. Ids outside the vocabulary, and ids beyond the room, are dropped. */
void tokenizer_add_end(tokenizer *t, int32_t id);

/* Build the equivalent tokenizer.json from other files of a Hugging Face tokenizer; *out NULL: there are none.
 * STATUS_INVALID: one is damaged; STATUS_UNSUPPORTED: another class, or an unknown option. */
status slow_files_read(const tokenizer *t, json_t **out, error *err);

extern const tokenizer_trainer bpe_trainer, sentencepiece_trainer;
/* The file names of SentencePiece models; NULL-terminated. */
extern const char *const sentencepiece_files[];
/* True if the data looks like a SentencePiece model. */
bool sentencepiece_recognise(const char *data, size_t bytes);

#endif
