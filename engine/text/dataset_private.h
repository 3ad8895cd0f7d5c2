/* dataset_private.h - shared by the builders of datasets. Private to engine/text. */
#ifndef ENGINE_TEXT_DATASET_PRIVATE_H
#define ENGINE_TEXT_DATASET_PRIVATE_H

#include "engine/text/dataset.h"
#include "engine/text/labelled_text.h"

/* A stretch of a cached text. */
typedef struct dataset_part {
	token_cache *cache;
	int64_t first, tokens; /* in the cache */
	int64_t blocks;        /* number of blocks in it */
	int64_t shown;         /* number of them shown in an epoch */
	int64_t *starts;       /* [blocks]: cache offset where a block begins; NULL: `length` apart */
} dataset_part;

/* Some records of a text, in its order. Memory: a quarter of a byte for each record of the text. */
typedef struct record_choice {
	uint64_t *bits;  /* [words]: one bit for each record of the text; NULL: all are chosen */
	int64_t *before; /* [words + 1]: number of chosen records before a word of bits */
	int64_t words;
} record_choice;

struct dataset {
	record_kind kind;
	int64_t tokens, length, records;
	int32_t vocab, pad, end, mask, start; /* the tokenizer's */
	uint64_t fingerprint;
	/* blocks */
	dataset_part *parts;
	size_t n_parts;
	bool completions, reset_at_document;
	double entropy;
	uint16_t *token_bytes; /* [vocab] */
	uint8_t *token_space;  /* [vocab]: token_space */
	int32_t sentinels[DATASET_MAX_SENTINELS];
	int n_sentinels;
	tokenizer_frame source_frame;
	/* records: their tokens, and their entries */
	token_cache *texts, *entries; /* those of a record_text */
	int64_t all_records;          /* number of entries of the text; the dataset may be a part */
	int64_t sequences;            /* number in a record; each has an entry */
	record_choice chosen;
	int64_t source_length; /* RECORD_PAIR: maximum number of tokens of a source */
	char **classes;        /* their names by number, NULL-terminated */
	int32_t *numbers;      /* as in a labelled_text */
	int n_classes;
};

/* Copy the tokenizer's properties that a dataset needs. */
void dataset_take_tokenizer(dataset *d, const tokenizer *t);

/* Inputs of a dataset of records. */
typedef struct record_source {
	record_kind kind;
	const record_text *text;
	int64_t length, source_length;
	const labelled_text *labels; /* RECORD_LABELLED: the classes */
} record_source;
/* fraction: share of the records in the second set; 0: one set, and valid may be NULL. */
status records_make(dataset **train, dataset **valid, const tokenizer *t, const record_source *x, double fraction,
                    error *err);
/* Read record i, for which *out has room. */
status records_read(const dataset *d, int64_t i, text_record *out, error *err);

/* Image of x in the permutation of 0…n-1 (dataset.h has the algorithm). */
int64_t dataset_permute(int64_t x, int64_t n, uint64_t seed, int64_t epoch);

#endif
