/* session_blob.c - a blob is a header, up to five arrays and a checksum. A transfer copies SESSION_STEP bytes of the
 * arrays a step, in either direction. */
#include "engine/serve/session_blob.h"

#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/memory.h"
#include "engine/serve/served_adapter.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blobs are little-endian and written as memory holds them");

/* A session has version 1 + BLOB_WITH_SOURCE, if it has a source, + BLOB_WITH_SUMS, if its state has running sums. */
enum { BLOB_FIRST_VERSION = 1, BLOB_WITH_SOURCE = 1, BLOB_WITH_SUMS = 2, BLOB_LAST_VERSION = 4 };
enum { BLOB_EXPLAIN = 4, BLOB_DURABLE = 8 };
static const char blob_magic[8] = {'a', 'd', 'd', 's', 't', 'a', 't', 'e'};

typedef struct blob_header {
	char magic[8];
	uint32_t version, flags;
	uint64_t model, tokens, state_floats, vocab, log_floats;
	uint64_t source; /* BLOB_WITH_SOURCE only */
} blob_header;
enum { BLOB_HEADER_BYTES = 56 }; /* without `source` */
_Static_assert(sizeof(blob_header) == BLOB_HEADER_BYTES + sizeof(uint64_t), "the header has no padding");

/* Sizes in bytes that follow from a header. */
typedef struct blob_sizes {
	int64_t state, logits, ids, log, source, total;
} blob_sizes;

static bool blob_has(const blob_header *h, uint32_t what)
{
	return (h->version - BLOB_FIRST_VERSION) & what;
}

static size_t header_bytes(const blob_header *h)
{
	return blob_has(h, BLOB_WITH_SOURCE) ? sizeof *h : BLOB_HEADER_BYTES;
}

/* Read the header of a blob; the shorter header must fit. False: the blob is cut off. */
static bool read_header(blob_header *h, const session_transfer *t)
{
	*h = (blob_header){0};
	memcpy(h, t->blob, BLOB_HEADER_BYTES);
	if (t->bytes < header_bytes(h) + sizeof(uint64_t))
		return false;
	memcpy(h, t->blob, header_bytes(h));
	return true;
}

/* Compute the sizes. False on overflow. */
static bool blob_measure(const blob_header *h, blob_sizes *out)
{
	int64_t per_token;
	if (h->tokens > INT32_MAX || h->source > INT32_MAX || h->state_floats > INT64_MAX || h->vocab > INT64_MAX ||
	    h->log_floats > INT64_MAX)
		return false;
	if (!memory_product((int64_t)h->state_floats, sizeof(float), &out->state) ||
	    !memory_product((int64_t)h->vocab, sizeof(float), &out->logits) ||
	    !memory_product((int64_t)h->tokens, sizeof(int32_t), &out->ids) ||
	    !memory_product((int64_t)h->log_floats, sizeof(float), &per_token) ||
	    !memory_product((int64_t)h->tokens, per_token, &out->log) ||
	    !memory_product((int64_t)h->source, sizeof(int32_t), &out->source))
		return false;
	out->total = (int64_t)(header_bytes(h) + sizeof(uint64_t));
	return !__builtin_add_overflow(out->total, out->state, &out->total) &&
	       !__builtin_add_overflow(out->total, out->logits, &out->total) &&
	       !__builtin_add_overflow(out->total, out->ids, &out->total) &&
	       !__builtin_add_overflow(out->total, out->log, &out->total) &&
	       !__builtin_add_overflow(out->total, out->source, &out->total);
}

/* Return the header that a session of m with these options and tokens has. */
static blob_header blob_expect(const served_model *m, uint32_t version, const session_options *o, int64_t tokens,
                               int64_t source, bool bare)
{
	const state_list *states = model_states(m->model);
	const bool logs = state_list_has_sums(states) && !((version - BLOB_FIRST_VERSION) & BLOB_WITH_SUMS);
	int n;
	const state_piece *pieces = served_model_pieces(m, tokens, false, &n);
	blob_header h = {
	    .version = version,
	    .flags = (uint32_t)o->policy | (o->explain ? BLOB_EXPLAIN : 0) | (o->durable ? BLOB_DURABLE : 0),
	    .model = m->hash ^ served_adapter_hash(o->adapter),
	    .tokens = (uint64_t)tokens,
	    .state_floats = bare   ? state_pieces_bytes(pieces, n) / sizeof(float)
	                    : logs ? (uint64_t)state_list_slot_with_logs(states)
	                           : statepool_slot_bytes(m->pool) / sizeof(float),
	    .vocab = bare ? 0 : (uint64_t)model_dimensions(m->model)->outputs,
	    .log_floats = o->explain ? (uint64_t)m->log_floats : 0,
	    .source = (uint64_t)source,
	};
	memcpy(h.magic, blob_magic, sizeof h.magic);
	return h;
}

