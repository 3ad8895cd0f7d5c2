/* dataset_private.h - what the makers of datasets share. Private to engine/text. */
#ifndef ENGINE_TEXT_DATASET_PRIVATE_H
#define ENGINE_TEXT_DATASET_PRIVATE_H

#include "engine/text/dataset.h"
#include "engine/text/labelled_text.h"

/* A stretch of a cached text. */
typedef struct dataset_part {
	token_cache *cache;
	int64_t first, tokens; /* of the cache */
	int64_t blocks;        /* it holds */
	int64_t shown;         /* of them in an epoch */
	int64_t *starts;       /* [blocks]: where in the cache a block begins; NULL: `length` apart */
} dataset_part;

/* Some records of a text, in its order. Memory: a quarter of a byte for each record of the text. */
typedef struct record_choice {
	uint64_t *bits;  /* [words]: of each record of the text; NULL: all are chosen */
	int64_t *before; /* [words + 1]: how many are chosen before a word of bits */
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
	int64_t bytes;
	double entropy;
	uint16_t *token_bytes; /* [vocab] */
	uint8_t *token_space;  /* [vocab]: token_space */
	int32_t sentinels[DATASET_MAX_SENTINELS];
	int n_sentinels;
	tokenizer_frame source_frame;
	/* records of their own entries */
	token_cache *texts, *entries; /* of a record_text */
	int64_t all_records;          /* the text's; the dataset may be a part */
	record_choice chosen;
	int64_t source_length; /* RECORD_PAIR: tokens of a source, at most */
	char **classes;        /* their names in the order of their numbers, NULL-terminated */
	int32_t *numbers;      /* as of a labelled_text */
	int n_classes;
};

/* What a dataset has of its tokenizer. */
void dataset_take_tokenizer(dataset *d, const tokenizer *t);

/* What a dataset of records is made of. */
typedef struct record_source {
	record_kind kind;
	const record_text *text;
	int64_t length, source_length;
	const labelled_text *labels; /* RECORD_LABELLED: the classes */
} record_source;
/* fraction: of the records, that are the second set (labelled_split); 0: there is one set, and valid may be NULL. */
status records_make(dataset **train, dataset **valid, const tokenizer *t, const record_source *x, double fraction,
                    error *err);
/* Record i, which has room in *out. */
status records_read(const dataset *d, int64_t i, text_record *out, error *err);

/* Where x goes in the permutation of 0…n-1 (dataset.h has the algorithm). */
int64_t dataset_permute(int64_t x, int64_t n, uint64_t seed, int64_t epoch);

#endif
