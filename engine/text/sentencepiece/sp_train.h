/* sp_train.h - C interface to the SentencePiece library's training. It encapsulates the engine's only C++; no exception
 * crosses it. */
#ifndef ENGINE_TEXT_SENTENCEPIECE_SP_TRAIN_H
#define ENGINE_TEXT_SENTENCEPIECE_SP_TRAIN_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sp_train_options {
	const char *model_type, *normalization; /* the library's names; "identity" keeps all spaces, too */
	int vocab_size;
	bool at_most; /* a text that gives fewer pieces is no error (not for "bpe") */
	double character_coverage;
	bool byte_fallback;
	bool tab; /* a tab is a piece of its own; the library never learns one, as it uses it as a separator */
} sp_train_options;

/* Sentence by sentence: false at the end. A sentence is valid until the following call. */
typedef bool sp_train_next(void *context, const char **text, size_t *bytes);

/* Train a model whose ids 0, 1 and 2 are <pad>, </s> and <unk>. The same sentences give the same model, bit for bit, on
 * any number of processors. *model is malloc'ed, NUL-terminated. False: `reason` is the library's message, or "" when
 * memory is short. The library's CHECKs end the process. */
bool sp_train(const sp_train_options *o, sp_train_next *next, void *context, char **model, size_t *bytes, char *reason,
              size_t reason_bytes);

#ifdef __cplusplus
}
#endif

#endif
