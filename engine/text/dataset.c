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
#include "engine/text/dataset_private.h"
#include "engine/text/jsonl.h"
#include "engine/base/utf8.h"

enum {
	MAX_TOKEN_BYTES = 256 /* counted of one token */,
	FEISTEL_ROUNDS = 8,
	MIN_LENGTH = 2 /* a block of one token has nothing to predict */
};

status id_list_reserve(id_list *list, size_t more, error *err)
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
	status s = id_list_reserve(list, count + 1, err);
	if (s == STATUS_OK) {
		memcpy(list->ids + list->count, ids, count * sizeof *ids);
		list->count += count;
		if (last)
			list->ids[list->count++] = tokenizer_end(list->t);
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
	*d = (dataset){.kind = RECORD_BLOCK,
	               .ids = ids,
	               .tokens = tokens,
	               .length = length,
	               .records = tokens / length,
	               .vocab = tokenizer_size(t),
	               .pad = tokenizer_pad(t),
	               .end = tokenizer_end(t),
	               .label_bytes = label_bytes};
	for (int64_t i = 0; i < d->records * length; i++) {
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
	free(d->first);
	free(d->labels);
	for (int i = 0; d->classes && d->classes[i]; i++)
		free(d->classes[i]);
	free(d->classes);
	free(d->ids);
	free(d);
}

record_kind dataset_kind(const dataset *d)
{
	return d->kind;
}

int64_t dataset_length(const dataset *d)
{
	return d->length;
}

int64_t dataset_records(const dataset *d)
{
	return d->records;
}

int64_t dataset_tokens(const dataset *d)
{
	return d->tokens;
}

int32_t dataset_pad(const dataset *d)
{
	return d->pad;
}

int32_t dataset_end(const dataset *d)
{
	return d->end;
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

/* FNV-1a over words. */
static uint64_t hash_words(uint64_t hash, const int32_t *words, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		hash = (hash ^ (uint32_t)words[i]) * 0x100000001b3u;
	return hash;
}

/* Of blocks the ids alone; of labelled records also where they end, their labels and the names of the classes. */
uint64_t dataset_fingerprint(const dataset *d)
{
	uint64_t hash = hash_words(0xcbf29ce484222325u, d->ids, d->tokens);
	if (d->kind == RECORD_BLOCK)
		return hash;
	for (int64_t i = 0; i < d->records; i++)
		hash = hash_words(hash, (int32_t[]){(int32_t)(d->first[i + 1] - d->first[i]), d->labels[i]}, 2);
	for (int i = 0; d->classes[i]; i++)
		for (const char *c = d->classes[i];; c++) {
			hash = hash_words(hash, (int32_t[]){(unsigned char)*c}, 1);
			if (!*c)
				break;
		}
	return hash;
}

int64_t dataset_permute(int64_t x, int64_t count, uint64_t seed, int64_t epoch)
{
	uint64_t at = (uint64_t)x, n = (uint64_t)count;
	unsigned half = 1;
	while ((n - 1) >> (2 * half))
		half++;
	uint64_t mask = (UINT64_C(1) << half) - 1;
	do {
		uint64_t l = at >> half, r = at & mask;
		for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
			philox_block f = philox(seed, PHILOX_STREAM_SHUFFLE, (uint32_t)epoch, round << 32 | r);
			uint64_t next = l ^ (f.word[0] & mask);
			l = r;
			r = next;
		}
		at = l << half | r;
	} while (at >= n);
	return (int64_t)at;
}

text_record dataset_record(const dataset *d, uint64_t seed, int64_t epoch, int64_t i)
{
	assert(i >= 0 && i < d->records);
	if (seed != 0)
		i = dataset_permute(i, d->records, seed, epoch);
	if (d->kind == RECORD_BLOCK)
		return (text_record){d->ids + i * d->length, d->length, 0};
	return (text_record){d->ids + d->first[i], d->first[i + 1] - d->first[i], d->labels[i]};
}
