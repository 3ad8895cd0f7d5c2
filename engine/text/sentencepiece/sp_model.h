/* sp_model.h - a SentencePiece model: the file (a serialized protocol buffer), read and checked.
 *
 * Unigram, BPE, word and char models. Refused by name (STATUS_UNSUPPORTED): a denormalizer, other model types. A file
 * that is not a model, or contradicts itself, is STATUS_INVALID. Immutable. */
#ifndef ENGINE_TEXT_SENTENCEPIECE_SP_MODEL_H
#define ENGINE_TEXT_SENTENCEPIECE_SP_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/text/charsmap.h"
#include "engine/text/space_mark.h"
#include "engine/text/trie.h"

/* Numbers of the file format. */
typedef enum sp_type { SP_NORMAL = 1, SP_UNKNOWN, SP_CONTROL, SP_USER_DEFINED, SP_UNUSED, SP_BYTE } sp_type;
typedef enum sp_algorithm { SP_UNIGRAM = 1, SP_BPE, SP_WORD, SP_CHAR } sp_algorithm;

typedef struct sp_piece {
	const char *text;
	uint32_t bytes;
	float score;
	sp_type type;
} sp_piece;

typedef struct sp_model {
	sp_piece *pieces; /* texts point into the file */
	int32_t size;
	sp_algorithm algorithm;
	int32_t unknown, begin, end, pad; /* -1: none, but there always is an unknown */
	const char *unknown_surface;      /* text that it decodes to */
	size_t unknown_surface_bytes;
	bool byte_fallback;
	int32_t bytes[256]; /* with byte_fallback: the ids of bytes */

	bool dummy_prefix, remove_extra_whitespaces, escape_whitespaces, whitespace_as_suffix;
	charsmap rules;

	trie vocabulary;      /* pieces that text can become */
	trie user_defined;    /* those which come before everything else; may be empty */
	float lowest_score;   /* lowest score of normal pieces */
	size_t longest;       /* piece, in bytes */
	unsigned char *joins; /* BPE: a set of hashed pairs of characters that are adjacent in some piece */
} sp_model;

/* True if the file looks like a model. */
bool sp_model_recognise(const char *file, size_t bytes);
/* file: borrowed, must live as long as the model. On error *out can be freed. */
status sp_model_read(sp_model *out, const char *file, size_t bytes, error *err);
void sp_model_fini(sp_model *m);

/* The length of the character that begins with this byte, as its first byte says, at most `left`. */
static inline size_t sp_model_character(unsigned char first, size_t left)
{
	size_t n = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
	return n < left ? n : left;
}

/* True if characters a and b may be adjacent within a piece. False only if they never are. BPE only. */
bool sp_model_joins(const sp_model *m, const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/* sp_cut.c: true if a cut before a single space after a letter is always safe. The second text must be encoded as one that
 * continues. */
bool sp_cut_is_safe(const sp_model *m);
/* The last such place before `bytes` with a character after the space; 0: none. */
size_t sp_cut_find(const sp_model *m, const char *text, size_t bytes);

#endif
