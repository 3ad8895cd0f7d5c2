/* One pass over the lines collects tokens and labels; the names of classes are kept in the order of their bytes
 * meanwhile, each with the number of its first appearance, which the records note. At the end these become the classes'
 * numbers. */
#include "engine/text/labelled.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/corpus_reader.h"
#include "engine/text/dataset_private.h"
#include "engine/text/jsonl.h"
#include "engine/text/sequence.h"

enum { PIECE_BYTES = 1 << 20 };

typedef struct class_name {
	char *name;
	int32_t number; /* of its first appearance */
} class_name;

/* Ids while they are collected. */
typedef struct id_list {
	const tokenizer *t;
	int32_t *ids;
	size_t count, capacity;
} id_list;

typedef struct collection {
	id_list ids;
	int64_t length, records, capacity;
	int64_t *first;  /* [records + 1] */
	int32_t *labels; /* [records]: numbers of first appearance */
	class_name *classes;
	int n_classes;
	size_t name_bytes;    /* of all classes */
	bool known;           /* the classes, beforehand */
	bool integers, pairs; /* labels and texts of all records so far */
} collection;

static void collection_free(collection *c)
{
	for (int i = 0; i < c->n_classes; i++)
		free(c->classes[i].name);
	free(c->classes);
	free(c->ids.ids);
	free(c->first);
	free(c->labels);
}

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory for the records of the text");
}

/* --- classes ------------------------------------------------------------------------------- */

/* The place of a name, or where it belongs; *found: it is there. */
static int find_class(const collection *c, const char *name, bool *found)
{
	int low = 0, high = c->n_classes;
	*found = false;
	while (low < high && !*found) {
		int middle = low + (high - low) / 2, order = strcmp(name, c->classes[middle].name);
		*found = order == 0;
		if (order > 0)
			low = middle + 1;
		else
			high = middle;
	}
	return high;
}

/* *number: that of its first appearance. */
static status add_class(collection *c, const char *name, int32_t *number, long line, error *err)
{
	bool found;
	int at = find_class(c, name, &found);
	if (found) {
		*number = c->classes[at].number;
		return STATUS_OK;
	}
	if (c->known)
		return jsonl_refuse(err, line, "\"%.100s\" is not one of the %d labels", name, c->n_classes);
	if (c->n_classes == LABELLED_MAX_CLASSES)
		return jsonl_refuse(err, line, "more than %d labels", LABELLED_MAX_CLASSES);
	c->name_bytes += strlen(name);
	if (line > 0 && c->name_bytes > LABELLED_MAX_NAMES)
		return jsonl_refuse(err, line, "the labels have more than %d bytes together", LABELLED_MAX_NAMES);
	int n = c->n_classes;
	if ((n & (n - 1)) == 0) { /* room for the next power of two */
		class_name *grown = realloc(c->classes, (size_t)(n ? 2 * n : 1) * sizeof *grown);
		if (!grown)
			return no_memory(err);
		c->classes = grown;
	}
	char *copy = memory_new(strlen(name) + 1, 1);
	if (!copy)
		return no_memory(err);
	strcpy(copy, name);
	memmove(c->classes + at + 1, c->classes + at, (size_t)(n - at) * sizeof *c->classes);
	c->classes[at] = (class_name){copy, n};
	c->n_classes++;
	*number = n;
	return STATUS_OK;
}

static status take_known(collection *c, const char *const *classes, error *err)
{
	int32_t number;
	if (!classes)
		return STATUS_OK;
	for (int i = 0; classes[i]; i++)
		TRY(add_class(c, classes[i], &number, 0, err));
	c->known = true;
	return STATUS_OK;
}

/* Make room for `more` ids. */
static status reserve_ids(id_list *list, size_t more, error *err)
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
		return no_memory(err);
	list->ids = grown;
	list->capacity = capacity;
	return STATUS_OK;
}

/* --- lines --------------------------------------------------------------------------------- */

static status reserve_record(collection *c, error *err)
{
	if (c->records < c->capacity)
		return STATUS_OK;
	int64_t capacity = c->capacity ? 2 * c->capacity : 64;
	int64_t *first = realloc(c->first, (size_t)(capacity + 1) * sizeof *first);
	if (!first)
		return no_memory(err);
	c->first = first;
	int32_t *labels = realloc(c->labels, (size_t)capacity * sizeof *labels);
	if (!labels)
		return no_memory(err);
	c->labels = labels;
	c->capacity = capacity;
	return STATUS_OK;
}

/* The text of a label; an integer's is written to `room`. */
static status read_label(collection *c, const json_t *label, long line, const char **out, char room[32], error *err)
{
	bool integer = json_is_integer(label);
	if (!label || json_is_null(label))
		return jsonl_refuse(err, line, "has no \"label\"");
	if (!integer && !json_is_string(label))
		return jsonl_refuse(err, line, "\"label\" must be a string or an integer");
	if (c->records > 0 && integer != c->integers)
		return jsonl_refuse(err, line, "\"label\" is %s, but the lines before have %s",
		                    integer ? "an integer" : "a string", integer ? "strings" : "integers");
	c->integers = integer;
	snprintf(room, 32, "%" JSON_INTEGER_FORMAT, json_integer_value(label));
	*out = integer ? room : json_string_value(label);
	size_t bytes = integer ? strlen(room) : json_string_length(label);
	if (bytes == 0 || bytes > LABELLED_MAX_LABEL || strlen(*out) != bytes)
		return jsonl_refuse(err, line, "\"label\" must have 1 to %d bytes, none of them NUL",
		                    LABELLED_MAX_LABEL);
	return STATUS_OK;
}

