/* bpe.h - the model "BPE": a word begins as its characters, and of all pairs of neighbours that may merge the one of
 * lowest rank does, the leftmost first, until none may.
 *
 * Immutable, thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_BPE_H
#define ENGINE_TEXT_HUGGINGFACE_BPE_H

#include <jansson.h>
#include <stdbool.h>

#include "engine/text/huggingface/merges.h"
#include "engine/text/huggingface/pieces.h"
#include "engine/text/huggingface/vocabulary.h"
#include "engine/text/huggingface/word_room.h"

enum { BPE_MAX_AFFIX = 32 /* bytes */ };

typedef struct bpe {
	const vocabulary *names;
	const bool *special; /* [ids]: tokens that no text becomes, whatever the merges say */
	merges merges;
	bool byte_level;       /* a word's bytes are its characters */
	bool ignore_merges;    /* a word that is a token is that token */
	bool cut_at_metaspace; /* no merge joins a character with a following "▁" */
	bool fuse_unknown;
	char prefix[BPE_MAX_AFFIX + 1]; /* before the name of each character of a word but its first */
	char suffix[BPE_MAX_AFFIX + 1]; /* after the name of its last character */
	int32_t unknown;                /* -1: what has no token is dropped */
	int32_t byte[256];              /* byte_level: the token of a byte; else of ASCII; -1: none */
	int32_t fallback[256];          /* tokens of the bytes of a character without a token; all -1: no fallback */
} bpe;

/* Read the "model" of a tokenizer.json, whose vocabulary is made. names and special must outlive it. After an error `b`
 * is to be freed too. */
status bpe_read(bpe *b, const json_t *model, const vocabulary *names, const bool *special, bool byte_level, error *err);
void bpe_fini(bpe *b);
/* Check what the model asks for before its vocabulary is made. */
status bpe_check(const json_t *model, error *err);
/* The tokens of a word: r->ids and r->lengths, r->count of them. STATUS_NOMEM; STATUS_TOO_LARGE: 4 GB. */
status bpe_encode(const bpe *b, const char *word, size_t bytes, word_room *r);
/* The end of the first part of a text that can be encoded apart from the rest. */
size_t bpe_cut(const bpe *b, const char *text, size_t bytes);

/* The character with which byte-level vocabularies spell a byte. */
uint32_t bpe_spelling(int byte);

#endif
