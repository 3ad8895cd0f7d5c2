/* Tokens are read from their caches when a record is requested.
 *
 * The order of an epoch is computed block by block with a small cipher (a Feistel network with cycle walking; Black and
 * Rogaway, "Ciphers with arbitrary finite domains", 2002) instead of one Fisher-Yates shuffle. A shuffle would need an
 * array per epoch and run. A dataset shared by several runs could then not be immutable, and resuming would repeat the
 * shuffle. A walk takes fewer than four rounds of the network on average, since n > 4^(h-1). */
#include "engine/text/dataset.h"

#include <assert.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/philox.h"
#include "engine/text/dataset_private.h"

enum { FEISTEL_ROUNDS = 8 };

void dataset_free(dataset *d)
{
	if (!d)
		return;
	for (size_t i = 0; i < d->n_parts; i++) {
		token_cache_free(d->parts[i].cache);
		free(d->parts[i].starts);
	}
	free(d->parts);
	free(d->token_bytes);
	free(d->token_space);
	token_cache_free(d->texts);
	token_cache_free(d->entries);
	free(d->chosen.bits);
	free(d->chosen.before);
	free(d->numbers);
	for (int i = 0; d->classes && d->classes[i]; i++)
		free(d->classes[i]);
	free(d->classes);
	free(d);
}

void dataset_take_tokenizer(dataset *d, const tokenizer *t)
{
	d->vocab = tokenizer_size(t);
	d->pad = tokenizer_filler(t);
	d->mask = tokenizer_mask(t);
	d->end = tokenizer_end(t);
	d->start = tokenizer_start(t);
}

void text_record_fini(text_record *r)
{
	free(r->ids);
	free(r->flags);
	*r = (text_record){0};
}

record_kind dataset_kind(const dataset *d)
{
	return d->kind;
}

int64_t dataset_length(const dataset *d)
{
	return d->length;
}

int64_t dataset_source_length(const dataset *d)
{
	return d->source_length;
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

int32_t dataset_mask(const dataset *d)
{
	return d->mask;
}

int32_t dataset_start(const dataset *d)
{
	return d->start;
}

const int32_t *dataset_sentinels(const dataset *d, int *count)
{
	*count = d->n_sentinels;
	return d->sentinels;
}

double dataset_byte_entropy(const dataset *d)
{
	return d->entropy;
}

int32_t dataset_vocab(const dataset *d)
{
	return d->vocab;
}

uint64_t dataset_fingerprint(const dataset *d)
{
	return d->fingerprint;
}

int64_t dataset_token_bytes(const dataset *d, int32_t id)
{
	return d->token_bytes[id];
}

token_space dataset_token_space(const dataset *d, int32_t id)
{
	return (token_space)d->token_space[id];
}

bool dataset_begins_word(const dataset *d, int32_t before, int32_t id)
{
	return dataset_token_space(d, id) != SPACE_ELSEWHERE && dataset_token_space(d, before) != SPACE_ALL;
}

const tokenizer_frame *dataset_source_frame(const dataset *d)
{
	return &d->source_frame;
}

int64_t dataset_memory(const dataset *d)
{
	int64_t bytes = 16 * d->chosen.words;
	if (d->kind != RECORD_BLOCK)
		bytes += token_cache_memory(d->texts) + token_cache_memory(d->entries);
	for (size_t i = 0; i < d->n_parts; i++)
		bytes += token_cache_memory(d->parts[i].cache) + (d->parts[i].starts ? 8 * d->parts[i].blocks : 0);
	return bytes;
}

int64_t dataset_room(const dataset *d)
{
	return d->kind == RECORD_PREFERENCE ? 2 * d->length : d->length + d->source_length;
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

/* --- records ------------------------------------------------------------------------ */

status text_record_reserve(text_record *r, int64_t count, error *err)
{
	if (count <= r->room)
		return STATUS_OK;
	text_record_fini(r);
	r->ids = memory_new((size_t)count, sizeof *r->ids);
	r->flags = memory_new((size_t)count, 1);
	if (!r->ids || !r->flags)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory for a record");
	r->room = count;
	return STATUS_OK;
}

/* Up to the end of the document. */
static int64_t count_of_document(const unsigned char *flags, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		if (flags[i] & TOKEN_LAST)
			return i + 1;
	return count;
}

static status read_block(const dataset *d, const dataset_part *p, int64_t block, text_record *out, error *err)
{
	int64_t at = p->starts ? p->starts[block] : p->first + block * d->length;
	int64_t left = p->first + p->tokens - at, count = left < d->length ? left : d->length;
	bool flags = d->completions || d->reset_at_document;
	TRY(token_cache_read(p->cache, at, count, out->ids, flags ? out->flags : NULL, err));
	out->count = d->reset_at_document ? count_of_document(out->flags, count) : count;
	out->not_predicted = d->completions ? out->flags : NULL;
	for (int64_t i = 0; i < out->count && d->completions; i++)
		out->flags[i] = (out->flags[i] & TOKEN_PROMPT) != 0;
	return STATUS_OK;
}

/* The block that is shown at place `at` of an epoch of all parts. */
static const dataset_part *find_block(const dataset *d, uint64_t seed, int64_t epoch, int64_t at, int64_t *block)
{
	size_t k = 0;
	for (; at >= d->parts[k].shown; k++)
		at -= d->parts[k].shown;
	const dataset_part *p = &d->parts[k];
	int64_t number = epoch * p->shown + at; /* among all that were ever shown of this part */
	*block = number % p->blocks;
	if (seed != 0)
		*block = dataset_permute(*block, p->blocks, seed + k, number / p->blocks);
	return p;
}

/* *out: record i, `block` of p, continues the one before it. */
static status continues(const dataset *d, int64_t epoch, int64_t i, const dataset_part *p, int64_t block, bool *out,
                        error *err)
{
	int64_t before;
	unsigned char flag = 0;
	*out = i > 0 && find_block(d, 0, epoch, i - 1, &before) == p && before + 1 == block;
	if (*out && p->starts)
		TRY(token_cache_read(p->cache, p->starts[block] - 1, 1, NULL, &flag, err));
	*out &= !(flag & TOKEN_LAST);
	return STATUS_OK;
}

status dataset_record(const dataset *d, uint64_t seed, int64_t epoch, int64_t i, text_record *out, error *err)
{
	assert(i >= 0 && i < d->records);
	bool mixed = d->n_parts > 1 || (d->n_parts == 1 && d->parts[0].shown != d->parts[0].blocks);
	int64_t place = seed != 0 ? dataset_permute(i, d->records, seed, epoch) : i;
	TRY(text_record_reserve(out, dataset_room(d), err));
	out->continues = false;
	out->number = place;
	if (d->kind != RECORD_BLOCK)
		return records_read(d, place, out, err);
	int64_t block = place;
	const dataset_part *p = mixed ? find_block(d, seed, epoch, place, &block) : &d->parts[0];
	TRY(read_block(d, p, block, out, err));
	return seed == 0 ? continues(d, epoch, i, p, block, &out->continues, err) : STATUS_OK;
}

status dataset_count(const dataset *d, int64_t *counts, error *err)
{
	text_record record = {0};
	status s = STATUS_OK;
	for (int64_t i = 0; i < d->records && s == STATUS_OK; i++) {
		s = dataset_record(d, 0, 0, i, &record, err);
		for (int64_t k = 0; k < record.count && s == STATUS_OK; k++)
			counts[record.ids[k]]++;
	}
	text_record_fini(&record);
	return s;
}
