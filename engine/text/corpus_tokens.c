/* A ring of slots: the calling thread reads pieces into free slots and writes slots that are done, both in order;
 * workers tokenize any slot that is read. The calling thread tokenizes too when the slot that it would write is not
 * begun, so everything also works without a single worker.
 *
 *     free ──read──▶ READ ──take──▶ TAKEN ──tokenize──▶ DONE ──write──▶ free
 *
 * The first error in the order of the text is the one that is reported. */
#include "engine/text/corpus_tokens.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/memory.h"
#include "engine/base/workers.h"
#include "engine/text/document_tokens.h"

enum { PIECE_BYTES = 1 << 20, WORKER_NICE = 5 };

typedef enum slot_state { SLOT_READ, SLOT_TAKEN, SLOT_DONE } slot_state;

typedef struct slot {
	slot_state state;
	corpus_piece piece;
	bool begins;    /* the first piece of the text */
	bool continues; /* the piece before it was cut where that changes no token */
	int32_t *ids;
	unsigned char *flags; /* NULL: plain text */
	size_t count, room;
	error error;
} slot;

typedef struct build {
	const tokenizer *t;
	const corpus_tokens_options *options;
	corpus_reader *reader;
	token_writer *writer;
	bool data;
	conversation_template conversations;
	pthread_mutex_t lock; /* protects the slots' states and the fields below */
	pthread_cond_t changed;
	slot *slots;
	int n_slots;
	int64_t read, taken, written; /* pieces */
	bool stop;
	bool continues; /* the piece that is read next (tokenizer_cut) */
} build;

static size_t corpus_tokens_cut(const void *context, const char *text, size_t bytes)
{
	return tokenizer_cut(context, text, bytes);
}

/* --- tokenizing a piece ---------------------------------------------------------------- */

static status corpus_tokens_reserve(slot *s, size_t more, error *err)
{
	size_t room = 2 * (s->count + more);
	if (more <= s->room - s->count)
		return STATUS_OK;
	int32_t *ids = realloc(s->ids, room * sizeof *ids);
	if (!ids)
		return error_no_memory(err, "the tokens of the text");
	s->ids = ids;
	unsigned char *flags = realloc(s->flags, room);
	if (!flags)
		return error_no_memory(err, "the tokens of the text");
	s->flags = flags;
	s->room = room;
	return STATUS_OK;
}

typedef struct document_target {
	document_tokens tokens;
	slot *slot;
	size_t begin; /* offset of the document in the slot */
} document_target;

static status add_piece(void *context, const char *text, size_t bytes, const encode_options *how, int kind, error *err)
{
	document_target *d = context;
	slot *s = d->slot;
	token_list tokens;
	unsigned char flags = kind & DOCUMENT_PROMPT ? TOKEN_PROMPT : 0;
	TRY(document_tokens_encode(&d->tokens, text, bytes, how, kind, &tokens, err));
	status result = corpus_tokens_reserve(s, tokens.count + 1, err);
	if (result == STATUS_OK) {
		if (tokens.count > 0)
			memcpy(s->ids + s->count, tokens.ids, tokens.count * sizeof *tokens.ids);
		memset(s->flags + s->count, flags, tokens.count);
		s->count += tokens.count;
		if (kind & DOCUMENT_LAST && s->count > d->begin)
			s->flags[s->count - 1] |= TOKEN_LAST;
		d->begin = kind & DOCUMENT_LAST ? s->count : d->begin;
	}
	token_list_fini(&tokens);
	return result;
}

static status encode_text(const build *b, slot *s)
{
	token_list tokens;
	const encode_options how = {.begin = s->begins, .continues = s->continues, .threads = 1};
	TRY(tokenizer_encode(b->t, s->piece.text, s->piece.bytes, &how, &tokens, &s->error));
	s->ids = tokens.ids;
	s->count = tokens.count;
	return STATUS_OK;
}

static void encode(const build *b, slot *s)
{
	const corpus_piece *p = &s->piece;
	status result;
	if (b->data)
		result = documents_read(p, conversation_pieces, &b->conversations, add_piece,
		                        &(document_target){{.t = b->t}, s, 0}, &s->error);
	else
		result = encode_text(b, s);
	error_settle(&s->error, result);
	free(s->piece.text);
	s->piece.text = NULL;
}

/* --- threads ------------------------------------------------------------------------------ */

/* Tokenize the oldest slot that nothing has taken. With the lock, which is released meanwhile. */
static void corpus_tokens_take(build *b)
{
	slot *s = &b->slots[b->taken++ % b->n_slots];
	s->state = SLOT_TAKEN;
	pthread_mutex_unlock(&b->lock);
	encode(b, s);
	pthread_mutex_lock(&b->lock);
	s->state = SLOT_DONE;
	pthread_cond_broadcast(&b->changed);
}

