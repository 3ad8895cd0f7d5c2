/* One pass over the lines writes tokens and entries; the names of classes are kept in the order of their bytes
 * meanwhile, each with the number of its first appearance, which the entries note. How these become the classes'
 * numbers follows from the names, so it is found when a text is opened. */
#include "engine/text/labelled_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/labelled.h"
#include "engine/text/sequence.h"

enum { END_WORDS = 4, INTEGERS = 1, KNOWN = 2 };

typedef struct class_name {
	char *name;
	int32_t number; /* number by first appearance */
} class_name;

typedef struct collection {
	const tokenizer *t;
	record_writer writer;
	int32_t *ids; /* [length]: of a record */
	int64_t length;
	class_name *classes;
	int n_classes;
	size_t name_bytes;    /* total for all classes */
	bool known;           /* the classes, beforehand */
	bool integers, pairs; /* labels and texts of all records so far */
} collection;

/* --- classes ------------------------------------------------------------------------------- */

/* Index of a name, or where it would be inserted; *found: it exists. */
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
			return error_no_memory(err, "the records of the text");
		c->classes = grown;
	}
	char *copy = memory_new(strlen(name) + 1, 1);
	if (!copy)
		return error_no_memory(err, "the records of the text");
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

/* --- lines --------------------------------------------------------------------------------- */

