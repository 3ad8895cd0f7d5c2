/* Datasets of records whose entries are on the disk (record_text.h): texts with a label, pairs, preferences, which have
 * two entries. A dataset shares the
 * files of its text, and where it is one of two holds a bit for each record: whether the record is its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/dataset_private.h"

enum { WORD = 64, ENTRIES = 4096, WINDOW = 1 << 16 /* tokens */ };

/* --- which records ------------------------------------------------------------------------- */

static bool is_chosen(const record_choice *c, int64_t record)
{
	return !c->bits || (c->bits[record / WORD] >> record % WORD & 1);
}

/* Choose, of n records, those in the second set (or not in it): a permutation puts them among the last `second`. */
static status choose(record_choice *c, int64_t n, int64_t second, bool in_second, error *err)
{
	int64_t words = (n + WORD - 1) / WORD;
	c->words = words;
	c->bits = memory_new((size_t)words, sizeof *c->bits);
	c->before = memory_new((size_t)words + 1, sizeof *c->before);
	if (!c->bits || !c->before)
		return error_no_memory(err, "the records of the text");
	for (int64_t i = 0; i < n; i++)
		if ((dataset_permute(i, n, 1, 0) >= n - second) == in_second)
			c->bits[i / WORD] |= UINT64_C(1) << i % WORD;
	for (int64_t w = 0; w < words; w++)
		c->before[w + 1] = c->before[w] + __builtin_popcountll(c->bits[w]);
	return STATUS_OK;
}

/* The number in the text of a dataset's record i. */
static int64_t find_record(const record_choice *c, int64_t i)
{
	int64_t low = 0, high = c->words;
	if (!c->bits)
		return i;
	while (high - low > 1) {
		int64_t middle = low + (high - low) / 2;
		if (c->before[middle] <= i)
			low = middle;
		else
			high = middle;
	}
	uint64_t bits = c->bits[low];
	for (int64_t skip = i - c->before[low]; skip > 0; skip--)
		bits &= bits - 1;
	return low * WORD + __builtin_ctzll(bits);
}

/* --- entries ------------------------------------------------------------------------------------ */

static int64_t entry_end(const int32_t *entry)
{
	return (int64_t)((uint64_t)(uint32_t)entry[1] << 32 | (uint32_t)entry[0]);
}

/* True if a record with `count` tokens can have this number. */
static bool is_number(const dataset *d, int64_t count, int32_t number)
{
	if (d->kind == RECORD_LABELLED)
		return number >= 0 && number < d->n_classes && count <= d->length;
	if (d->kind == RECORD_PREFERENCE)
		return number >= 0 && number <= count && count <= d->length;
	return number >= 0 && number <= d->source_length && number <= count && count - number <= d->length;
}

/* The checksums match, and still nothing may be written outside its place. */
static status check_entry(const dataset *d, int64_t begin, const int32_t *entry, error *err)
{
	int64_t count = entry_end(entry) - begin;
	bool good = count >= 0 && entry_end(entry) <= token_cache_tokens(d->texts) && is_number(d, count, entry[2]);
	return good ? STATUS_OK : record_text_damaged(err);
}

/* Its label, of labelled texts: by the order of the classes. */
static int32_t number_of(const dataset *d, const int32_t *entry)
{
	return d->numbers ? d->numbers[entry[2]] : entry[2];
}

status records_read(const dataset *d, int64_t i, text_record *out, error *err)
{
	enum { MOST = 2 };
	int32_t words[(1 + MOST) * RECORD_ENTRY] = {0}, *entry = words + RECORD_ENTRY;
	const int64_t at = find_record(&d->chosen, i) * d->sequences, first = at > 0 ? at - 1 : 0;
	TRY(token_cache_read(d->entries, first * RECORD_ENTRY, (at + d->sequences - first) * RECORD_ENTRY,
	                     at > 0 ? words : entry, NULL, err));
	const int64_t begin = entry_end(words);
	int64_t end = begin;
	for (int64_t k = 0; k < d->sequences; k++) {
		TRY(check_entry(d, end, entry + k * RECORD_ENTRY, err));
		out->second = end - begin;
		end = entry_end(entry + k * RECORD_ENTRY);
	}
	out->count = end - begin;
	out->not_predicted = NULL;
	*(d->kind == RECORD_LABELLED ? &out->label : &out->source) = number_of(d, entry);
	return token_cache_read(d->texts, begin, out->count, out->ids, NULL, err);
}

