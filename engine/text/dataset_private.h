/* dataset_private.h - what the makers of datasets share. Private to engine/text. */
#ifndef ENGINE_TEXT_DATASET_PRIVATE_H
#define ENGINE_TEXT_DATASET_PRIVATE_H

#include "engine/text/dataset.h"

/* A stretch of a cached text. */
typedef struct dataset_part {
	token_cache *cache;
	int64_t first, tokens; /* of the cache */
	int64_t blocks;        /* it holds */
	int64_t shown;         /* of them in an epoch */
	int64_t *starts;       /* [blocks]: where in the cache a block begins; NULL: `length` apart */
} dataset_part;

struct dataset {
	record_kind kind;
	int64_t tokens, length, records;
	int32_t vocab, pad, end;
	uint64_t fingerprint;
	/* blocks */
	dataset_part *parts;
	size_t n_parts;
	bool completions, reset_at_document;
	int64_t bytes;
	double entropy;
	uint16_t *token_bytes; /* [vocab] */
	/* labelled */
	int32_t *ids;    /* of all records, one behind the other */
	int64_t *first;  /* [records + 1]: where a record begins in ids */
	int32_t *labels; /* [records] */
	char **classes;  /* their names in the order of their numbers, NULL-terminated */
};

/* Where x goes in the permutation of 0…n-1 (dataset.h has the algorithm). */
int64_t dataset_permute(int64_t x, int64_t n, uint64_t seed, int64_t epoch);

#endif
