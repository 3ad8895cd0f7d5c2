/* From cached texts to blocks. What has to be known of all tokens (hash, bytes) the caches know; only where a text is
 * divided within a block of its cache, and to find documents, tokens or their flags are read. */
#include <math.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/dataset_private.h"

enum { MIN_LENGTH = 2 /* a block of one token has nothing to predict */, SEARCH = 4096 };

/* --- where documents end -------------------------------------------------------------- */

/* The last offset, at most `at`, where a document begins; 0: only the first one does. */
static status find_document(const token_cache *c, int64_t *at, error *err)
{
	unsigned char flags[SEARCH];
	while (*at > 0) {
		int64_t n = *at < SEARCH ? *at : SEARCH;
		TRY(token_cache_read(c, *at - n, n, NULL, flags, err));
		for (; n > 0; n--, --*at)
			if (flags[n - 1] & TOKEN_LAST)
				return STATUS_OK;
	}
	return STATUS_OK;
}

/* Blocks of one document each; those of a single token are left out. starts NULL: count them only. */
static status walk_documents(const dataset_part *p, int64_t length, int64_t *starts, int64_t *blocks, error *err)
{
	unsigned char flags[SEARCH];
	int64_t begin = 0, n; /* offset of the block in the part */
	*blocks = 0;
	for (int64_t at = 0; at < p->tokens; at += n) {
		n = p->tokens - at < SEARCH ? p->tokens - at : SEARCH;
		TRY(token_cache_read(p->cache, p->first + at, n, NULL, flags, err));
		for (int64_t i = 0; i < n; i++) {
			int64_t end = at + i + 1;
			if (!(flags[i] & TOKEN_LAST) && end - begin < length && end < p->tokens)
				continue;
			if (starts && end - begin >= MIN_LENGTH)
				starts[*blocks] = p->first + begin;
			*blocks += end - begin >= MIN_LENGTH;
			begin = end;
		}
	}
	return STATUS_OK;
}

static status find_starts(dataset_part *p, int64_t length, error *err)
{
	TRY(walk_documents(p, length, NULL, &p->blocks, err));
	p->starts = memory_new((size_t)p->blocks, sizeof *p->starts);
	return p->starts ? walk_documents(p, length, p->starts, &p->blocks, err)
	                 : error_no_memory(err, "the records of the text");
}

/* --- parts ------------------------------------------------------------------------------ */

