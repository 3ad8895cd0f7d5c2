/* A block is gathered in memory, and written when it is full. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/text/token_cache_format.h"

struct token_writer {
	const tokenizer *t;
	char path[PATH_MAX]; /* "": memory */
	int fd;
	bool finished;
	int64_t most, written; /* bytes of the file */
	token_footer footer;
	uint64_t hash;
	int32_t ids[TOKEN_BLOCK];
	unsigned char flags[TOKEN_BLOCK];
	int64_t held; /* tokens of the block */
	unsigned char *packed;
	uint32_t *seen; /* [vocab]: in this block */
	token_block *index;
	size_t blocks, capacity;
};

static status write_all(token_writer *w, const void *data, size_t bytes, error *err)
{
	const char *at = data;
	if ((int64_t)bytes > w->most - w->written)
		return error_set(err, STATUS_FULL, NULL,
		                 "the data budget leaves %lld bytes for the tokens of the text, which are more",
		                 (long long)w->most);
	w->written += (int64_t)bytes;
	while (bytes > 0) {
		ssize_t n = write(w->fd, at, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return file_error(err, "tokens of the text", "cannot write");
		at += n;
		bytes -= (size_t)n;
	}
	return STATUS_OK;
}

status token_writer_new(token_writer **out, const char *path, int64_t most, uint64_t key, const tokenizer *t,
                        bool documents, error *err)
{
	*out = NULL;
	token_writer *w = memory_new(1, sizeof *w);
	if (!w)
		return error_no_memory(err, "the tokens of the text");
	w->t = t;
	w->most = most > 0 ? most : INT64_MAX;
	w->hash = TOKEN_CACHE_HASH_BEGIN;
	w->footer = (token_footer){.magic = TOKEN_CACHE_MAGIC,
	                           .version = TOKEN_CACHE_VERSION,
	                           .width = t && tokenizer_size(t) <= UINT16_MAX + 1 ? 2 : 4,
	                           .documents = documents,
	                           .vocab = t ? (uint32_t)tokenizer_size(t) : 0,
	                           .key = key};
	w->packed = memory_new(1, token_block_bytes(&w->footer, TOKEN_BLOCK));
	w->seen = memory_new((size_t)w->footer.vocab + 1, sizeof *w->seen);
	w->fd = path ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
	             : memfd_create("additive-tokens", MFD_CLOEXEC);
	status s = !w->packed || !w->seen ? error_no_memory(err, "the tokens of the text")
	           : w->fd < 0            ? file_error(err, "tokens of the text", "cannot create")
	                                  : STATUS_OK;
	if (path && w->fd >= 0)
		snprintf(w->path, sizeof w->path, "%s", path);
	if (s == STATUS_OK)
		*out = w;
	else
		token_writer_free(w);
	return s;
}

/* --- blocks ------------------------------------------------------------------------- */

static void pack_plane(unsigned char *out, const unsigned char *flags, int64_t count, unsigned char flag)
{
	memset(out, 0, ((size_t)count + 7) / 8);
	for (int64_t i = 0; i < count; i++)
		out[i / 8] |= (unsigned char)((flags[i] & flag ? 1 : 0) << i % 8);
}

static size_t pack(token_writer *w)
{
	unsigned char *to = w->packed;
	for (int64_t i = 0; i < w->held && w->footer.width == 2; i++) {
		uint16_t id = (uint16_t)w->ids[i];
		memcpy(to + i * 2, &id, sizeof id);
	}
	if (w->footer.width == 4)
		memcpy(to, w->ids, (size_t)w->held * 4);
	to += (size_t)w->held * w->footer.width;
	if (w->footer.documents) {
		size_t plane = ((size_t)w->held + 7) / 8;
		pack_plane(to, w->flags, w->held, TOKEN_LAST);
		pack_plane(to + plane, w->flags, w->held, TOKEN_PROMPT);
	}
	return token_block_bytes(&w->footer, w->held);
}

static void count_bytes(token_writer *w, uint32_t out[256])
{
	int64_t counts[256] = {0};
	for (int64_t i = 0; i < w->held && w->t; i++)
		w->seen[w->ids[i]]++;
	for (uint32_t id = 0; id < w->footer.vocab; id++) {
		if (w->seen[id])
			token_cache_count_token(w->t, (int32_t)id, w->seen[id], counts);
		w->seen[id] = 0;
	}
	for (int i = 0; i < 256; i++)
		out[i] = (uint32_t)counts[i];
}

static status write_block(token_writer *w, error *err)
{
	if (w->held == 0)
		return STATUS_OK;
	if (!MEMORY_ROOM(w->index, w->capacity, w->blocks + 1))
		return error_no_memory(err, "the tokens of the text");
	token_block *b = &w->index[w->blocks++];
	size_t bytes = pack(w);
	b->digest = digest_bytes(w->packed, bytes);
	b->hash = w->hash = token_cache_hash_words(w->hash, w->ids, w->held);
	count_bytes(w, b->bytes);
	w->held = 0;
	return write_all(w, w->packed, bytes, err);
}

status token_writer_add(token_writer *w, const int32_t *ids, const unsigned char *flags, int64_t count, error *err)
{
	for (int64_t done = 0; done < count;) {
		int64_t n = count - done < TOKEN_BLOCK - w->held ? count - done : TOKEN_BLOCK - w->held;
		memcpy(w->ids + w->held, ids + done, (size_t)n * sizeof *ids);
		if (flags)
			memcpy(w->flags + w->held, flags + done, (size_t)n);
		else
			memset(w->flags + w->held, 0, (size_t)n);
		w->held += n;
		w->footer.tokens += (uint64_t)n;
		done += n;
		if (w->held == TOKEN_BLOCK)
			TRY(write_block(w, err));
	}
	return STATUS_OK;
}

/* --- the end -------------------------------------------------------------------------- */

static status write_end(token_writer *w, error *err)
{
	TRY(write_block(w, err));
	w->footer.index_digest = digest_bytes(w->index, w->blocks * sizeof *w->index);
	w->footer.digest = digest_bytes(&w->footer, offsetof(token_footer, digest));
	TRY(write_all(w, w->index, w->blocks * sizeof *w->index, err));
	TRY(write_all(w, &w->footer, sizeof w->footer, err));
	if (w->path[0] && fsync(w->fd) != 0)
		return file_error(err, "tokens of the text", "cannot sync");
	return STATUS_OK;
}

status token_writer_finish(token_writer *w, token_cache **out, error *err)
{
	*out = NULL;
	TRY(write_end(w, err));
	int fd = w->fd;
	w->fd = -1;
	status s = token_cache_adopt(out, fd, w->path[0] ? w->path : "tokens", !w->path[0], w->footer.key,
	                             (int32_t)w->footer.vocab, err);
	w->finished = s == STATUS_OK;
	return s;
}

void token_writer_free(token_writer *w)
{
	if (!w)
		return;
	if (w->fd >= 0)
		close(w->fd);
	if (w->path[0] && !w->finished)
		unlink(w->path);
	free(w->packed);
	free(w->seen);
	free(w->index);
	free(w);
}
