/* Tokens are held as one array of ids, four bytes each.
 *
 * The order of an epoch is computed block by block with a small cipher (a Feistel network with
 * cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains", 2002) instead of
 * being drawn once by a Fisher-Yates shuffle: a shuffle would need an array per epoch and run,
 * so a dataset that several runs share could not be immutable, and resuming would
 * repeat it. A walk takes fewer than four rounds of the network on average, since n > 4^(h-1). */
#include "engine/text/dataset.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/philox.h"
#include "engine/text/jsonl.h"
#include "engine/base/utf8.h"

enum {
	MAX_TOKEN_BYTES = 256 /* counted of one token */,
	FEISTEL_ROUNDS = 8,
	MIN_LENGTH = 2 /* a block of one token has nothing to predict */
};

struct dataset {
	int32_t *ids;
	int64_t tokens, length, blocks, bytes;
	int64_t *label_bytes; /* [blocks + 1]: of the blocks before */
	int32_t vocab;
	double entropy;
};

/* Ids while they are collected. */
typedef struct id_list {
	const tokenizer *t;
	int32_t *ids;
	size_t count, capacity;
} id_list;

static status reserve(id_list *list, size_t more, error *err)
{
	if (more <= list->capacity - list->count)
		return STATUS_OK;
	size_t capacity, bytes;
	int32_t *grown = NULL;
	if (!__builtin_add_overflow(list->count, more, &capacity)) {
		capacity = capacity > 2 * list->capacity ? capacity : 2 * list->capacity;
		if (!__builtin_mul_overflow(capacity, sizeof *grown, &bytes))
			grown = realloc(list->ids, bytes);
	}
	if (!grown)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory for the tokens of the text");
	list->ids = grown;
	list->capacity = capacity;
	return STATUS_OK;
}

static status add_piece(void *context, const char *text, size_t bytes, bool last, error *err)
{
	id_list *list = context;
	int32_t *ids;
	size_t count;
	TRY(tokenizer_encode(list->t, text, bytes, &ids, &count, err));
	status s = reserve(list, count + 1, err);
	if (s == STATUS_OK) {
		memcpy(list->ids + list->count, ids, count * sizeof *ids);
		list->count += count;
		if (last)
			list->ids[list->count++] = TOKEN_END;
	}
	free(ids);
	return s;
}

/* Tokenise a whole text, plain or JSON lines; after a failure the list is empty. */
static status collect(id_list *list, const char *text, size_t bytes, error *err)
{
	size_t start = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
	if (jsonl_detect(text + start, bytes - start)) {
		status s = jsonl_read(text + start, bytes - start, add_piece, list, err);
		if (s != STATUS_OK) {
			free(list->ids);
			*list = (id_list){.t = list->t};
		}
		return s;
	}
	size_t valid = utf8_valid_prefix(text, bytes);
	if (valid < bytes)
		return error_set(err, STATUS_INVALID, NULL, "invalid UTF-8 at byte %zu", valid);
	return tokenizer_encode(list->t, text + start, bytes - start, &list->ids, &list->count, err);
}

/* Count the bytes that a token stands for; returns how many. */
static int64_t count_bytes(const tokenizer *t, int32_t id, int64_t count[256])
{
	char bytes[MAX_TOKEN_BYTES];
	size_t n = tokenizer_token_bytes(t, id, bytes, sizeof bytes);
	for (size_t i = 0; i < n && i < sizeof bytes; i++)
		count[(unsigned char)bytes[i]]++;
	return (int64_t)n;
}

static double entropy_of(const int64_t count[256])
{
	double all = 0, bits = 0;
	for (int i = 0; i < 256; i++)
		all += (double)count[i];
	for (int i = 0; i < 256; i++)
		if (count[i] > 0)
			bits -= (double)count[i] / all * log2((double)count[i] / all);
	return bits;
}

/* Make a dataset of `tokens` ids; takes ownership of ids, also on failure. */
static status make(dataset **out, const tokenizer *t, int32_t *ids, int64_t tokens, int64_t length, const char *what,
                   error *err)
{
	dataset *d = memory_new(1, sizeof *d);
	int64_t *label_bytes = memory_new((size_t)(tokens / length + 1), sizeof *label_bytes);
	status s = STATUS_OK;
	*out = NULL;
	if (!d || !ids || !label_bytes)
		s = error_set(err, STATUS_NOMEM, NULL, "out of memory for %lld tokens", (long long)tokens);
	else if (tokens < length)
		s = error_set(err, STATUS_INVALID, "sequence_length", "the %s has %lld tokens, a sequence is %lld",
		              what, (long long)tokens, (long long)length);
	if (s != STATUS_OK) {
		free(d);
		free(ids);
		free(label_bytes);
		return s;
	}
	int64_t count[256] = {0};
	*d = (dataset){ids, tokens, length, tokens / length, 0, label_bytes, tokenizer_size(t), 0};
	for (int64_t i = 0; i < d->blocks * length; i++) {
		const int64_t bytes = count_bytes(t, ids[i], count);
		d->bytes += bytes;
		label_bytes[i / length + 1] += i % length ? bytes : label_bytes[i / length];
	}
	d->entropy = entropy_of(count);
	*out = d;
	return STATUS_OK;
}