/* Version of the blobs that are written for m. */
static uint32_t blob_version(const served_model *m, bool with_source)
{
	return BLOB_FIRST_VERSION + (with_source ? BLOB_WITH_SOURCE : 0) +
	       (state_list_has_sums(model_states(m->model)) ? BLOB_WITH_SUMS : 0);
}

/* Return the header of x in its present state. */
static blob_header blob_of(const session *x, bool bare)
{
	return blob_expect(x->model, blob_version(x->model, x->n_source > 0), &x->options, x->tokens, x->n_source,
	                   bare);
}

/* --- moving ------------------------------------------------------------------------ */

/* Copy n tokens from index `from` on, to or from unaligned bytes of the blob. */
static void move_tokens(token_history *h, size_t from, size_t n, unsigned char *at, bool into_blob)
{
	int32_t some[256];
	for (size_t now; n > 0; from += now, n -= now, at += now * sizeof *some) {
		now = n < sizeof some / sizeof *some ? n : sizeof some / sizeof *some;
		if (into_blob) {
			token_history_read(h, (int64_t)from, (int64_t)now, some);
			memcpy(at, some, now * sizeof *some);
		} else {
			memcpy(some, at, now * sizeof *some);
			token_history_append(h, some, (int64_t)now);
		}
	}
}

/* Copy n bytes of the slot from byte `from` on. Those that no token has written are zero in the blob. */
static status move_state(session *x, int64_t tokens, size_t from, size_t n, unsigned char *at, bool into_blob)
{
	statepool *p = x->model->pool;
	int n_pieces;
	const state_piece *pieces = served_model_pieces(x->model, tokens, true, &n_pieces);
	for (size_t now, piece; n > 0; from += now, n -= now, at += now) {
		const bool written = state_pieces_find(pieces, n_pieces, from, &piece, &now);
		now = now < n ? now : n;
		if (written && x->slot < 0) { /* a held session is never imported */
			const held_run run = held_state_run(&x->held, piece);
			now = now < run.bytes ? now : run.bytes;
			memcpy(at, run.at, now);
		} else if (written) {
			TRY(into_blob ? statepool_read(p, x->slot, from, at, now)
			              : statepool_write(p, x->slot, from, at, now));
		} else if (into_blob) {
			memset(at, 0, now);
		}
	}
	return STATUS_OK;
}

/* Copy a held state to the blob or from there. A state does not need what it found. */
static void move_held(const held_state *h, unsigned char *at, bool into_blob)
{
	held_run run;
	for (size_t moved = 0; moved < h->size; moved += run.bytes, at += run.bytes) {
		run = held_state_run(h, moved);
		if (into_blob)
			memcpy(at, run.at, run.bytes);
		else if (!run.found)
			memcpy(run.at, at, run.bytes);
	}
}

/* Copy a slice of the session's arrays from or to offset `at` of the blob. */
static status blob_copy(session *x, const session_transfer *t, const blob_header *h, const session_slice *slice,
                        bool into_blob)
{
	unsigned char *at = t->blob + t->moved;
	void *arrays[] = {NULL, x->logits, NULL, x->log, x->source};
	size_t from = slice->from, n = slice->bytes;
	if (slice->part == PART_STATE)
		return move_state(x, (int64_t)h->tokens, from, n, at, into_blob);
	if (slice->part == PART_TOKENS) {
		move_tokens(&x->history, from / sizeof(int32_t), n / sizeof(int32_t), at, into_blob);
		return STATUS_OK;
	}
	char *array = (char *)arrays[slice->part] + from;
	memcpy(into_blob ? (char *)at : array, into_blob ? array : (char *)at, n);
	return STATUS_OK;
}