static status add_part(dataset *d, const dataset_text *text, int64_t first, int64_t tokens, error *err)
{
	dataset_part *p = &d->parts[d->n_parts];
	*p = (dataset_part){.cache = text->tokens, .first = first, .tokens = tokens, .blocks = tokens / d->length};
	if (d->reset_at_document && token_cache_has_documents(text->tokens)) {
		status s = find_starts(p, d->length, err);
		if (s != STATUS_OK) {
			free(p->starts);
			return s;
		}
	}
	double shown = round((double)p->blocks * text->weight);
	p->shown = p->blocks == 0 ? 0 : shown < 1 ? 1 : shown > 0x1p52 ? (int64_t)0x1p52 : (int64_t)shown;
	token_cache_share(p->cache);
	d->n_parts++;
	d->tokens += tokens;
	d->records += p->shown;
	return STATUS_OK;
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

static token_space space_of(const char *text, size_t bytes)
{
	size_t n = 0;
	while (n < bytes && text[n] && strchr(" \t\n\v\f\r", text[n]))
		n++;
	return n == 0 ? SPACE_ELSEWHERE : n < bytes ? SPACE_FIRST : SPACE_ALL;
}

/* Measure the tokens in whole blocks of `length`. */
static status measure_bytes(dataset *d, const tokenizer *t, error *err)
{
	int64_t count[256] = {0}, before[256] = {0};
	for (size_t i = 0; i < d->n_parts; i++) {
		const dataset_part *p = &d->parts[i];
		TRY(token_cache_count_bytes(p->cache, t, p->first, before, err));
		TRY(token_cache_count_bytes(p->cache, t, p->first + p->tokens / d->length * d->length, count, err));
	}
	for (int i = 0; i < 256; i++)
		count[i] -= before[i];
	d->entropy = entropy_of(count);
	d->token_bytes = memory_new((size_t)d->vocab, sizeof *d->token_bytes);
	d->token_space = memory_new((size_t)d->vocab, sizeof *d->token_space);
	if (!d->token_bytes || !d->token_space)
		return error_no_memory(err, "the records of the text");
	for (int32_t id = 0; id < d->vocab; id++) {
		char text[TOKEN_MAX_BYTES];
		size_t bytes = tokenizer_token_bytes(t, id, text, sizeof text);
		d->token_bytes[id] = (uint16_t)(bytes < UINT16_MAX ? bytes : UINT16_MAX);
		d->token_space[id] = (uint8_t)space_of(text, bytes < sizeof text ? bytes : sizeof text);
	}
	return STATUS_OK;
}

/* Hash a single text with weight 1 by its tokens alone. */
static status make_fingerprint(dataset *d, error *err)
{
	uint64_t hash = TOKEN_CACHE_HASH_BEGIN;
	bool plain = d->n_parts == 1 && d->parts[0].shown == d->parts[0].blocks;
	for (size_t i = 0; i < d->n_parts; i++) {
		const dataset_part *p = &d->parts[i];
		uint64_t own;
		TRY(token_cache_hash(p->cache, p->first, p->tokens, &own, err));
		const int32_t words[] = {(int32_t)own, (int32_t)(own >> 32), (int32_t)p->shown,
		                         (int32_t)(p->shown >> 32)};
		hash = plain ? own : token_cache_hash_words(hash, words, 4);
	}
	d->fingerprint = hash;
	return STATUS_OK;
}

/* --- datasets --------------------------------------------------------------------------- */

static status find_prompt(const token_cache *c, bool *found, error *err)
{
	unsigned char flags[SEARCH];
	int64_t tokens = token_cache_has_documents(c) ? token_cache_tokens(c) : 0, n;
	for (int64_t at = 0; at < tokens && !*found; at += n) {
		n = tokens - at < SEARCH ? tokens - at : SEARCH;
		TRY(token_cache_read(c, at, n, NULL, flags, err));
		for (int64_t i = 0; i < n && !*found; i++)
			*found = flags[i] & TOKEN_PROMPT;
	}
	return STATUS_OK;
}

/* STATUS_INVALID unless a record has a token to predict: the first of a block is predicted by none. */
static status check_targets(const dataset *d, const char *what, error *err)
{
	text_record r = {0};
	bool found = !d->completions;
	status s = STATUS_OK;
	for (int64_t i = 0; i < d->records && !found && s == STATUS_OK; i++) {
		s = dataset_record(d, 0, 0, i, &r, err);
		for (int64_t j = 1; s == STATUS_OK && j < r.count && !found; j++)
			found = !r.not_predicted[j];
	}
	text_record_fini(&r);
	TRY(s);
	return found ? STATUS_OK
	             : error_set(err, STATUS_INVALID, "loss_on",
	                         "must be all: no line of the %s has a completion, or none within its blocks", what);
}

/* Number of tokens of a text used for training. */
static status divide(const dataset_text *text, const dataset_options *o, int64_t *out, error *err)
{
	int64_t tokens = token_cache_tokens(text->tokens);
	*out = tokens - (int64_t)(o->held_back * (double)tokens);
	if (o->held_back > 0 && o->split_documents && token_cache_has_documents(text->tokens))
		return find_document(text->tokens, out, err);
	return STATUS_OK;
}

static status dataset_make_fill(dataset *d, const tokenizer *t, const dataset_text *texts, size_t n,
                                const dataset_options *o, bool second, error *err)
{
	const char *what = o->held_back == 0 ? "text" : second ? "validation part" : "training part";
	for (size_t i = 0; i < n; i++) {
		int64_t first;
		TRY(divide(&texts[i], o, &first, err));
		/* Validation reads each text once, whatever its weight in training. */
		const dataset_text once = {texts[i].tokens, 1};
		TRY(second ? add_part(d, &once, first, token_cache_tokens(texts[i].tokens) - first, err)
		           : add_part(d, &texts[i], 0, first, err));
		if (d->parts[i].blocks == 0 && (!second || n == 1)) {
			if (d->parts[i].tokens == 0)
				return error_set(err, STATUS_INVALID, NULL, "the %s is empty", what);
			return error_set(err, STATUS_INVALID, "sequence_length",
			                 "the %s has %lld token%s and needs %lld, the length of a sequence", what,
			                 (long long)d->parts[i].tokens, d->parts[i].tokens == 1 ? "" : "s",
			                 (long long)d->length);
		}
	}
	if (d->records == 0)
		return error_set(err, STATUS_INVALID, "sequence_length",
		                 "no %s has as many tokens as a sequence, which is %lld", what, (long long)d->length);
	TRY(check_targets(d, what, err));
	TRY(measure_bytes(d, t, err));
	return make_fingerprint(d, err);
}

static status dataset_make_all(dataset **out, const tokenizer *t, const dataset_text *texts, size_t n,
                               const dataset_options *o, bool second, error *err)
{
	*out = NULL;
	dataset *d = memory_new(1, sizeof *d);
	if (!d)
		return error_no_memory(err, "the records of the text");
	*d = (dataset){.kind = RECORD_BLOCK,
	               .length = o->length,
	               .completions = o->completions,
	               .reset_at_document = o->reset_at_document,
	               .parts = memory_new(n, sizeof *d->parts)};
	dataset_take_tokenizer(d, t);
	d->n_sentinels = tokenizer_sentinels(t, d->sentinels, DATASET_MAX_SENTINELS);
	status s = d->parts ? tokenizer_source_frame(t, &d->source_frame, err)
	                    : error_no_memory(err, "the records of the text");
	if (s == STATUS_OK)
		s = dataset_make_fill(d, t, texts, n, o, second, err);
	if (s == STATUS_OK)
		*out = d;
	else
		dataset_free(d);
	return s;
}

status dataset_make(dataset **train, dataset **valid, const tokenizer *t, const dataset_text *texts, size_t n,
                    const dataset_options *o, error *err)
{
	*train = NULL;
	if (valid)
		*valid = NULL;
	if (o->length < MIN_LENGTH)
		return error_set(err, STATUS_INVALID, "sequence_length", "must be at least %d", MIN_LENGTH);
	if (!(o->held_back >= 0 && o->held_back < 1))
		return error_set(err, STATUS_INVALID, "validation_fraction", "must be between 0 and 1");
	/* Completions follow prompts: without any, every token would count. */
	bool found = !o->completions;
	for (size_t i = 0; i < n && !found; i++)
		TRY(find_prompt(texts[i].tokens, &found, err));
	if (!found)
		return error_set(err, STATUS_INVALID, "loss_on",
		                 "must be all: no line of the text has a prompt before its completion");
	TRY(dataset_make_all(train, t, texts, n, o, false, err));
	status s = valid && o->held_back > 0 ? dataset_make_all(valid, t, texts, n, o, true, err) : STATUS_OK;
	if (s != STATUS_OK) {
		dataset_free(*train);
		*train = NULL;
	}
	return s;
}
