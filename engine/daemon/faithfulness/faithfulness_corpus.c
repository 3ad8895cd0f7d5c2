#include "engine/daemon/faithfulness/faithfulness_corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/mask_text.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/recipe/job_check.h"
#include "engine/text/jsonl.h"

typedef struct reader {
	faithfulness_corpus *corpus;
	const model_entry *model;
	const faithfulness_settings *settings;
	bool full; /* stops the reading of JSON lines */
} reader;

/* --- tokens of a text ------------------------------------------------------------------------------ */

status faithfulness_tokens_take(faithfulness_tokens *out, const model_entry *m, token_list *text, error *err)
{
	const int32_t start = m->dims.source ? catalog_start(m) : TOKEN_NONE;
	const size_t first = m->dims.source ? 1 : 0;
	status s = STATUS_OK;
	out->ids = memory_new(text->count + first + 1, sizeof *out->ids);
	if (m->dims.source && start == TOKEN_NONE)
		s = error_set(err, STATUS_INVALID, "model", "neither the model nor its tokenizer has a start token");
	else if (!out->ids)
		s = STATUS_NOMEM;
	if (s == STATUS_OK) {
		out->count = (int64_t)(text->count + first);
		out->ids[0] = start;
		if (text->count > 0)
			memcpy(out->ids + first, text->ids, text->count * sizeof *out->ids);
	}
	token_list_fini(text);
	return s;
}

status faithfulness_tokens_read_source(faithfulness_tokens *out, const model_entry *m, const faithfulness_settings *s,
                                       const char *text, size_t bytes, error *err)
{
	token_list list;
	TRY(mask_text_read(m, text, bytes, (encode_options){.begin = s->begins, .end = s->begins}, &list, err));
	out->source = list.ids;
	out->n_source = (int64_t)list.count;
	return STATUS_OK;
}

status faithfulness_tokens_read(faithfulness_tokens *out, const model_entry *m, const faithfulness_settings *s,
                                const char *text, size_t bytes, error *err)
{
	const bool begins = s->begins && !m->dims.source; /* a decoder's target has its own start token */
	token_list list;
	if (s->mask != TOKEN_NONE)
		TRY(mask_text_read(m, text, bytes, (encode_options){.begin = begins}, &list, err));
	else
		TRY(tokens_of_text(&list, m, text, bytes, begins, err));
	return faithfulness_tokens_take(out, m, &list, err);
}

static void tokens_fini(faithfulness_tokens *t)
{
	free(t->ids);
	free(t->source);
	*t = (faithfulness_tokens){0};
}

/* --- texts of a file ------------------------------------------------------------------------------- */

static int64_t at_most(int64_t count, int64_t most)
{
	return count < most ? count : most;
}

/* Add a text, which is taken over; a text without a position is skipped. */
static void add_tokens(reader *r, faithfulness_tokens *t)
{
	int64_t positions[FAITHFULNESS_MAX_POSITIONS], missing;
	t->count = at_most(t->count, r->settings->max_tokens);
	t->n_source = at_most(t->n_source, at_most(r->settings->max_tokens, r->model->dims.source));
	const bool reads = !t->n_source == !r->model->dims.source;
	if (!reads || faithfulness_settings_positions(r->settings, t, positions, &missing) == 0) {
		tokens_fini(t);
		return;
	}
	r->corpus->texts[r->corpus->n++] = *t;
	r->full = r->corpus->n == r->settings->texts;
}

static status add_text(reader *r, const char *text, size_t bytes, error *err)
{
	faithfulness_tokens t = {0};
	status s = faithfulness_tokens_read(&t, r->model, r->settings, text, bytes, err);
	if (s == STATUS_OK)
		add_tokens(r, &t);
	else
		tokens_fini(&t);
	return s;
}