/* Copy the next SESSION_STEP bytes between the session and the blob. */
static status blob_move(session *x, session_transfer *t, bool into_blob)
{
	blob_header h;
	blob_sizes size;
	session_slice slice;
	read_header(&h, t);
	blob_measure(&h, &size);
	const size_t before = header_bytes(&h);
	const size_t parts[SESSION_PARTS] = {(size_t)size.state, (size_t)size.logits, (size_t)size.ids,
	                                     (size_t)size.log, (size_t)size.source};
	for (size_t left = SESSION_STEP; left > 0 && session_next_slice(parts, t->moved - before, left, &slice);
	     left -= slice.bytes) {
		TRY(blob_copy(x, t, &h, &slice, into_blob));
		t->moved += slice.bytes;
	}
	t->done = !session_next_slice(parts, t->moved - before, 1, &slice);
	return STATUS_OK;
}

static status blob_begin(const session *x, session_transfer *t, error *err)
{
	blob_sizes size;
	blob_header h = blob_of(x, false);
	t->blob = blob_measure(&h, &size) ? malloc((size_t)size.total) : NULL;
	if (!t->blob)
		return error_set(err, STATUS_NOMEM, NULL, "no memory to export a session of %lld tokens",
		                 (long long)x->tokens);
	t->bytes = (size_t)size.total;
	t->moved = header_bytes(&h);
	memcpy(t->blob, &h, t->moved);
	return STATUS_OK;
}

status session_blob_write(session *x, session_transfer *t, error *err)
{
	if (!t->blob)
		TRY(blob_begin(x, t, err));
	blob_header h, now = blob_of(x, false);
	read_header(&h, t);
	if (memcmp(&h, &now, sizeof h) != 0)
		return error_set(err, STATUS_DEVICE, NULL, "the device failed while the session was exported");
	status s = blob_move(x, t, true);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "the state could not be read: %s", status_text(s));
}

void scheduler_transfer_seal(session_transfer *t)
{
	size_t before = t->bytes - sizeof(uint64_t);
	uint64_t sum = digest_bytes(t->blob, before);
	memcpy(t->blob + before, &sum, sizeof sum);
}

/* Make *t the blob with this header of a held session, which is given away. */
static status give(session *held, const blob_header *h, session_transfer *t)
{
	blob_sizes size;
	*t = (session_transfer){.blob = malloc(sizeof *h)};
	if (!t->blob || !blob_measure(h, &size)) {
		scheduler_transfer_fini(t);
		session_free(held);
		return STATUS_NOMEM;
	}
	memcpy(t->blob, h, sizeof *h);
	t->bytes = (size_t)size.total;
	t->held = held;
	return STATUS_OK;
}

status session_blob_give(session *held, session_transfer *t)
{
	const blob_header h = blob_of(held, true);
	return give(held, &h, t);
}

status session_blob_leave(session *x, session_transfer *t, error *err)
{
	const blob_header h = blob_of(x, false);
	session *copy;
	TRY(session_snapshot(&copy, x, "", err));
	const status s = give(copy, &h, t);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "no memory to move a session");
}

/* Write a held state as it is in a slot. */
static void write_slot(const held_state *h, unsigned char *at, size_t bytes)
{
	held_run run;
	memset(at, 0, bytes);
	for (size_t moved = 0; moved < h->size; moved += run.bytes) {
		run = held_state_run(h, moved);
		memcpy(at + run.slot, run.at, run.bytes);
	}
}

/* Append an array, which may be NULL if it is empty. */
static unsigned char *add_array(unsigned char *at, const void *array, int64_t bytes)
{
	if (bytes > 0)
		memcpy(at, array, (size_t)bytes);
	return at + bytes;
}

status scheduler_transfer_whole(const session_transfer *t, void **out)
{
	const session *x = t->held;
	blob_header h;
	blob_sizes size;
	unsigned char *at = *out = malloc(t->bytes);
	if (!at)
		return STATUS_NOMEM;
	read_header(&h, t);
	blob_measure(&h, &size);
	at = add_array(at, &h, (int64_t)header_bytes(&h));
	if (h.vocab > 0)
		write_slot(&x->held, at, (size_t)size.state);
	else
		move_held(&x->held, at, true);
	at = add_array(at + size.state, x->logits, size.logits);
	token_history_read(&x->history, 0, (int64_t)h.tokens, (int32_t *)(void *)at);
	at = add_array(at + size.ids, x->log, size.log);
	add_array(at, x->source, size.source);
	scheduler_transfer_seal(&(session_transfer){.blob = *out, .bytes = t->bytes});
	return STATUS_OK;
}