static status check_length(int64_t length, error *err)
{
	if (length >= MIN_LENGTH)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "sequence_length", "must be at least %d", MIN_LENGTH);
}

status dataset_new(dataset **out, const tokenizer *t, const char *text, size_t bytes, int64_t length, error *err)
{
	*out = NULL;
	TRY(check_length(length, err));
	id_list list = {.t = t};
	TRY(collect(&list, text, bytes, err));
	return make(out, t, list.ids, (int64_t)list.count, length, "text", err);
}

status dataset_split(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                     int64_t length, double fraction, error *err)
{
	*train = *valid = NULL;
	TRY(check_length(length, err));
	if (!(fraction > 0 && fraction < 1))
		return error_set(err, STATUS_INVALID, "validation_fraction", "must be between 0 and 1");
	id_list list = {.t = t};
	TRY(collect(&list, text, bytes, err));
	int64_t second = (int64_t)(fraction * (double)list.count), first = (int64_t)list.count - second;
	int32_t *tail = memory_new((size_t)second, sizeof *tail);
	if (tail && second > 0)
		memcpy(tail, list.ids + first, (size_t)second * sizeof *tail);
	status s = make(train, t, list.ids, first, length, "training part", err);
	status v = make(valid, t, tail, second, length, "validation part", err);
	if (s == STATUS_OK && v == STATUS_OK)
		return STATUS_OK;
	dataset_free(*train);
	dataset_free(*valid);
	*train = *valid = NULL;
	return s != STATUS_OK ? s : v;
}

void dataset_free(dataset *d)
{
	if (!d)
		return;
	free(d->label_bytes);
	free(d->ids);
	free(d);
}

int64_t dataset_length(const dataset *d)
{
	return d->length;
}

int64_t dataset_blocks(const dataset *d)
{
	return d->blocks;
}

int64_t dataset_tokens(const dataset *d)
{
	return d->tokens;
}

int64_t dataset_bytes(const dataset *d)
{
	return d->bytes;
}

int64_t dataset_label_bytes(const dataset *d, int64_t blocks)
{
	return d->label_bytes[blocks];
}

double dataset_byte_entropy(const dataset *d)
{
	return d->entropy;
}

int32_t dataset_vocab(const dataset *d)
{
	return d->vocab;
}

/* FNV-1a over the ids, a whole id per step. */
uint64_t dataset_fingerprint(const dataset *d)
{
	uint64_t hash = 0xcbf29ce484222325u;
	for (int64_t i = 0; i < d->tokens; i++)
		hash = (hash ^ (uint32_t)d->ids[i]) * 0x100000001b3u;
	return hash;
}

/* Where x goes in the permutation of 0…n-1 (dataset.h has the algorithm). */
static uint64_t permute(uint64_t x, uint64_t n, uint64_t seed, uint32_t epoch)
{
	unsigned half = 1;
	while ((n - 1) >> (2 * half))
		half++;
	uint64_t mask = (UINT64_C(1) << half) - 1;
	do {
		uint64_t l = x >> half, r = x & mask;
		for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
			philox_block f = philox(seed, PHILOX_STREAM_SHUFFLE, epoch, round << 32 | r);
			uint64_t next = l ^ (f.word[0] & mask);
			l = r;
			r = next;
		}
		x = l << half | r;
	} while (x >= n);
	return x;
}

void dataset_block(const dataset *d, uint64_t seed, int64_t epoch, int64_t i, int32_t *ids, int32_t *labels)
{
	assert(i >= 0 && i < d->blocks);
	uint64_t block = (uint64_t)i;
	if (seed != 0)
		block = permute(block, (uint64_t)d->blocks, seed, (uint32_t)epoch);
	const int32_t *from = d->ids + (int64_t)block * d->length;
	size_t bytes = (size_t)d->length * sizeof *ids;
	memcpy(ids, from, bytes);
	memcpy(labels, from + 1, bytes - sizeof *labels);
	labels[d->length - 1] = -1;
}
