#include "engine/text/pairs.h"

#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/text/dataset_private.h"
#include "engine/text/sequence.h"

typedef struct collection {
	const tokenizer *t;
	record_writer writer;
	int32_t *ids; /* ids of a record: [lengths.source + lengths.target] */
	pair_lengths lengths;
} collection;

static status check_text(const json_t *object, const char *key, long line, error *err)
{
	return json_is_string(json_object_get(object, key)) ? STATUS_OK : jsonl_refuse_member(err, line, object, key);
}

static status add_record(void *context, const json_t *object, long line, error *err)
{
	collection *c = context;
	const json_t *source = json_object_get(object, "source"), *target = json_object_get(object, "target");
	int64_t first, second;
	if (!json_is_object(object))
		return jsonl_refuse(err, line, "not a JSON object; every line needs \"source\" and \"target\"");
	TRY(check_text(object, "source", line, err));
	TRY(check_text(object, "target", line, err));
	if (json_string_length(source) == 0)
		return jsonl_refuse(err, line, "\"source\" is empty");
	TRY(sequence_encode_source(c->t, json_string_value(source), json_string_length(source), c->lengths.source,
	                           c->ids, &first, err));
	TRY(sequence_encode_target(c->t, json_string_value(target), json_string_length(target), c->lengths.target,
	                           c->ids + first, &second, err));
	return record_writer_add(&c->writer, c->ids, first + second, (int32_t)first, err);
}

status pairs_build(record_text *out, byte_source *source, const tokenizer *t, pair_lengths lengths,
                   const corpus_tokens_options *o, error *err)
{
	collection c = {.t = t, .lengths = lengths};
	const record_maker maker = {.line = add_record, .writer = &c.writer, .context = &c};
	status s = STATUS_OK;
	*out = (record_text){0};
	if (tokenizer_end(t) == TOKEN_NONE)
		s = error_set(err, STATUS_INVALID, "tokenizer", "it has no token that ends a text, as a target must");
	else if (!(c.ids = memory_new((size_t)(lengths.source + lengths.target), sizeof *c.ids)))
		s = error_set(err, STATUS_NOMEM, NULL, "out of memory for the records of the text");
	if (s == STATUS_OK)
		s = record_text_build(out, source, t, &maker, o, err);
	else
		byte_source_free(source);
	free(c.ids);
	return s;
}

status pairs_make(dataset **train, dataset **valid, const tokenizer *t, const record_text *x, pair_lengths lengths,
                  double fraction, error *err)
{
	const record_source source = {
	    .kind = RECORD_PAIR, .text = x, .length = lengths.target, .source_length = lengths.source};
	return records_make(train, valid, t, &source, fraction, err);
}
