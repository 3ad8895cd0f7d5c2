#include "engine/text/record_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/text/corpus_reader.h"

enum { PIECE_BYTES = 1 << 20 };

static void name_entries(const char *path, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%s.entries", path);
}

status record_writer_add(record_writer *w, const int32_t *ids, int64_t count, int32_t number, error *err)
{
	TRY(token_writer_add(w->tokens, ids, NULL, count, err));
	w->end += count;
	w->records++;
	const int32_t entry[RECORD_ENTRY] = {(int32_t)(uint32_t)w->end, (int32_t)(w->end >> 32), number};
	return token_writer_add(w->entries, entry, NULL, RECORD_ENTRY, err);
}

status record_writer_add_words(record_writer *w, const int32_t *words, int64_t n, error *err)
{
	return token_writer_add(w->entries, words, NULL, n, err);
}

static status read_lines(const record_maker *m, byte_source *source, const atomic_bool *cancel, error *err)
{
	corpus_reader *reader;
	corpus_piece piece;
	status s;
	TRY(corpus_reader_new_data(&reader, source, PIECE_BYTES, err));
	do {
		s = corpus_reader_next(reader, &piece, err);
		if (s == STATUS_OK && piece.text)
			s = jsonl_walk(&piece, m->line, m->context, err);
		free(piece.text);
		if (s == STATUS_OK && cancel && atomic_load(cancel))
			s = error_set(err, STATUS_CANCELLED, NULL, "cancelled");
	} while (s == STATUS_OK && piece.text);
	corpus_reader_free(reader);
	return s;
}

static status record_text_finish(const record_maker *m, const corpus_tokens_options *o, record_text *out, error *err)
{
	record_writer *w = m->writer;
	if (w->records == 0)
		return error_set(err, STATUS_INVALID, NULL, "there is no record");
	if (m->finish)
		TRY(m->finish(m->context, err));
	out->records = w->records;
	TRY(token_writer_finish(w->tokens, &out->tokens, err));
	TRY(token_writer_finish(w->entries, &out->entries, err));
	if (o->most > 0 && token_cache_bytes(out->tokens) + token_cache_bytes(out->entries) > o->most)
		return error_set(err, STATUS_FULL, NULL,
		                 "the data budget leaves %lld bytes for the tokens of the text, which are more",
		                 (long long)o->most);
	return STATUS_OK;
}

static status open_writers(record_writer *w, const tokenizer *t, const corpus_tokens_options *o, const char *entries,
                           error *err)
{
	TRY(token_writer_new(&w->tokens, o->path, o->most, o->key, t, false, err));
	return token_writer_new(&w->entries, entries, o->most, o->key, NULL, false, err);
}

status record_text_build(record_text *out, byte_source *source, const tokenizer *t, const record_maker *m,
                         const corpus_tokens_options *o, error *err)
{
	char entries[PATH_MAX] = "";
	record_writer *w = m->writer;
	*out = (record_text){0};
	if (o->path)
		name_entries(o->path, entries);
	status s = open_writers(w, t, o, o->path ? entries : NULL, err);
	if (s == STATUS_OK)
		s = read_lines(m, source, o->cancel, err);
	else
		byte_source_free(source);
	if (s == STATUS_OK) {
		s = record_text_finish(m, o, out, err);
		if (s != STATUS_OK && o->path)
			record_text_unlink(o->path);
	}
	token_writer_free(w->tokens);
	token_writer_free(w->entries);
	*w = (record_writer){0};
	if (s != STATUS_OK)
		record_text_close(out);
	return s;
}

status record_text_open(record_text *out, const char *path, uint64_t key, int32_t vocab, error *err)
{
	char entries[PATH_MAX];
	name_entries(path, entries);
	*out = (record_text){0};
	status s = token_cache_open(&out->tokens, path, key, vocab, err);
	if (s == STATUS_OK)
		s = token_cache_open(&out->entries, entries, key, 0, err);
	if (s == STATUS_OK)
		out->records = token_cache_tokens(out->entries) / RECORD_ENTRY;
	else
		record_text_close(out);
	return s;
}

void record_text_close(record_text *x)
{
	token_cache_free(x->tokens);
	token_cache_free(x->entries);
	*x = (record_text){0};
}

void record_text_unlink(const char *path)
{
	char entries[PATH_MAX];
	name_entries(path, entries);
	unlink(path);
	unlink(entries);
}

bool record_text_rename(const char *from, const char *to)
{
	char old[PATH_MAX], new[PATH_MAX];
	name_entries(from, old);
	name_entries(to, new);
	return rename(old, new) == 0 && rename(from, to) == 0;
}

status record_text_damaged(error *err)
{
	return error_set(err, STATUS_STORAGE, NULL, "the cached records are damaged");
}