static status check_text(const json_t *text, const char *key, long line, error *err)
{
	if (!json_is_string(text))
		return jsonl_refuse(err, line, "needs a string \"%s\"", key);
	if (json_string_length(text) == 0)
		return jsonl_refuse(err, line, "\"%s\" is empty", key);
	return STATUS_OK;
}

static status add_record(void *context, const json_t *object, long line, error *err)
{
	collection *c = context;
	const json_t *text = json_object_get(object, "text"), *second = json_object_get(object, "text_pair");
	const char *label = NULL;
	char room[32];
	int64_t count;
	if (!json_is_object(object))
		return jsonl_refuse(err, line, "not a JSON object; every line needs \"text\" and \"label\"");
	TRY(check_text(text, "text", line, err));
	bool pair = second && !json_is_null(second);
	if (pair)
		TRY(check_text(second, "text_pair", line, err));
	if (c->records > 0 && pair != c->pairs)
		return jsonl_refuse(err, line, "has %s \"text_pair\", unlike the lines before", pair ? "a" : "no");
	c->pairs = pair;
	TRY(read_label(c, json_object_get(object, "label"), line, &label, room, err));
	TRY(reserve_record(c, err));
	TRY(add_class(c, label, &c->labels[c->records], line, err));
	TRY(reserve_ids(&c->ids, (size_t)c->length, err));
	TRY(sequence_encode(c->ids.t, json_string_value(text), json_string_length(text),
	                    pair ? json_string_value(second) : NULL, json_string_length(second), c->length,
	                    c->ids.ids + c->ids.count, &count, err));
	c->first[c->records++] = (int64_t)c->ids.count;
	c->ids.count += (size_t)count;
	c->first[c->records] = (int64_t)c->ids.count;
	return STATUS_OK;
}

static status read_lines(collection *c, byte_source *source, error *err)
{
	corpus_reader *reader;
	corpus_piece piece;
	status s;
	TRY(corpus_reader_new(&reader, source, PIECE_BYTES, corpus_cut_at_line, NULL, err));
	do {
		s = corpus_reader_next(reader, &piece, err);
		if (s == STATUS_OK && piece.text)
			s = jsonl_walk(piece.text, piece.bytes, piece.line, add_record, c, err);
		free(piece.text);
	} while (s == STATUS_OK && piece.text);
	corpus_reader_free(reader);
	return s;
}

/* Takes ownership of the source. */
static status collect(collection *c, byte_source *source, const char *const *classes, error *err)
{
	status s = c->length < SEQUENCE_MIN_LENGTH
	               ? error_set(err, STATUS_INVALID, "sequence_length", "must be at least %d", SEQUENCE_MIN_LENGTH)
	               : take_known(c, classes, err);
	if (s != STATUS_OK) {
		byte_source_free(source);
		return s;
	}
	TRY(read_lines(c, source, err));
	if (c->records == 0)
		return error_set(err, STATUS_INVALID, NULL, "there is no record");
	if (c->n_classes < 2)
		return error_set(err, STATUS_INVALID, NULL, "all labels are \"%.100s\"; there must be at least two",
		                 c->classes[0].name);
	return STATUS_OK;
}

/* --- datasets ------------------------------------------------------------------------------ */

/* Of the ids, where the records end, their labels and the names of the classes. */
static uint64_t hash_records(const dataset *d)
{
	uint64_t hash = token_cache_hash_words(TOKEN_CACHE_HASH_BEGIN, d->ids, d->tokens);
	for (int64_t i = 0; i < d->records; i++)
		hash = token_cache_hash_words(hash, (int32_t[]){(int32_t)(d->first[i + 1] - d->first[i]), d->labels[i]},
		                              2);
	for (int i = 0; d->classes[i]; i++)
		for (const char *c = d->classes[i];; c++) {
			hash = token_cache_hash_words(hash, (int32_t[]){(unsigned char)*c}, 1);
			if (!*c)
				break;
		}
	return hash;
}

