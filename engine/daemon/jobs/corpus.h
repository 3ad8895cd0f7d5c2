/* corpus.h - from files to datasets. Building maps and tokenises whole files: it belongs on the pool. */
#ifndef ENGINE_DAEMON_JOBS_CORPUS_H
#define ENGINE_DAEMON_JOBS_CORPUS_H

#include <limits.h>

#include "engine/text/dataset.h"

/* What is built. */
typedef struct corpus_texts {
	tokenizer *tokenizer;
	dataset *train, *valid; /* valid is NULL without validation */
} corpus_texts;

typedef struct corpus {
	/* what to build */
	char training[PATH_MAX], validation[PATH_MAX]; /* files; validation may be "" */
	char folder[PATH_MAX];                         /* the model's whose tokenizer is used; "": spec */
	const json_t *spec;                            /* borrowed */
	int64_t vocab, length;
	record_kind records;
	const json_t *classes; /* of labelled records: names in the order of their numbers, borrowed; NULL: those that
	                          occur in the training file */
	double holdout;        /* share of the training file held back for validation when there is no other; 0: none;
	                          negative: CORPUS_HOLDOUT if that leaves a block for both; set to the value used */
	corpus_texts texts;    /* not empty: already built */
	error error;           /* param: training_file, validation_file, additive.… */
} corpus;

#define CORPUS_HOLDOUT 0.1

/* Any thread. */
status corpus_build(corpus *c);
/* Tokens in both datasets. */
int64_t corpus_tokens(const corpus_texts *t);
void corpus_free(corpus_texts *t);

#endif