uint64_t scheduler_transfer_model(const session_transfer *t)
{
	blob_header h;
	read_header(&h, t);
	return h.model;
}

void scheduler_transfer_fini(session_transfer *t)
{
	session_free(t->held);
	free(t->blob);
	*t = (session_transfer){0};
}

/* --- reading ----------------------------------------------------------------------- */

status scheduler_transfer_check(const session_transfer *t, error *err)
{
	uint64_t sum;
	blob_header h;
	if (t->bytes < BLOB_HEADER_BYTES + sizeof sum || !read_header(&h, t))
		return error_set(err, STATUS_CORRUPT, "state", "too short to be a session state");
	if (memcmp(h.magic, blob_magic, sizeof h.magic) != 0)
		return error_set(err, STATUS_CORRUPT, "state", "not a session state");
	if (h.version < BLOB_FIRST_VERSION || h.version > BLOB_LAST_VERSION)
		return error_set(err, STATUS_UNSUPPORTED, "state",
		                 "a session state of version %u; this engine reads %d to %d", (unsigned)h.version,
		                 BLOB_FIRST_VERSION, BLOB_LAST_VERSION);
	memcpy(&sum, t->blob + t->bytes - sizeof sum, sizeof sum);
	if (sum != digest_bytes(t->blob, t->bytes - sizeof sum))
		return error_set(err, STATUS_CORRUPT, "state", "the session state is damaged or cut off");
	return STATUS_OK;
}

/* Check that the blob belongs to a session of m. */
static status blob_fits(const served_model *m, const blob_header *h, const session_transfer *t, session_options *o,
                        error *err)
{
	blob_sizes size;
	*o = (session_options){.policy = (position_policy)(h->flags & 3),
	                       .explain = h->flags & BLOB_EXPLAIN,
	                       .durable = h->flags & BLOB_DURABLE,
	                       .adapter = t->held ? t->held->options.adapter : t->adapter};
	const int64_t tokens = h->tokens <= INT32_MAX ? (int64_t)h->tokens : 0;
	const int64_t longest = model_dimensions(m->model)->source;
	const int64_t source = h->source <= (uint64_t)longest ? (int64_t)h->source : 0;
	blob_header expected = blob_expect(m, h->version, o, tokens, source, false);
	if (h->model != expected.model)
		return error_set(err, STATUS_INVALID, "state", "the session state belongs to another model");
	const bool whole = blob_measure(h, &size) && (uint64_t)size.total == t->bytes;
	if (whole && h->state_floats != expected.state_floats)
		return error_set(err, STATUS_UNSUPPORTED, "state",
		                 "the session state has %llu floats, a session of the model here has %llu: another "
		                 "version of the engine wrote it",
		                 (unsigned long long)h->state_floats, (unsigned long long)expected.state_floats);
	bool possible = blob_has(h, BLOB_WITH_SOURCE) == (source > 0) &&
	                (!blob_has(h, BLOB_WITH_SUMS) || state_list_has_sums(model_states(m->model))) &&
	                o->policy <= POSITION_WRAP && memcmp(h, &expected, sizeof *h) == 0 && whole;
	if (possible && o->policy == POSITION_ERROR)
		possible = (int64_t)h->tokens <= model_dimensions(m->model)->positions;
	return possible ? STATUS_OK : error_set(err, STATUS_CORRUPT, "state", "the session state contradicts itself");
}

/* Write a state that has logarithms in place of sums to the slot of x, and count it as moved. */
static status move_logs(const session *x, const blob_header *h, session_transfer *t)
{
	statepool *p = x->model->pool;
	const size_t before = h->state_floats * sizeof(float), bytes = statepool_slot_bytes(p);
	float *from = malloc(before + bytes), *to = from ? from + h->state_floats : NULL;
	status s = from ? STATUS_OK : STATUS_NOMEM;
	if (from) {
		memcpy(from, t->blob + t->moved, before); /* the blob may not be aligned */
		state_list_convert_logs(model_states(x->model->model), from, to);
		s = statepool_write(p, x->slot, 0, to, bytes);
	}
	free(from);
	t->moved += before;
	return s;
}

