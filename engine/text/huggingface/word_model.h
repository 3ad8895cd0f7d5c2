/* word_model.h - the "model" of a tokenizer.json: it makes tokens of a word, as the pre-tokenizer cuts words.
 * Immutable, thread-safe. A kind of model is one file, which begins with its definition. */
#ifndef ENGINE_TEXT_HUGGINGFACE_WORD_MODEL_H
#define ENGINE_TEXT_HUGGINGFACE_WORD_MODEL_H

#include <jansson.h>
#include <stdbool.h>

#include "engine/text/huggingface/merges.h"
#include "engine/text/huggingface/vocabulary.h"
#include "engine/text/huggingface/word_room.h"
#include "engine/text/trie.h"

enum { BPE_MAX_AFFIX = 32 /* bytes */ };

typedef struct bpe {
	const vocabulary *names;
	const bool *special; /* [ids]: tokens that no text becomes, whatever the merges say */
	merges merges;
	bool byte_level;       /* a word's bytes are its characters */
	bool ignore_merges;    /* a word that is a token is that token */
	bool cut_at_metaspace; /* no merge joins a character with a following "▁" */
	bool parts;            /* a long word can be encoded part by part */
	bool fuse_unknown;
	char prefix[BPE_MAX_AFFIX + 1]; /* before the name of each character of a word but its first */
	char suffix[BPE_MAX_AFFIX + 1]; /* after the name of its last character */
	int32_t unknown;                /* -1: what has no token is dropped */
	int32_t byte[256];              /* byte_level: the token of a byte; else of ASCII; -1: none */
	int32_t fallback[256];          /* tokens of the bytes of a character without a token; all -1: no fallback */
	size_t longest;                 /* parts: at least the bytes of a word that become one token, */
	size_t window;                  /* bytes that are merged to find a part; longer than any token's name */
} bpe;

typedef struct unigram {
	trie tokens;    /* tokens that text can become: all except special ones */
	double *scores; /* [names->size] */
	double unknown_score;
	int32_t unknown;    /* -1: what has no token is dropped */
	size_t longest;     /* token, in bytes */
	bool has_bytes;     /* an unknown character becomes the tokens of its bytes, */
	int32_t bytes[256]; /* ids of byte tokens */
} unigram;

typedef struct wordpiece {
	trie begins, inside; /* tokens that begin a word, and those that continue one, without the prefix; no special
	                      * tokens */
	bool byte_level;     /* a word's bytes are its characters */
	int32_t unknown;
	size_t most; /* characters of a word */
} wordpiece;

typedef struct wordlevel {
	const vocabulary *names;
	const bool *special; /* [ids]: tokens that no text becomes */
	int32_t unknown;
} wordlevel;

typedef struct word_model word_model;

typedef struct word_kind {
	const char *type;
	bool scored; /* its vocabulary is [[name, score], …] in place of {name: id} */
	/* Check what the model asks for before its vocabulary is made. */
	status (*check)(const json_t *json, error *err);
	/* names and special must outlive the model. It must be freed also after an error. */
	status (*read)(word_model *m, const json_t *json, const vocabulary *names, const bool *special, bool byte_level,
	               error *err);
	void (*fini)(word_model *m); /* optional */
	/* The tokens of a word: r->ids and r->lengths, r->count of them. r->bytes is the word's number of bytes; it is
	 * reduced if only a first part was encoded, and the rest can be encoded as a word. STATUS_NOMEM;
	 * STATUS_TOO_LARGE: 2 GiB. */
	status (*encode)(const word_model *m, const char *word, size_t bytes, word_room *r);
} word_kind;

extern const word_kind bpe_kind, unigram_kind, wordpiece_kind, wordlevel_kind;

struct word_model {
	const word_kind *kind;
	int32_t unknown; /* the id for text without a token; -1: none, and such text is dropped */
	union {
		bpe bpe;
		unigram unigram;
		wordpiece wordpiece;
		wordlevel wordlevel;
	};
};

/* Find the kind and check the model's members before the vocabulary is made. STATUS_UNSUPPORTED by name. */
status word_model_check(word_model *m, const json_t *json, error *err);
/* {name: id} of its vocabulary, as a new reference; NULL after an error. */
status word_model_names(const word_model *m, const json_t *json, json_t **out, error *err);
void word_model_fini(word_model *m);
/* The end of the first part of a word that can be encoded apart from the rest. */
size_t word_model_cut(const word_model *m, const char *word, size_t bytes);

#endif