/* Call `each` with the entries of the dataset's records in order. */
typedef status (*entry_visit)(void *context, int64_t begin, int64_t end, int32_t number, error *err);

static status walk_entries(const dataset *d, int64_t entries, entry_visit each, void *context, error *err)
{
	int32_t *words = memory_new(ENTRIES * RECORD_ENTRY, sizeof *words);
	status s = words ? STATUS_OK : error_no_memory(err, "the records of the text");
	int64_t begin = 0;
	for (int64_t first = 0; first < entries && s == STATUS_OK; first += ENTRIES) {
		int64_t n = entries - first < ENTRIES ? entries - first : ENTRIES;
		s = token_cache_read(d->entries, first * RECORD_ENTRY, n * RECORD_ENTRY, words, NULL, err);
		for (int64_t i = 0; i < n && s == STATUS_OK; i++) {
			const int32_t *entry = words + i * RECORD_ENTRY;
			s = check_entry(d, begin, entry, err);
			if (s == STATUS_OK && is_chosen(&d->chosen, (first + i) / d->sequences))
				s = each(context, begin, entry_end(entry), number_of(d, entry), err);
			begin = entry_end(entry);
		}
	}
	free(words);
	return s;
}

/* --- lengths ------------------------------------------------------------------------------------- */

typedef struct length_counts {
	bool pairs;
	int64_t *counts, *sources;
} length_counts;

static status count_length(void *context, int64_t begin, int64_t end, int32_t number, error *err)
{
	const length_counts *c = context;
	const int64_t source = c->pairs ? number : 0;
	(void)err;
	c->counts[end - begin - source]++;
	c->sources[source]++;
	return STATUS_OK;
}

status dataset_count_lengths(const dataset *d, int64_t *counts, int64_t *sources, error *err)
{
	length_counts c = {d->kind == RECORD_PAIR, counts, sources};
	return walk_entries(d, d->all_records, count_length, &c, err);
}

/* --- the fingerprint -------------------------------------------------------------------------- */

/* A stretch of the tokens is read at a time. */
typedef struct text_hash {
	const token_cache *tokens;
	uint64_t hash;
	int64_t counted; /* tokens of the dataset */
	int32_t *window; /* [room]: tokens from `first` on */
	int64_t first, held, room;
} text_hash;

static status hash_text(void *context, int64_t begin, int64_t end, int32_t number, error *err)
{
	text_hash *h = context;
	(void)number;
	if (end > h->first + h->held) {
		int64_t left = token_cache_tokens(h->tokens) - begin;
		h->first = begin;
		h->held = left < h->room ? left : h->room;
		TRY(token_cache_read(h->tokens, begin, h->held, h->window, NULL, err));
	}
	h->hash = token_cache_hash_words(h->hash, h->window + begin - h->first, end - begin);
	h->counted += end - begin;
	return STATUS_OK;
}

static status hash_entry(void *context, int64_t begin, int64_t end, int32_t number, error *err)
{
	uint64_t *hash = context;
	(void)err;
	*hash = token_cache_hash_words(*hash, (int32_t[]){(int32_t)(end - begin), number}, 2);
	return STATUS_OK;
}

