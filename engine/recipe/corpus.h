/* corpus.h - from files to datasets. Building reads and tokenizes whole files: it belongs on the pool.
 *
 * The tokens of a text are kept in a file of the data folder's cache (token_cache.h), under a name that follows from
 * what the text and the tokenizer are made of: another job with both, or another run, reads no text; labelled texts and
 * pairs (labelled_text.h, pairs.h) are cut to lengths, which are a part of it. Small texts that are not compressed are
 * tokenized into memory. */
#ifndef ENGINE_RECIPE_CORPUS_H
#define ENGINE_RECIPE_CORPUS_H

#include <limits.h>
#include <stdatomic.h>

#include "engine/store/store.h"
#include "engine/text/dataset.h"

enum { CORPUS_MAX_FILES = 64, CORPUS_SMALL_BYTES = 4 << 20 };

/* What is built. */
typedef struct corpus_texts {
	tokenizer *tokenizer;
	dataset *train, *valid; /* valid is NULL without validation */
} corpus_texts;

/* Where the file of an id lies. Any thread. */
typedef struct corpus_paths {
	void (*path)(const void *context, const char *id, char path[PATH_MAX]);
	const void *context;
} corpus_paths;

typedef struct corpus_file {
	char id[STORE_ID_BYTES];
	double weight;
} corpus_file;

/* Where tokens are kept: borrowed strings. */
typedef struct corpus_cache {
	const char *folder;
	int64_t budget; /* bytes of files that are not in use */
	int64_t room;   /* bytes that the data budget leaves to all of them; INT64_MAX: without limit */
} corpus_cache;

/* Lengths that are bounds: a build lowers them to what the training data need (job_defaults.h). */
typedef struct corpus_fit {
	bool length, source;
	int64_t epochs; /* 0: auto */
} corpus_fit;

typedef struct corpus {
	/* what to build */
	corpus_file training[CORPUS_MAX_FILES];
	size_t n_training;
	char validation[STORE_ID_BYTES]; /* a file; may be "" */
	corpus_paths paths;
	corpus_cache cache;
	char temporary[PATH_MAX - 16]; /* the beginning of names for files that are being written */
	char folder[PATH_MAX];         /* the model's whose tokenizer is used; "": spec */
	const json_t *spec;            /* of a new model's tokenizer (job_tokenizer.h); borrowed */
	const json_t *config;          /* the model's, for its chat template; borrowed */
	int64_t vocab, length;         /* of records */
	int64_t source_length;         /* of pairs: length is that of their targets */
	record_kind records;
	corpus_fit fit;
	bool completions_open; /* a build sets `completions` if all files are conversations */
	bool objective_open;   /* the request names none: lines that fit another are refused */
	const json_t *classes; /* of labelled records: names in the order of their numbers, borrowed; NULL: those that
	                          occur in the training file */
	double holdout;        /* share of the training file held back for validation when there is no other; 0: none;
	                          negative: CORPUS_HOLDOUT if that leaves a block for both; set to the value used */
	bool split_documents, completions, reset_at_document; /* of dataset_options */
	atomic_bool cancel;                                   /* set by any thread: end soon with STATUS_CANCELLED */
	int64_t cut;                                          /* records of the training data that lost their end */
	corpus_texts texts;                                   /* what is there is not built again */
	error error;                                          /* param: training_file, validation_file, additive.… */
} corpus;

#define CORPUS_HOLDOUT 0.1

/* Any thread. */
status corpus_build(corpus *c);
/* The tokens of the one training file as they stand, which no blocks are made of: only its running text is read. Errors
 * in c->error. Any thread. */
status corpus_open_tokens(corpus *c, token_cache **out);
/* How often each of `vocab` token ids is in all texts: *out is malloc'ed. Any thread. */
status corpus_count(const corpus_texts *t, int64_t vocab, int64_t **out, error *err);
/* Bytes of memory of both datasets. */
int64_t corpus_memory(const corpus_texts *t);
void corpus_free(corpus_texts *t);

#endif