static status add_pair(reader *r, const json_t *source, const json_t *target, error *err)
{
	faithfulness_tokens t = {0};
	status s = faithfulness_tokens_read_source(&t, r->model, r->settings, json_string_value(source),
	                                           json_string_length(source), err);
	if (s == STATUS_OK)
		s = faithfulness_tokens_read(&t, r->model, r->settings, json_string_value(target),
		                             json_string_length(target), err);
	if (s == STATUS_OK)
		add_tokens(r, &t);
	else
		tokens_fini(&t);
	return s;
}

static status faithfulness_corpus_read_object(void *context, const json_t *object, long line, error *err)
{
	reader *r = context;
	const json_t *text = json_object_get(object, "text"), *source = json_object_get(object, "source"),
	             *target = json_object_get(object, "target");
	if (r->model->dims.source) {
		if (!json_is_string(source) || !json_is_string(target))
			return jsonl_refuse(err, line, "needs strings \"source\" and \"target\"");
		TRY(add_pair(r, source, target, err));
		return r->full ? STATUS_CANCELLED : STATUS_OK;
	}
	if (!json_is_string(text))
		return jsonl_refuse(err, line, "needs a string \"text\"");
	TRY(add_text(r, json_string_value(text), json_string_length(text), err));
	return r->full ? STATUS_CANCELLED : STATUS_OK;
}

static status read_lines(reader *r, const char *text, size_t bytes, error *err)
{
	const char *end = text + bytes;
	for (const char *at = text; at < end && !r->full;) {
		const char *found = memchr(at, '\n', (size_t)(end - at)), *stop = found ? found : end;
		size_t length = (size_t)(stop - at);
		length -= length > 0 && at[length - 1] == '\r';
		TRY(add_text(r, at, length, err));
		at = stop + 1;
	}
	return STATUS_OK;
}

static status read_pieces(reader *r, corpus_reader *from, error *err)
{
	corpus_piece piece;
	status s;
	do {
		s = corpus_reader_next(from, &piece, err);
		if (s == STATUS_OK && piece.text)
			s = corpus_reader_is_data(from) ? jsonl_walk(&piece, faithfulness_corpus_read_object, r, err)
			                                : read_lines(r, piece.text, piece.bytes, err);
		free(piece.text);
	} while (s == STATUS_OK && piece.text && !r->full);
	return r->full && s == STATUS_CANCELLED ? STATUS_OK : s;
}

static status faithfulness_corpus_read_file(reader *r, const char *path, error *err)
{
	enum { PIECE_BYTES = 1 << 16 };
	byte_source *source;
	corpus_reader *from;
	TRY(byte_source_open(&source, path, err));
	TRY(r->model->dims.source ? corpus_reader_new_data(&from, source, PIECE_BYTES, err)
	                          : corpus_reader_new(&from, source, PIECE_BYTES, corpus_cut_at_line, NULL, err));
	status s = read_pieces(r, from, err);
	corpus_reader_free(from);
	return s;
}

status faithfulness_corpus_read(faithfulness_corpus *out, const char *path, const char *id, const model_entry *m,
                                const faithfulness_settings *s, error *err)
{
	reader r = {.corpus = out, .model = m, .settings = s};
	*out = (faithfulness_corpus){.texts = memory_new((size_t)s->texts, sizeof *out->texts)};
	if (!out->texts)
		return STATUS_NOMEM;
	TRY(job_check_blame(err, job_check_file(path, id, err), "file", id));
	status result = faithfulness_corpus_read_file(&r, path, err);
	if (result == STATUS_OK && out->n == 0)
		result = error_set(err, STATUS_INVALID, "file",
		                   s->n_positions == 0 && s->mask != TOKEN_NONE
		                       ? "it has no text with a mask"
		                       : "it has no text with a position to evaluate: one of two tokens");
	if (result == STATUS_INVALID)
		snprintf(err->param, sizeof err->param, "file");
	return result;
}

void faithfulness_corpus_fini(faithfulness_corpus *c)
{
	for (int64_t i = 0; i < c->n; i++)
		tokens_fini(&c->texts[i]);
	free(c->texts);
	*c = (faithfulness_corpus){0};
}
