/* session_blob.c - one struct at the front, four arrays, a checksum. */
#include "engine/serve/session_blob.h"

#include <string.h>

#include "engine/base/memory.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blobs are little-endian and written as memory holds them");

enum { BLOB_VERSION = 1, BLOB_EXPLAIN = 4, BLOB_DURABLE = 8, BLOB_FLAGS = 15 };
static const char blob_magic[8] = {'a', 'd', 'd', 's', 't', 'a', 't', 'e'};

typedef struct blob_header {
	char magic[8];
	uint32_t version, flags;
	uint64_t model, tokens, state_floats, vocab, log_floats;
} blob_header;
_Static_assert(sizeof(blob_header) == 56, "the header has no padding");

/* The sizes that follow from a header, in bytes. */
typedef struct blob_sizes {
	int64_t state, logits, ids, log, total;
} blob_sizes;

/* False on overflow. */
static bool blob_measure(const blob_header *h, blob_sizes *out)
{
	int64_t per_token;
	if (h->tokens > INT32_MAX || h->state_floats > INT64_MAX || h->vocab > INT64_MAX || h->log_floats > INT64_MAX)
		return false;
	if (!memory_product((int64_t)h->state_floats, sizeof(float), &out->state) ||
	    !memory_product((int64_t)h->vocab, sizeof(float), &out->logits) ||
	    !memory_product((int64_t)h->tokens, sizeof(int32_t), &out->ids) ||
	    !memory_product((int64_t)h->log_floats, sizeof(float), &per_token) ||
	    !memory_product((int64_t)h->tokens, per_token, &out->log))
		return false;
	out->total = sizeof *h + sizeof(uint64_t);
	return !__builtin_add_overflow(out->total, out->state, &out->total) &&
	       !__builtin_add_overflow(out->total, out->logits, &out->total) &&
	       !__builtin_add_overflow(out->total, out->ids, &out->total) &&
	       !__builtin_add_overflow(out->total, out->log, &out->total);
}

/* The header a session of m with these options and tokens has. */
static blob_header blob_expect(const served_model *m, const session_options *o, int64_t tokens, uint64_t hash)
{
	blob_header h = {
	    .version = BLOB_VERSION,
	    .flags = (uint32_t)o->policy | (o->explain ? BLOB_EXPLAIN : 0) | (o->durable ? BLOB_DURABLE : 0),
	    .model = hash,
	    .tokens = (uint64_t)tokens,
	    .state_floats = statepool_slot_bytes(m->pool) / sizeof(float),
	    .vocab = (uint64_t)model_dimensions(m->model)->outputs,
	    .log_floats = o->explain ? (uint64_t)m->log_floats : 0,
	};
	memcpy(h.magic, blob_magic, sizeof h.magic);
	return h;
}

static unsigned char *put(unsigned char *at, const void *from, int64_t bytes)
{
	if (bytes == 0)
		return at;
	memcpy(at, from, (size_t)bytes);
	return at + bytes;
}

status session_blob_write(session *x, void **out, size_t *bytes, error *err)
{
	uint64_t hash;
	blob_sizes size;
	*out = NULL;
	*bytes = 0;
	TRY(served_model_hash(x->model, &hash, err));
	blob_header h = blob_expect(x->model, &x->options, x->tokens, hash);
	unsigned char *blob = blob_measure(&h, &size) ? memory_new((size_t)size.total, 1) : NULL;
	if (!blob)
		return error_set(err, STATUS_NOMEM, NULL, "no memory to export a session of %lld tokens",
		                 (long long)x->tokens);
	unsigned char *at = put(blob, &h, sizeof h);
	status s = statepool_read(x->model->pool, x->slot, at);
	if (s != STATUS_OK) {
		free(blob);
		return error_set(err, s, NULL, "the state could not be read: %s", status_text(s));
	}
	at = put(at + size.state, x->logits, size.logits);
	at = put(at, x->ids, size.ids);
	at = put(at, x->log, size.log);
	uint64_t sum = served_model_fnv1a(FNV1A_INIT, blob, (size_t)(at - blob));
	put(at, &sum, sizeof sum);
	*out = blob;
	*bytes = (size_t)size.total;
	return STATUS_OK;
}

/* Everything but the arrays: is this a whole blob of a session of m? */
static status blob_check(served_model *m, const unsigned char *blob, size_t bytes, blob_header *h, session_options *o,
                         error *err)
{
	uint64_t sum, hash;
	blob_sizes size;
	if (bytes < sizeof *h + sizeof sum)
		return error_set(err, STATUS_CORRUPT, "state", "too short to be a session state");
	memcpy(h, blob, sizeof *h);
	if (memcmp(h->magic, blob_magic, sizeof h->magic) != 0)
		return error_set(err, STATUS_CORRUPT, "state", "not a session state");
	if (h->version != BLOB_VERSION)
		return error_set(err, STATUS_UNSUPPORTED, "state",
		                 "a session state of version %u; this engine reads %d", (unsigned)h->version,
		                 BLOB_VERSION);
	memcpy(&sum, blob + bytes - sizeof sum, sizeof sum);
	if (sum != served_model_fnv1a(FNV1A_INIT, blob, bytes - sizeof sum))
		return error_set(err, STATUS_CORRUPT, "state", "the session state is damaged or cut off");
	TRY(served_model_hash(m, &hash, err));
	if (h->model != hash)
		return error_set(err, STATUS_INVALID, "state", "the session state belongs to another model");
	*o = (session_options){(position_policy)(h->flags & 3), h->flags & BLOB_EXPLAIN, h->flags & BLOB_DURABLE};
	blob_header expected = blob_expect(m, o, h->tokens <= INT32_MAX ? (int64_t)h->tokens : 0, hash);
	bool possible = o->policy <= POSITION_WRAP && memcmp(h, &expected, sizeof *h) == 0 && blob_measure(h, &size) &&
	                (uint64_t)size.total == bytes;
	if (possible && o->policy == POSITION_ERROR)
		possible = (int64_t)h->tokens <= model_dimensions(m->model)->positions;
	return possible ? STATUS_OK : error_set(err, STATUS_CORRUPT, "state", "the session state contradicts itself");
}

static status session_fill(session *x, const blob_header *h, const unsigned char *blob, error *err)
{
	blob_sizes size;
	blob_measure(h, &size);
	const unsigned char *state = blob + sizeof *h, *logits = state + size.state, *ids = logits + size.logits;
	TRY(session_reserve(x, (int64_t)h->tokens, err));
	put((unsigned char *)x->logits, logits, size.logits);
	put((unsigned char *)x->ids, ids, size.ids);
	put((unsigned char *)x->log, ids + size.ids, size.log);
	for (uint64_t i = 0; i < h->tokens; i++)
		if (x->ids[i] < 0 || (uint64_t)x->ids[i] >= h->vocab)
			return error_set(err, STATUS_CORRUPT, "state", "the session state holds an unknown token");
	x->tokens = (int64_t)h->tokens;
	status s = statepool_write(x->model->pool, x->slot, state);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "the state could not be written: %s", status_text(s));
}

status session_blob_read(session **out, served_model *m, const char *id, const void *blob, size_t bytes, error *err)
{
	blob_header h;
	session_options o;
	session *x = NULL;
	*out = NULL;
	TRY(blob_check(m, blob, bytes, &h, &o, err));
	TRY(session_new(&x, m, id, &o, err));
	status s = session_fill(x, &h, blob, err);
	if (s != STATUS_OK) {
		session_free(x);
		return s;
	}
	*out = x;
	return STATUS_OK;
}
