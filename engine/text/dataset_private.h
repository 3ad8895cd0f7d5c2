/* dataset_private.h - what the makers of datasets share. Private to engine/text. */
#ifndef ENGINE_TEXT_DATASET_PRIVATE_H
#define ENGINE_TEXT_DATASET_PRIVATE_H

#include "engine/text/dataset.h"

struct dataset {
	record_kind kind;
	int32_t *ids; /* of all records, one behind the other */
	int64_t tokens, length, records;
	int32_t vocab, pad, end;
	/* blocks */
	int64_t bytes;
	int64_t *label_bytes; /* [records + 1]: of the blocks before */
	double entropy;
	/* labelled */
	int64_t *first;  /* [records + 1]: where a record begins in ids */
	int32_t *labels; /* [records] */
	char **classes;  /* their names in the order of their numbers, NULL-terminated */
};

/* Ids while they are collected. */
typedef struct id_list {
	const tokenizer *t;
	int32_t *ids;
	size_t count, capacity;
} id_list;

/* Make room for `more` ids. */
status id_list_reserve(id_list *list, size_t more, error *err);

/* Where x goes in the permutation of 0…n-1 (dataset.h has the algorithm). */
int64_t dataset_permute(int64_t x, int64_t n, uint64_t seed, int64_t epoch);

#endif
