/* fuzz_jsonl - an uploaded file as documents. They are the same for any division into pieces, never contain data read
 * as text, and have the values that the JSON library finds in valid JSON. Every refusal is well-formed. */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/utf8.h"
#include "engine/text/documents.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct outcome {
	status result;
	error err;
	bool compressed, data;
	int64_t values;
	uint64_t digest; /* the values, or the text */
} outcome;

static void require(bool condition)
{
	if (!condition)
		abort();
}

static void add(outcome *o, const char *text, size_t bytes)
{
	const uint64_t both[] = {o->digest, digest_bytes(text, bytes), bytes};
	o->digest = digest_bytes(both, sizeof both);
	o->values++;
}

static void add_value(outcome *o, const json_t *value)
{
	char *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
	require(text);
	add(o, text, strlen(text));
	free(text);
}

static status take_value(void *context, const json_t *value, long line, error *err)
{
	(void)err;
	require(line >= 1);
	add_value(context, value);
	return STATUS_OK;
}

static status take_piece(void *context, const char *text, size_t bytes, const encode_options *how, int kind, error *err)
{
	(void)how, (void)err;
	add(context, text, bytes);
	add(context, kind & DOCUMENT_PROMPT ? "p" : "a", kind & DOCUMENT_LAST ? 1 : 0);
	return STATUS_OK;
}

static status take_chat(const void *context, const json_t *messages, const json_t *tools, long line,
                        document_piece each, void *to, error *err)
{
	(void)context, (void)tools, (void)line, (void)each, (void)err;
	require(json_array_size(messages) > 0);
	add_value(to, messages);
	return STATUS_OK;
}

/* Read the whole; documents: as documents, otherwise as values. */
static outcome read_all(const char *text, size_t bytes, size_t piece_bytes, bool declared, bool documents)
{
	outcome o = {.err = ERROR_INIT};
	byte_source *source;
	corpus_reader *reader;
	corpus_piece piece;
	require(byte_source_memory(&source, text, bytes, NULL) == STATUS_OK);
	o.compressed = byte_source_compressed(source);
	o.result = declared ? corpus_reader_new_data(&reader, source, piece_bytes, &o.err)
	                    : corpus_reader_new(&reader, source, piece_bytes, corpus_cut_at_line, NULL, &o.err);
	if (o.result != STATUS_OK)
		return o;
	o.data = corpus_reader_is_data(reader);
	do {
		o.result = corpus_reader_next(reader, &piece, &o.err);
		if (o.result == STATUS_OK && piece.text && o.data)
			o.result = documents ? documents_read(&piece, take_chat, NULL, take_piece, &o, &o.err)
			                     : jsonl_walk(&piece, take_value, &o, &o.err);
		free(piece.text);
	} while (o.result == STATUS_OK && piece.text);
	corpus_reader_free(reader);
	return o;
}

static void check_refusal(const outcome *o)
{
	long line, column;
	if (o->result == STATUS_OK)
		return;
	require(o->result == STATUS_INVALID && o->err.status == STATUS_INVALID && o->err.message[0]);
	require(utf8_valid_prefix(o->err.message, strlen(o->err.message)) == strlen(o->err.message));
	if (sscanf(o->err.message, "line %ld, column %ld", &line, &column) == 2)
		require(line >= 1 && column >= 1);
}

static long line_of(const outcome *o)
{
	long line = 0;
	sscanf(o->err.message, "line %ld", &line);
	return line;
}

static void same(const outcome *a, const outcome *b)
{
	require(a->result == b->result);
	if (a->compressed && a->result != STATUS_OK && !(line_of(a) && line_of(b)))
		return; /* small pieces find a wrong value before the damage */
	require(line_of(a) == line_of(b) && a->data == b->data && a->values == b->values && a->digest == b->digest);
}

/* A text that is one array is its elements. */
static void compare_with_library(const char *text, size_t bytes, const outcome *values)
{
	outcome expected = {.err = ERROR_INIT};
	size_t i;
	json_t *element;
	json_t *array = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	if (json_is_array(array)) {
		json_array_foreach(array, i, element) add_value(&expected, element);
		require(values->result == STATUS_OK && values->values == expected.values &&
		        values->digest == expected.digest);
	}
	if (json_is_object(array)) {
		add_value(&expected, array);
		require(values->result == STATUS_OK && values->digest == expected.digest);
	}
	json_decref(array);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	const size_t piece_bytes = size < CORPUS_FORM_TAR_BYTES ? 16 : CORPUS_FORM_TAR_BYTES;
	for (int declared = 0; declared < 2; declared++)
		for (int documents = 0; documents < 2; documents++) {
			const outcome whole = read_all(text, size, 1 << 20, declared, documents);
			const outcome pieces = read_all(text, size, piece_bytes + size % 7, declared, documents);
			check_refusal(&whole);
			check_refusal(&pieces);
			same(&whole, &pieces);
			if (declared && !documents)
				compare_with_library(text, size, &whole);
		}
	return 0;
}
