#include "engine/text/long_text.h"

#include <stdatomic.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/workers.h"

enum { PIECE_BYTES = 128 << 10 };

typedef struct text_part {
	size_t first, end;
	token_list tokens;
	error error;
} text_part;

typedef struct long_text {
	const tokenizer *t;
	const char *text;
	size_t bytes;
	const encode_options *options;
	text_part *parts;
	size_t n_parts, room;
	atomic_size_t next; /* the first part that no thread has taken */
	atomic_bool failed;
} long_text;

static status long_text_no_memory(const long_text *l, error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory for the tokens of %zu bytes", l->bytes);
}

/* --- parts ------------------------------------------------------------------------------------------- */

/* The end of the part that begins at `first`. What is searched for a cut doubles until there is one; what has been
 * searched is searched no more. */
static size_t find_end(const long_text *l, size_t first)
{
	const size_t left = l->bytes - first;
	for (size_t n = PIECE_BYTES, from = 0; n < left; n *= 2) {
		const size_t end = l->t->kind->cut(l->t, l->text + first + from, n - from);
		if (end > 0)
			return first + from + end;
		from = n - TOKENIZER_CUT_CONTEXT;
	}
	return l->bytes;
}

static status divide(long_text *l, error *err)
{
	for (size_t at = 0, end; at < l->bytes; at = end) {
		end = find_end(l, at);
		if (!MEMORY_ROOM(l->parts, l->room, l->n_parts + 1))
			return long_text_no_memory(l, err);
		l->parts[l->n_parts++] = (text_part){.first = at, .end = end, .error = ERROR_INIT};
	}
	return STATUS_OK;
}

static void encode_part(long_text *l, text_part *p)
{
	encode_options o = *l->options;
	o.begin &= p->first == 0;
	o.end &= p->end == l->bytes;
	o.continues |= p->first > 0;
	status s = l->t->kind->encode(l->t, l->text + p->first, p->end - p->first, &o, &p->tokens, &p->error);
	error_settle(&p->error, s);
	if (s != STATUS_OK) {
		token_list_fini(&p->tokens);
		atomic_store(&l->failed, true);
	}
}

static void *work(void *context)
{
	long_text *l = context;
	size_t at;
	while (!atomic_load(&l->failed) && (at = atomic_fetch_add(&l->next, 1)) < l->n_parts)
		encode_part(l, &l->parts[at]);
	return NULL;
}

/* Parts are taken in their order, so the first that failed comes before those that nothing was done for. */
static status first_error(const long_text *l, error *err)
{
	for (size_t i = 0; i < l->n_parts; i++) {
		const error *e = &l->parts[i].error;
		if (e->status != STATUS_OK)
			return error_set(err, e->status, e->param, "%s", e->message);
	}
	return STATUS_OK;
}

static status long_text_join(long_text *l, token_list *out, error *err)
{
	size_t count = 0;
	for (size_t i = 0; i < l->n_parts; i++)
		count += l->parts[i].tokens.count;
	out->ids = memory_new(count, sizeof *out->ids);
	out->spans = l->options->spans ? memory_new(count, sizeof *out->spans) : NULL;
	if (!out->ids || (l->options->spans && !out->spans))
		return long_text_no_memory(l, err);
	for (size_t i = 0; i < l->n_parts; i++) {
		text_part *p = &l->parts[i];
		if (p->tokens.count > 0)
			memcpy(out->ids + out->count, p->tokens.ids, p->tokens.count * sizeof *out->ids);
		for (size_t k = 0; out->spans && k < p->tokens.count; k++) {
			const byte_range span = p->tokens.spans[k];
			out->spans[out->count + k] = (byte_range){p->first + span.first, span.bytes};
		}
		out->count += p->tokens.count;
		token_list_fini(&p->tokens);
	}
	return STATUS_OK;
}

/* --- threads ------------------------------------------------------------------------------------------- */

static void share(long_text *l)
{
	static atomic_flag busy = ATOMIC_FLAG_INIT;
	const bool shares = l->n_parts > 1 && !atomic_flag_test_and_set(&busy);
	const size_t threads = shares ? (size_t)workers_threads(l->options->threads) : 1;
	workers helpers;
	workers_start(&helpers, (int)(threads < l->n_parts ? threads : l->n_parts) - 1, work, l);
	work(l);
	workers_join(&helpers);
	if (shares)
		atomic_flag_clear(&busy);
}

status long_text_encode(const tokenizer *t, const char *text, size_t bytes, const encode_options *o, token_list *out,
                        error *err)
{
	long_text l = {.t = t, .text = text, .bytes = bytes, .options = o};
	status s = divide(&l, err);
	if (s == STATUS_OK && l.n_parts == 1) {
		s = t->kind->encode(t, text, bytes, o, out, err);
	} else if (s == STATUS_OK) {
		share(&l);
		s = first_error(&l, err);
		if (s == STATUS_OK)
			s = long_text_join(&l, out, err);
	}
	for (size_t i = 0; i < l.n_parts; i++)
		token_list_fini(&l.parts[i].tokens);
	free(l.parts);
	return s;
}
