/* word_model.h - the "model" of a tokenizer.json: it makes tokens of a word, as the pre-tokenizer cuts words.
 * Immutable, thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_WORD_MODEL_H
#define ENGINE_TEXT_HUGGINGFACE_WORD_MODEL_H

#include "engine/text/huggingface/bpe.h"
#include "engine/text/huggingface/unigram.h"
#include "engine/text/huggingface/wordlevel.h"
#include "engine/text/huggingface/wordpiece.h"

typedef struct word_model {
	enum { WORD_MODEL_BPE, WORD_MODEL_UNIGRAM, WORD_MODEL_WORDPIECE, WORD_MODEL_WORDLEVEL } type;
	bpe bpe; /* only the member of the type is used */
	unigram unigram;
	wordpiece wordpiece;
	wordlevel wordlevel;
} word_model;

/* Check the type and options before the vocabulary is made. STATUS_UNSUPPORTED by name. */
status word_model_check(word_model *m, const json_t *json, error *err);
/* {name: id} of its vocabulary, as a new reference; NULL after an error. */
status word_model_names(const word_model *m, const json_t *json, json_t **out, error *err);
/* names and special must outlive it. After an error `m` is to be freed too. */
status word_model_read(word_model *m, const json_t *json, const vocabulary *names, const bool *special, bool byte_level,
                       error *err);
void word_model_fini(word_model *m);
/* The id for text without a token; -1: none. */
int32_t word_model_unknown(const word_model *m);
/* The tokens of a word: r->ids and r->lengths, r->count of them. STATUS_NOMEM; STATUS_TOO_LARGE: 4 GB. */
status word_model_encode(const word_model *m, const char *word, size_t bytes, word_room *r);
/* The end of the first part of a word that can be encoded apart from the rest. */
size_t word_model_cut(const word_model *m, const char *word, size_t bytes);
/* True if a word always ends before a SPACE_MARK that follows another character. */
bool word_model_cuts_at_mark(const word_model *m);

#endif
