#include "engine/text/token_cache.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/text/token_cache_format.h"

struct token_cache {
	atomic_int references;
	int fd;
	bool memory;
	int64_t bytes; /* size of the file */
	token_footer footer;
	token_block *index;
	atomic_uchar *verified; /* [blocks] */
	char name[80];
};

static status token_cache_damaged(const char *name, const char *reason, error *err)
{
	return error_set(err, STATUS_STORAGE, NULL, "the cached tokens %s are damaged: %s", name, reason);
}

/* Less is damage: the size was checked. */
static status read_at(int fd, const char *name, void *out, size_t bytes, int64_t at, error *err)
{
	char *to = out;
	while (bytes > 0) {
		ssize_t n = pread(fd, to, bytes, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return file_error(err, name, "cannot read");
		if (n == 0)
			return token_cache_damaged(name, "they end too early", err);
		to += n;
		at += n;
		bytes -= (size_t)n;
	}
	return STATUS_OK;
}

/* --- opening ------------------------------------------------------------------------ */

static int64_t file_bytes(const token_footer *f)
{
	int64_t blocks = token_block_total(f), bytes = (int64_t)sizeof *f + blocks * (int64_t)sizeof(token_block);
	for (int64_t i = blocks > 1 ? blocks - 1 : 0; i < blocks; i++)
		bytes += (int64_t)token_block_bytes(f, token_block_count(f, i));
	return bytes + (blocks > 1 ? blocks - 1 : 0) * (int64_t)token_block_bytes(f, TOKEN_BLOCK);
}

static status read_footer(token_cache *c, uint64_t key, int32_t vocab, error *err)
{
	const token_footer *f = &c->footer;
	struct stat st;
	if (fstat(c->fd, &st) != 0)
		return file_error(err, c->name, "cannot look at");
	c->bytes = st.st_size;
	if (c->bytes < (int64_t)sizeof *f)
		return token_cache_damaged(c->name, "they end too early", err);
	TRY(read_at(c->fd, c->name, &c->footer, sizeof *f, c->bytes - (int64_t)sizeof *f, err));
	if (memcmp(f->magic, TOKEN_CACHE_MAGIC, sizeof f->magic) != 0 || f->version != TOKEN_CACHE_VERSION ||
	    f->digest != digest_bytes(f, offsetof(token_footer, digest)))
		return token_cache_damaged(c->name, "the end of the file is not what was written", err);
	if (f->key != key || f->vocab != (uint32_t)vocab)
		return token_cache_damaged(c->name, "they are of another text or tokenizer", err);
	return c->bytes == file_bytes(f) ? STATUS_OK : token_cache_damaged(c->name, "the file has another size", err);
}

static status read_index(token_cache *c, error *err)
{
	size_t blocks = (size_t)token_block_total(&c->footer), bytes = blocks * sizeof *c->index;
	c->index = memory_new(blocks, sizeof *c->index);
	c->verified = memory_new(blocks, sizeof *c->verified);
	if (!c->index || !c->verified)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	TRY(read_at(c->fd, c->name, c->index, bytes, c->bytes - (int64_t)(sizeof c->footer + bytes), err));
	return digest_bytes(c->index, bytes) == c->footer.index_digest
	           ? STATUS_OK
	           : token_cache_damaged(c->name, "the index has changed", err);
}

status token_cache_adopt(token_cache **out, int fd, const char *name, bool memory, uint64_t key, int32_t vocab,
                         error *err)
{
	const char *slash = strrchr(name, '/');
	*out = NULL;
	token_cache *c = memory_new(1, sizeof *c);
	if (!c) {
		close(fd);
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	}
	atomic_init(&c->references, 1);
	c->fd = fd;
	c->memory = memory;
	snprintf(c->name, sizeof c->name, "%s", slash ? slash + 1 : name);
	if (!memory)
		flock(fd, LOCK_SH | LOCK_NB); /* fails only beside a removal, which leaves us the file without a name */
	status s = read_footer(c, key, vocab, err);
	if (s == STATUS_OK)
		s = read_index(c, err);
	if (s == STATUS_OK)
		*out = c;
	else
		token_cache_free(c);
	return s;
}

status token_cache_open(token_cache **out, const char *path, uint64_t key, int32_t vocab, error *err)
{
	*out = NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return file_error(err, path, "cannot open");
	futimens(fd, NULL);
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	return token_cache_adopt(out, fd, path, false, key, vocab, err);
}

token_cache *token_cache_share(token_cache *c)
{
	atomic_fetch_add(&c->references, 1);
	return c;
}

void token_cache_free(token_cache *c)
{
	if (!c || atomic_fetch_sub(&c->references, 1) > 1)
		return;
	close(c->fd);
	free(c->index);
	free(c->verified);
	free(c);
}

int64_t token_cache_tokens(const token_cache *c)
{
	return (int64_t)c->footer.tokens;
}

bool token_cache_has_documents(const token_cache *c)
{
	return c->footer.documents;
}

int64_t token_cache_bytes(const token_cache *c)
{
	return c->bytes;
}

int64_t token_cache_memory(const token_cache *c)
{
	return c->memory ? c->bytes : 0;
}

/* --- reading ------------------------------------------------------------------------- */

static int64_t block_at(const token_cache *c, int64_t block)
{
	return block * (int64_t)token_block_bytes(&c->footer, TOKEN_BLOCK);
}

static status verify(const token_cache *c, int64_t block, error *err)
{
	if (atomic_load_explicit(&c->verified[block], memory_order_relaxed))
		return STATUS_OK;
	uint64_t digest;
	if (!digest_file(c->fd, block_at(c, block), token_block_bytes(&c->footer, token_block_count(&c->footer, block)),
	                 &digest))
		return errno ? file_error(err, c->name, "cannot read")
		             : token_cache_damaged(c->name, "they end too early", err);
	if (digest != c->index[block].digest)
		return token_cache_damaged(c->name, "a block has changed", err);
	atomic_store_explicit(&c->verified[block], 1, memory_order_relaxed);
	return STATUS_OK;
}

/* Narrow ids are read into the second half of their room, and widened from the front. */
static status read_ids(const token_cache *c, int64_t at, int64_t count, int32_t *ids, error *err)
{
	size_t width = c->footer.width;
	unsigned char *narrow = (unsigned char *)ids + (size_t)count * (sizeof *ids - width);
	TRY(read_at(c->fd, c->name, narrow, (size_t)count * width, at, err));
	for (int64_t i = 0; i < count && width == 2; i++) {
		uint16_t id;
		memcpy(&id, narrow + i * 2, sizeof id);
		ids[i] = id;
	}
	return STATUS_OK;
}

static status read_plane(const token_cache *c, int64_t at, int64_t first, int64_t count, unsigned char flag,
                         unsigned char *flags, error *err)
{
	enum { PIECE = 512 };
	unsigned char bits[PIECE];
	for (int64_t i = 0; i < count;) {
		int64_t from = (first + i) / 8, last = (first + count - 1) / 8;
		int64_t n = last - from + 1 < PIECE ? last - from + 1 : PIECE;
		TRY(read_at(c->fd, c->name, bits, (size_t)n, at + from, err));
		for (; i < count && (first + i) / 8 < from + n; i++)
			if (bits[(first + i) / 8 - from] >> (first + i) % 8 & 1)
				flags[i] |= flag;
	}
	return STATUS_OK;
}

/* Within one block. */
static status read_part(const token_cache *c, int64_t block, int64_t first, int64_t count, int32_t *ids,
                        unsigned char *flags, error *err)
{
	int64_t in_block = token_block_count(&c->footer, block), at = block_at(c, block);
	TRY(verify(c, block, err));
	if (ids)
		TRY(read_ids(c, at + first * c->footer.width, count, ids, err));
	if (!flags)
		return STATUS_OK;
	memset(flags, 0, (size_t)count);
	if (!c->footer.documents)
		return STATUS_OK;
	at += in_block * c->footer.width;
	TRY(read_plane(c, at, first, count, TOKEN_LAST, flags, err));
	return read_plane(c, at + (in_block + 7) / 8, first, count, TOKEN_PROMPT, flags, err);
}

status token_cache_read(const token_cache *c, int64_t first, int64_t count, int32_t *ids, unsigned char *flags,
                        error *err)
{
	assert(first >= 0 && count >= 0 && first + count <= token_cache_tokens(c));
	for (int64_t done = 0; done < count;) {
		int64_t block = (first + done) / TOKEN_BLOCK, at = (first + done) % TOKEN_BLOCK;
		int64_t n = count - done < TOKEN_BLOCK - at ? count - done : TOKEN_BLOCK - at;
		TRY(read_part(c, block, at, n, ids ? ids + done : NULL, flags ? flags + done : NULL, err));
		done += n;
	}
	return STATUS_OK;
}

/* --- what is known of many tokens ------------------------------------------------------- */

uint64_t token_cache_hash_words(uint64_t hash, const int32_t *words, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		hash = (hash ^ (uint32_t)words[i]) * 0x100000001b3u;
	return hash;
}

/* Call `each` with tokens first … first + count - 1, a block at a time. */
static status walk(const token_cache *c, int64_t first, int64_t count,
                   void (*each)(void *context, const int32_t *ids, int64_t n), void *context, error *err)
{
	int32_t *ids = malloc(TOKEN_BLOCK * sizeof *ids);
	status s = ids ? STATUS_OK : error_set(err, STATUS_NOMEM, NULL, "out of memory");
	for (int64_t done = 0, n; done < count && s == STATUS_OK; done += n) {
		n = count - done < TOKEN_BLOCK ? count - done : TOKEN_BLOCK;
		s = token_cache_read(c, first + done, n, ids, NULL, err);
		if (s == STATUS_OK)
			each(context, ids, n);
	}
	free(ids);
	return s;
}

static void hash_piece(void *context, const int32_t *ids, int64_t n)
{
	uint64_t *hash = context;
	*hash = token_cache_hash_words(*hash, ids, n);
}

status token_cache_hash(const token_cache *c, int64_t first, int64_t count, uint64_t *out, error *err)
{
	int64_t known = first == 0 ? count / TOKEN_BLOCK : 0;
	*out = known > 0 ? c->index[known - 1].hash : TOKEN_CACHE_HASH_BEGIN;
	return walk(c, first + known * TOKEN_BLOCK, count - known * TOKEN_BLOCK, hash_piece, out, err);
}

void token_cache_count_token(const tokenizer *t, int32_t id, int64_t n, int64_t counts[256])
{
	char bytes[TOKEN_MAX_BYTES];
	size_t length = tokenizer_token_bytes(t, id, bytes, sizeof bytes);
	for (size_t i = 0; i < length; i++)
		counts[(unsigned char)bytes[i]] += n;
}

typedef struct byte_count {
	const tokenizer *t;
	int64_t *counts;
} byte_count;

static void count_piece(void *context, const int32_t *ids, int64_t n)
{
	const byte_count *b = context;
	for (int64_t i = 0; i < n; i++)
		token_cache_count_token(b->t, ids[i], 1, b->counts);
}

status token_cache_count_bytes(const token_cache *c, const tokenizer *t, int64_t tokens, int64_t counts[256],
                               error *err)
{
	int64_t known = tokens / TOKEN_BLOCK;
	for (int64_t block = 0; block < known; block++)
		for (int i = 0; i < 256; i++)
			counts[i] += c->index[block].bytes[i];
	return walk(c, known * TOKEN_BLOCK, tokens - known * TOKEN_BLOCK, count_piece, &(byte_count){t, counts}, err);
}