static void *work(void *context)
{
	build *b = context;
	setpriority(PRIO_PROCESS, (id_t)gettid(), WORKER_NICE); /* serving has priority */
	pthread_mutex_lock(&b->lock);
	while (!b->stop) {
		if (b->taken < b->read)
			corpus_tokens_take(b);
		else
			pthread_cond_wait(&b->changed, &b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

/* Read a piece into a free slot; *ended: there is none. */
static status read_piece(build *b, bool *ended, error *err)
{
	slot *s = &b->slots[b->read % b->n_slots];
	corpus_piece piece;
	TRY(corpus_reader_next(b->reader, &piece, err));
	*ended = !piece.text;
	if (*ended)
		return STATUS_OK;
	*s = (slot){.piece = piece, .begins = b->read == 0, .continues = b->continues, .error = ERROR_INIT};
	b->continues = piece.text[piece.bytes - 1] != '\n';
	pthread_mutex_lock(&b->lock);
	b->read++;
	pthread_cond_signal(&b->changed);
	pthread_mutex_unlock(&b->lock);
	return STATUS_OK;
}

static void empty(slot *s)
{
	free(s->piece.text);
	free(s->ids);
	free(s->flags);
	*s = (slot){0};
}

/* Write the oldest slot, which is tokenized here if it is not yet. */
static status write_piece(build *b, error *err)
{
	slot *s = &b->slots[b->written % b->n_slots];
	pthread_mutex_lock(&b->lock);
	while (s->state != SLOT_DONE) {
		if (b->taken < b->read)
			corpus_tokens_take(b);
		else
			pthread_cond_wait(&b->changed, &b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	b->written++;
	status result = error_set(err, s->error.status, s->error.param, "%s", s->error.message);
	if (result == STATUS_OK)
		result = token_writer_add(b->writer, s->ids, s->flags, (int64_t)s->count, err);
	empty(s);
	return result;
}

static status corpus_tokens_run(build *b, error *err)
{
	bool ended = false;
	while (!ended || b->written < b->read) {
		if (b->options->cancel && atomic_load(b->options->cancel))
			return error_set(err, STATUS_CANCELLED, NULL, "cancelled");
		/* An error of the reader comes after those of the pieces before it. */
		error later = ERROR_INIT;
		status result = STATUS_OK;
		while (!ended && result == STATUS_OK && b->read - b->written < b->n_slots)
			result = read_piece(b, &ended, &later);
		do {
			if (b->written < b->read)
				TRY(write_piece(b, err));
		} while (result != STATUS_OK && b->written < b->read);
		if (result != STATUS_OK)
			return error_set(err, result, later.param, "%s", later.message);
	}
	return STATUS_OK;
}

/* --- the whole ------------------------------------------------------------------------------ */

static status run_with_workers(build *b, int n, error *err)
{
	workers helpers;
	workers_start(&helpers, n, work, b);
	status result = corpus_tokens_run(b, err);
	pthread_mutex_lock(&b->lock);
	b->stop = true;
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
	workers_join(&helpers);
	return result;
}

static status build_all(build *b, token_cache **out, error *err)
{
	int threads = workers_threads(b->options->threads);
	b->n_slots = 2 * threads;
	b->slots = memory_new((size_t)b->n_slots, sizeof *b->slots);
	if (!b->slots)
		return error_no_memory(err, "the tokens of the text");
	TRY(token_writer_new(&b->writer, b->options->path, b->options->most, b->options->key, b->t, b->data, err));
	TRY(run_with_workers(b, threads - 1, err));
	return token_writer_finish(b->writer, out, err);
}

status corpus_tokens_build(token_cache **out, byte_source *source, const tokenizer *t, const corpus_tokens_options *o,
                           error *err)
{
	build b = {.t = t, .options = o, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
	size_t piece = o->piece_bytes ? o->piece_bytes : PIECE_BYTES;
	chat_template *plain = NULL;
	*out = NULL;
	TRY(corpus_reader_new(&b.reader, source, piece, corpus_tokens_cut, t, err));
	b.data = corpus_reader_is_data(b.reader);
	status result = o->chat ? STATUS_OK : chat_template_new(&plain, &(chat_template_source){0}, err);
	b.conversations = o->chat ? *o->chat : (conversation_template){plain, err};
	if (result == STATUS_OK)
		result = build_all(&b, out, err);
	chat_template_free(plain);
	for (int i = 0; i < b.n_slots && b.slots; i++)
		empty(&b.slots[i]);
	free(b.slots);
	token_writer_free(b.writer);
	corpus_reader_free(b.reader);
	return result;
}