/* Hash all tokens, the lengths and numbers of the records, and the names of the classes. */
static status make_fingerprint(dataset *d, int64_t records, error *err)
{
	text_hash h = {.tokens = d->texts, .hash = TOKEN_CACHE_HASH_BEGIN, .counted = token_cache_tokens(d->texts)};
	if (d->chosen.bits) {
		h.counted = 0;
		h.room = d->length + d->source_length;
		h.room = h.room > WINDOW ? h.room : WINDOW;
		h.window = memory_new((size_t)h.room, sizeof *h.window);
		status s = h.window ? walk_entries(d, records, hash_text, &h, err)
		                    : error_no_memory(err, "the records of the text");
		free(h.window);
		TRY(s);
	} else {
		TRY(token_cache_hash(d->texts, 0, h.counted, &h.hash, err));
	}
	TRY(walk_entries(d, records, hash_entry, &h.hash, err));
	for (int i = 0; i < d->n_classes; i++)
		for (const char *c = d->classes[i];; c++) {
			h.hash = token_cache_hash_words(h.hash, (int32_t[]){(unsigned char)*c}, 1);
			if (!*c)
				break;
		}
	d->tokens = h.counted;
	d->fingerprint = h.hash;
	return STATUS_OK;
}

/* --- datasets ------------------------------------------------------------------------------ */

static int64_t sequences_of(record_kind k)
{
	return k == RECORD_PREFERENCE ? 2 : 1;
}

static status copy_classes(dataset *d, const labelled_text *x, error *err)
{
	d->classes = memory_new((size_t)x->n_classes + 1, sizeof *d->classes);
	d->numbers = memory_new((size_t)x->n_classes, sizeof *d->numbers);
	if (!d->classes || !d->numbers)
		return error_no_memory(err, "the records of the text");
	d->n_classes = x->n_classes;
	memcpy(d->numbers, x->numbers, (size_t)x->n_classes * sizeof *d->numbers);
	for (int32_t i = 0; i < x->n_classes; i++) {
		d->classes[i] = memory_new(strlen(x->classes[i]) + 1, 1);
		if (!d->classes[i])
			return error_no_memory(err, "the records of the text");
		strcpy(d->classes[i], x->classes[i]);
	}
	return STATUS_OK;
}

/* second: how many records the second set has; 0: there is one set. */
static status make(dataset **out, const tokenizer *t, const record_source *x, int64_t second, bool in_second,
                   error *err)
{
	*out = NULL;
	dataset *d = memory_new(1, sizeof *d);
	if (!d)
		return error_no_memory(err, "the records of the text");
	dataset_take_tokenizer(d, t);
	d->kind = x->kind;
	d->length = x->length;
	d->source_length = x->source_length;
	d->sequences = sequences_of(x->kind);
	d->records = in_second ? second : x->text->records / d->sequences - second;
	d->all_records = x->text->records;
	d->entropy = NAN;
	d->texts = token_cache_share(x->text->tokens);
	d->entries = token_cache_share(x->text->entries);
	status s = x->labels ? copy_classes(d, x->labels, err) : STATUS_OK;
	if (s == STATUS_OK && second > 0)
		s = choose(&d->chosen, x->text->records / d->sequences, second, in_second, err);
	if (s == STATUS_OK)
		s = make_fingerprint(d, x->text->records, err);
	if (s == STATUS_OK)
		*out = d;
	else
		dataset_free(d);
	return s;
}

status records_make(dataset **train, dataset **valid, const tokenizer *t, const record_source *x, double fraction,
                    error *err)
{
	const int64_t records = x->text->records / sequences_of(x->kind);
	int64_t second = (int64_t)(fraction * (double)records);
	*train = NULL;
	if (valid)
		*valid = NULL;
	if (fraction != 0 && second == 0)
		return error_set(err, STATUS_INVALID, "validation_fraction",
		                 "of %lld records leaves none for validation", (long long)records);
	TRY(make(train, t, x, second, false, err));
	status s = second > 0 ? make(valid, t, x, second, true, err) : STATUS_OK;
	if (s != STATUS_OK) {
		dataset_free(*train);
		*train = NULL;
	}
	return s;
}
