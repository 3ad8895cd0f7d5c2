/* corpus.h - build datasets from files. Building reads and tokenizes whole files: it must run on the pool.
 *
 * The tokens of a text are kept in a file of the data folder's cache (token_cache.h), whose name is a hash of the text
 * and the tokenizer. Another job with both, or another run, does not read the text again. Labelled texts and pairs
 * (labelled_text.h, pairs.h) are cut to lengths, which are part of the name. Small uncompressed texts are tokenized
 * into memory.
 *
 * A file is renamed into the cache when it is complete, so a crash or a full disk leaves nothing half-written. Every
 * run checks the uploaded files by their hashes, and makes a damaged cache file again. After each new file the least
 * recently used ones that no job has open are removed (cache_folder.h). */
#ifndef ENGINE_RECIPE_CORPUS_H
#define ENGINE_RECIPE_CORPUS_H

#include <limits.h>
#include <stdatomic.h>

#include "engine/store/store.h"
#include "engine/text/dataset.h"

enum { CORPUS_MAX_FILES = 64, CORPUS_SMALL_BYTES = 4 << 20 };

/* The built texts. */
typedef struct corpus_texts {
	tokenizer *tokenizer;
	dataset *train, *valid; /* valid is NULL without validation */
} corpus_texts;

/* Path of the file with an id. Any thread. */
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
	/* inputs */
	corpus_file training[CORPUS_MAX_FILES];
	size_t n_training;
	char validation[STORE_ID_BYTES]; /* a file; may be "" */
	corpus_paths paths;
	corpus_cache cache;
	char temporary[PATH_MAX - 16]; /* the beginning of names for files that are being written */
	char folder[PATH_MAX];         /* the model's whose tokenizer is used; "": spec */
	const json_t *spec;            /* a new model's tokenizer (job_tokenizer.h); borrowed */
	const json_t *config;          /* the model's, for its chat template; borrowed */
	int64_t vocab, length;         /* length of records */
	int64_t source_length;         /* pairs: `length` is that of their targets */
	record_kind records;
	corpus_fit fit;
	bool completions_open; /* a build sets `completions` if all files are conversations */
	bool objective_open;   /* the request names none: lines that fit another are refused */
	const json_t *classes; /* labelled records: names by number, borrowed; NULL: those that occur in the training
	                        * file */
	double holdout;        /* share of the training file held back for validation when there is no other; 0: none;
	                          negative: CORPUS_HOLDOUT if that leaves a block for both; set to the value used */
	bool split_documents, completions, reset_at_document; /* as in dataset_options */
	atomic_bool cancel;                                   /* set by any thread: end soon with STATUS_CANCELLED */
	int64_t cut;                                          /* records of the training data that lost their end */
	corpus_texts texts;                                   /* texts that are present are not built again */
	error error;                                          /* param: training_file, validation_file, additive.… */
} corpus;

#define CORPUS_HOLDOUT 0.1

/* Any thread. */
status corpus_build(corpus *c);
/* Open the tokens of the single training file without making blocks; only running text is possible. Errors in c->error.
 * Any thread. */
status corpus_open_tokens(corpus *c, token_cache **out);
/* Count each of `vocab` token ids in all texts: *out is malloc'ed. Any thread. */
status corpus_count(const corpus_texts *t, int64_t vocab, int64_t **out, error *err);
/* Bytes of memory of both datasets. */
int64_t corpus_memory(const corpus_texts *t);
void corpus_free(corpus_texts *t);

/* Lower the lengths of a corpus, where c->fit says so, to what its training records need, and count those that are
 * longer in c->cut. *changed: the datasets have to be built again. */
status corpus_lengths_fit(corpus *c, bool *changed, error *err);

#endif