/* The text of a label; an integer's is written to `room`. */
static status read_label(collection *c, const json_t *object, long line, const char **out, char room[32], error *err)
{
	const json_t *label = jsonl_member(object, "label");
	bool integer = json_is_integer(label);
	if (!label)
		return jsonl_refuse_keys(err, line, object, "a \"label\"");
	if (!integer && !json_is_string(label))
		return jsonl_refuse(err, line, "\"label\" must be a string or an integer");
	if (c->writer.records > 0 && integer != c->integers)
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

static status check_text(const json_t *object, const char *key, long line, error *err)
{
	const json_t *text = json_object_get(object, key);
	if (!json_is_string(text))
		return jsonl_refuse_member(err, line, object, key);
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
	int32_t number;
	if (!json_is_object(object))
		return jsonl_refuse(err, line, "not a JSON object; every line needs \"text\" and \"label\"");
	TRY(check_text(object, "text", line, err));
	bool pair = second && !json_is_null(second);
	if (pair)
		TRY(check_text(object, "text_pair", line, err));
	if (c->writer.records > 0 && pair != c->pairs)
		return jsonl_refuse(err, line, "has %s \"text_pair\", unlike the lines before", pair ? "a" : "no");
	c->pairs = pair;
	TRY(read_label(c, object, line, &label, room, err));
	TRY(add_class(c, label, &number, line, err));
	TRY(sequence_encode(c->t, json_string_value(text), json_string_length(text),
	                    pair ? json_string_value(second) : NULL, json_string_length(second), c->length, c->ids,
	                    &count, err));
	return record_writer_add(&c->writer, c->ids, count, number, err);
}

/* --- files --------------------------------------------------------------------------------- */

/* The names in the order of their first appearance, a byte a word and each with a NUL, and the end. */
static status write_end(collection *c, error *err)
{
	const char **names = memory_new((size_t)c->n_classes, sizeof *names);
	status s = names ? STATUS_OK : error_no_memory(err, "the records of the text");
	for (int i = 0; i < c->n_classes && names; i++)
		names[c->classes[i].number] = c->classes[i].name;
	for (int i = 0; i < c->n_classes && s == STATUS_OK; i++)
		for (const char *at = names[i]; s == STATUS_OK; at++) {
			s = record_writer_add_words(&c->writer, (int32_t[]){(unsigned char)*at}, 1, err);
			if (!*at)
				break;
		}
	free(names);
	const int32_t end[END_WORDS] = {(int32_t)(uint32_t)c->writer.records, (int32_t)(c->writer.records >> 32),
	                                c->n_classes, (c->integers ? INTEGERS : 0) | (c->known ? KNOWN : 0)};
	return s == STATUS_OK ? record_writer_add_words(&c->writer, end, END_WORDS, err) : s;
}

static status labelled_text_finish(void *context, error *err)
{
	collection *c = context;
	if (c->n_classes < 2)
		return error_set(err, STATUS_INVALID, NULL, "all labels are \"%.100s\"; there must be at least two",
		                 c->classes[0].name);
	return write_end(c, err);
}

static status labelled_text_begin(collection *c, const char *const *classes, error *err)
{
	if (c->length < SEQUENCE_MIN_LENGTH)
		return error_set(err, STATUS_INVALID, "sequence_length", "must be at least %d", SEQUENCE_MIN_LENGTH);
	c->ids = memory_new((size_t)c->length, sizeof *c->ids);
	return c->ids ? take_known(c, classes, err) : error_no_memory(err, "the records of the text");
}

/* --- opening ---------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
	return strcmp(((const class_name *)a)->name, ((const class_name *)b)->name);
}

static int compare_integers(const void *a, const void *b)
{
	long long x = strtoll(((const class_name *)a)->name, NULL, 10),
	          y = strtoll(((const class_name *)b)->name, NULL, 10);
	return (x > y) - (x < y);
}

/* Order the names, which are concatenated in the order of their first appearance. Known classes keep their numbers;
 * others are numbered in their order. */
static status order_classes(labelled_text *x, int32_t flags, error *err)
{
	class_name *all = memory_new((size_t)x->n_classes, sizeof *all);
	x->classes = memory_new((size_t)x->n_classes + 1, sizeof *x->classes);
	x->numbers = memory_new((size_t)x->n_classes, sizeof *x->numbers);
	status s = all && x->classes && x->numbers ? STATUS_OK : error_no_memory(err, "the records of the text");
	char *at = x->names;
	for (int32_t i = 0; i < x->n_classes && s == STATUS_OK; i++) {
		all[i] = (class_name){at, i};
		at += strlen(at) + 1;
	}
	if (s == STATUS_OK && !(flags & KNOWN))
		qsort(all, (size_t)x->n_classes, sizeof *all, flags & INTEGERS ? compare_integers : compare_names);
	for (int32_t i = 0; i < x->n_classes && s == STATUS_OK; i++) {
		x->classes[i] = all[i].name;
		x->numbers[all[i].number] = i;
	}
	free(all);
	return s;
}

/* They occupy `words` words after the entries. */
static status read_names(labelled_text *x, int64_t words, error *err)
{
	int64_t names = 0;
	int32_t *word = memory_new((size_t)words, sizeof *word);
	x->names = memory_new((size_t)words, 1);
	status s = word && x->names ? STATUS_OK : error_no_memory(err, "the records of the text");
	if (s == STATUS_OK)
		s = token_cache_read(x->text.entries, x->text.records * RECORD_ENTRY, words, word, NULL, err);
	for (int64_t i = 0; i < words && s == STATUS_OK; i++) {
		x->names[i] = (char)word[i];
		names += word[i] == 0;
	}
	free(word);
	return s == STATUS_OK && names != x->n_classes ? record_text_damaged(err) : s;
}

/* Derive the remaining fields from the files. */
static status describe(labelled_text *x, error *err)
{
	int32_t end[END_WORDS];
	int64_t words = token_cache_tokens(x->text.entries) - END_WORDS;
	if (words < 0)
		return record_text_damaged(err);
	TRY(token_cache_read(x->text.entries, words, END_WORDS, end, NULL, err));
	x->text.records = (int64_t)((uint64_t)(uint32_t)end[1] << 32 | (uint32_t)end[0]);
	x->n_classes = end[2];
	if (x->text.records < 1 || x->n_classes < 2 || x->text.records > words / RECORD_ENTRY)
		return record_text_damaged(err);
	TRY(read_names(x, words - x->text.records * RECORD_ENTRY, err));
	return order_classes(x, end[3], err);
}

status labelled_text_build(labelled_text *out, byte_source *source, const tokenizer *t, int64_t length,
                           const char *const *classes, const corpus_tokens_options *o, error *err)
{
	collection c = {.t = t, .length = length};
	const record_maker maker = {
	    .line = add_record, .finish = labelled_text_finish, .writer = &c.writer, .context = &c};
	*out = (labelled_text){0};
	status s = labelled_text_begin(&c, classes, err);
	if (s == STATUS_OK)
		s = record_text_build(&out->text, source, t, &maker, o, err);
	else
		byte_source_free(source);
	if (s == STATUS_OK) {
		s = describe(out, err);
		if (s != STATUS_OK && o->path)
			record_text_unlink(o->path);
	}
	for (int i = 0; i < c.n_classes; i++)
		free(c.classes[i].name);
	free(c.classes);
	free(c.ids);
	if (s != STATUS_OK)
		labelled_text_close(out);
	return s;
}

status labelled_text_open(labelled_text *out, const char *path, uint64_t key, int32_t vocab, error *err)
{
	*out = (labelled_text){0};
	status s = record_text_open(&out->text, path, key, vocab, err);
	if (s == STATUS_OK)
		s = describe(out, err);
	if (s != STATUS_OK)
		labelled_text_close(out);
	return s;
}

void labelled_text_close(labelled_text *x)
{
	record_text_close(&x->text);
	free(x->classes);
	free(x->numbers);
	free(x->names);
	*x = (labelled_text){0};
}