/* The dataset of some records of a collection, in order; place[number of first appearance] is a class's number. */
static status make(dataset **out, const collection *c, const int64_t *chosen, int64_t n, const int32_t *place,
                   error *err)
{
	int64_t tokens = 0;
	*out = NULL;
	for (int64_t i = 0; i < n; i++)
		tokens += c->first[chosen[i] + 1] - c->first[chosen[i]];
	dataset *d = memory_new(1, sizeof *d);
	if (!d)
		return no_memory(err);
	*d = (dataset){.kind = RECORD_LABELLED,
	               .ids = memory_new((size_t)tokens, sizeof *d->ids),
	               .tokens = tokens,
	               .length = c->length,
	               .records = n,
	               .vocab = tokenizer_size(c->ids.t),
	               .pad = tokenizer_filler(c->ids.t),
	               .end = tokenizer_end(c->ids.t),
	               .entropy = NAN,
	               .first = memory_new((size_t)n + 1, sizeof *d->first),
	               .labels = memory_new((size_t)n, sizeof *d->labels),
	               .classes = memory_new((size_t)c->n_classes + 1, sizeof *d->classes)};
	bool ok = d->ids && d->first && d->labels && d->classes;
	for (int64_t i = 0; i < n && ok; i++) {
		int64_t from = c->first[chosen[i]], count = c->first[chosen[i] + 1] - from;
		memcpy(d->ids + d->first[i], c->ids.ids + from, (size_t)count * sizeof *d->ids);
		d->first[i + 1] = d->first[i] + count;
		d->labels[i] = place[c->labels[chosen[i]]];
	}
	for (int i = 0; i < c->n_classes && ok; i++) {
		char **copy = &d->classes[place[c->classes[i].number]];
		*copy = memory_new(strlen(c->classes[i].name) + 1, 1);
		ok = *copy && strcpy(*copy, c->classes[i].name);
	}
	if (!ok) {
		dataset_free(d);
		return no_memory(err);
	}
	d->fingerprint = hash_records(d);
	*out = d;
	return STATUS_OK;
}

/* Records by whether they are in the second set; chosen: the first set, and behind it the second. */
static void choose(const collection *c, int64_t second, int64_t *chosen)
{
	int64_t n = c->records, at[2] = {0, n - second};
	for (int64_t i = 0; i < n; i++)
		chosen[at[dataset_permute(i, n, 1, 0) >= n - second]++] = i;
}

static int compare_integers(const void *a, const void *b)
{
	long long x = strtoll(((const class_name *)a)->name, NULL, 10),
	          y = strtoll(((const class_name *)b)->name, NULL, 10);
	return (x > y) - (x < y);
}

/* Classes that were known keep their numbers; others are numbered in their order. */
static int32_t *place_classes(collection *c)
{
	int32_t *place = memory_new((size_t)c->n_classes, sizeof *place);
	if (c->integers && !c->known)
		qsort(c->classes, (size_t)c->n_classes, sizeof *c->classes, compare_integers);
	for (int i = 0; i < c->n_classes && place; i++)
		place[c->classes[i].number] = c->known ? c->classes[i].number : i;
	return place;
}

static status divide(collection *c, int64_t second, dataset **train, dataset **valid, error *err)
{
	int64_t *chosen = memory_new((size_t)c->records, sizeof *chosen);
	int32_t *place = place_classes(c);
	status s = chosen && place ? STATUS_OK : no_memory(err);
	if (s == STATUS_OK) {
		choose(c, second, chosen);
		s = make(train, c, chosen, c->records - second, place, err);
	}
	if (s == STATUS_OK && valid)
		s = make(valid, c, chosen + c->records - second, second, place, err);
	free(chosen);
	free(place);
	return s;
}

/* The number of records that validate. */
static status count_second(const collection *c, double fraction, int64_t *second, error *err)
{
	*second = (int64_t)(fraction * (double)c->records);
	if (fraction == 0 || *second > 0)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "validation_fraction", "of %lld records leaves none for validation",
	                 (long long)c->records);
}

status labelled_read(dataset **train, dataset **valid, const tokenizer *t, byte_source *source, int64_t length,
                     const char *const *classes, double fraction, error *err)
{
	int64_t second;
	*train = NULL;
	if (valid)
		*valid = NULL;
	collection c = {.ids.t = t, .length = length};
	status s = collect(&c, source, classes, err);
	if (s == STATUS_OK)
		s = count_second(&c, fraction, &second, err);
	if (s == STATUS_OK)
		s = divide(&c, second, train, fraction > 0 ? valid : NULL, err);
	if (s != STATUS_OK) {
		dataset_free(*train);
		*train = NULL;
	}
	collection_free(&c);
	return s;
}

status labelled_new(dataset **out, const tokenizer *t, const char *text, size_t bytes, int64_t length,
                    const char *const *classes, error *err)
{
	byte_source *source;
	*out = NULL;
	TRY(byte_source_memory(&source, text, bytes, err));
	return labelled_read(out, NULL, t, source, length, classes, 0, err);
}

status labelled_split(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                      int64_t length, const char *const *classes, double fraction, error *err)
{
	byte_source *source;
	*train = *valid = NULL;
	if (!(fraction > 0 && fraction < 1))
		return error_set(err, STATUS_INVALID, "validation_fraction", "must be between 0 and 1");
	TRY(byte_source_memory(&source, text, bytes, err));
	return labelled_read(train, valid, t, source, length, classes, fraction, err);
}

int labelled_class_count(const dataset *d)
{
	int count = 0;
	while (d->classes && d->classes[count])
		count++;
	return count;
}

const char *const *labelled_classes(const dataset *d)
{
	return (const char *const *)d->classes;
}