int64_t session_blob_bare_bytes(const session *x)
{
	blob_sizes size;
	const blob_header h = blob_of(x, true);
	return blob_measure(&h, &size) ? size.total : INT64_MAX;
}

status session_blob_take(session_transfer *t, const void *blob, size_t bytes)
{
	session *x = t->held;
	const session_transfer from = {.blob = (unsigned char *)(uintptr_t)blob, .bytes = bytes};
	if (bytes != t->bytes || memcmp(blob, t->blob, BLOB_HEADER_BYTES) != 0 ||
	    scheduler_transfer_check(&from, NULL) != STATUS_OK)
		return STATUS_CORRUPT;
	const void *ids = from.blob + BLOB_HEADER_BYTES + x->held.size;
	if (token_history_common(&x->history, ids, x->tokens) != x->tokens)
		return STATUS_CORRUPT;
	move_held(&x->held, from.blob + BLOB_HEADER_BYTES, false);
	held_state_end(&x->held);
	t->done = true;
	return STATUS_OK;
}

/* Begin to read a whole blob into x, which is empty. */
static status read_begin(session *x, const blob_header *h, session_transfer *t, error *err)
{
	t->moved = header_bytes(h);
	TRY(session_reserve(x, (int64_t)h->tokens, err));
	if (h->source)
		TRY(session_reserve_source(x, (int64_t)h->source, err));
	if (blob_has(h, BLOB_WITH_SUMS) || !state_list_has_sums(model_states(x->model->model)))
		return STATUS_OK;
	const status s = move_logs(x, h, t);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "the state could not be written: %s", status_text(s));
}

/* Begin to bring x, which is empty, to the held session, which had no model meanwhile. */
static status return_begin(session *x, session_transfer *t, error *err)
{
	t->moved = 0;
	t->held->model = x->model;
	return session_rollback_step(x, t->held, &t->moved, &(bool){false}, err);
}

status session_blob_open(session **out, served_model *m, const char *id, session_transfer *t, error *err)
{
	blob_header h;
	session_options o;
	*out = NULL;
	read_header(&h, t);
	TRY(blob_fits(m, &h, t, &o, err));
	o.durable &= !t->temporary;
	TRY(session_new(out, m, id, &o, err));
	const status s = t->held ? return_begin(*out, t, err) : read_begin(*out, &h, t, err);
	if (s != STATUS_OK) {
		session_free(*out);
		*out = NULL;
	}
	return s;
}

/* Check the ids that the last step has copied to the session. */
static bool ids_are_known(const session *x, const session_transfer *t, size_t from)
{
	blob_header h;
	blob_sizes size;
	read_header(&h, t);
	blob_measure(&h, &size);
	size_t begin = header_bytes(&h) + (size_t)size.state + (size_t)size.logits, end = begin + (size_t)size.ids;
	from = from > begin ? from - begin : 0;
	size_t to = t->moved < begin ? 0 : t->moved < end ? t->moved - begin : (size_t)size.ids;
	const uint64_t vocab = (uint64_t)model_dimensions(x->model->model)->outputs;
	for (size_t i = from / sizeof(int32_t); i < to / sizeof(int32_t); i++)
		if ((uint64_t)token_history_at(&x->history, (int64_t)i) >= vocab) /* also if it is negative */
			return false;
	return true;
}

static bool source_is_known(const session *x, const blob_header *h)
{
	for (uint64_t i = 0; i < h->source; i++)
		if (x->source[i] < 0 || x->source[i] >= model_dimensions(x->model->model)->source_inputs)
			return false;
	return true;
}

status session_blob_read(session *x, session_transfer *t, error *err)
{
	blob_header h;
	size_t from = t->moved;
	if (t->held)
		return session_rollback_step(x, t->held, &t->moved, &t->done, err);
	status s = blob_move(x, t, false);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "the state could not be written: %s", status_text(s));
	read_header(&h, t);
	if (!ids_are_known(x, t, from) || (t->done && !source_is_known(x, &h)))
		return error_set(err, STATUS_CORRUPT, "state", "the session state holds an unknown token");
	if (t->done) {
		x->tokens = (int64_t)h.tokens;
		x->n_source = (int64_t)h.source;
	}
	return STATUS_OK;
}
