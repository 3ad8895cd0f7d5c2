#include "engine/daemon/requests/download.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"

_Static_assert(MANIFEST_CHUNK_BYTES % DOWNLOAD_CHUNK == 0, "a frame holds bytes of one verified chunk");

typedef struct download {
	int fd; /* -1: the data is in memory */
	char *data;
	store_table table;  /* table of the stream's target */
	manifest *manifest; /* NULL: nothing to verify */
	char *verified;     /* with a manifest: the chunk being sent */
	int64_t bytes, sent;               /* bytes of the file or the data */
	char *before;                      /* [n_before], sent first */
	int64_t n_before, n_after, around; /* n_after zeros are sent last; bytes sent of both */
	const char *content_type;
	bool announced;
	char name[64];      /* name of the file in the store, */
	char filename[256]; /* and for the client */
} download;

static void download_free(download *d)
{
	if (d->fd >= 0)
		close(d->fd);
	manifest_free(d->manifest);
	free(d->verified);
	free(d->data);
	free(d->before);
	free(d);
}

static status download_read_file(const download *d, char *out, size_t bytes, error *err)
{
	while (bytes) {
		ssize_t n = read(d->fd, out, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return error_set(err, STATUS_STORAGE, NULL, "%s cannot be read to its end", d->name);
		out += n;
		bytes -= (size_t)n;
	}
	return STATUS_OK;
}

/* At the start of a chunk: read all of it and compare it with the manifest. */
static status verify(download *d, error *err)
{
	int64_t left = d->bytes - d->sent;
	size_t bytes = left < MANIFEST_CHUNK_BYTES ? (size_t)left : MANIFEST_CHUNK_BYTES;
	if (!d->manifest || d->sent % MANIFEST_CHUNK_BYTES != 0 || left == 0)
		return STATUS_OK;
	if (!d->verified && !(d->verified = malloc(MANIFEST_CHUNK_BYTES)))
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	TRY(download_read_file(d, d->verified, bytes, err));
	return manifest_check_chunk(d->manifest, d->name, d->sent / MANIFEST_CHUNK_BYTES, d->verified, bytes, err);
}

static status download_read_chunk(download *d, char *out, size_t bytes, error *err)
{
	if (d->fd >= 0 && !d->manifest)
		return download_read_file(d, out, bytes, err);
	if (d->manifest && d->sent > 0) /* the first chunk was verified before the announcement */
		TRY(verify(d, err));
	memcpy(out, d->manifest ? d->verified + d->sent % MANIFEST_CHUNK_BYTES : d->data + d->sent, bytes);
	return STATUS_OK;
}

/* Free the download and end the stream with an error. */
static void download_fail(stream *s, download *d, const error *err)
{
	if (err->status == STATUS_STORAGE)
		store_note_damage(s->net->store, d->table, s->target, err->message);
	download_free(d);
	s->watch = NULL;
	stream_error(s, err, NULL);
}

static int64_t all_bytes(const download *d)
{
	return d->n_before + d->bytes + d->n_after;
}

/* Bytes left of the part being sent: those before the file, the file, those after it. */
static int64_t next_bytes(const download *d)
{
	return d->around < d->n_before ? d->n_before - d->around
	       : d->sent < d->bytes    ? d->bytes - d->sent
	                               : all_bytes(d) - d->sent - d->around;
}

/* Write the next n ≤ next_bytes bytes. */
static status download_next(download *d, char *out, size_t n, error *err)
{
	const bool before = d->around < d->n_before, file = !before && d->sent < d->bytes;
	if (file)
		TRY(download_read_chunk(d, out, n, err));
	else if (before)
		memcpy(out, d->before + d->around, n);
	else
		memset(out, 0, n);
	*(file ? &d->sent : &d->around) += (int64_t)n;
	return STATUS_OK;
}

static void download_on_credit(stream *s)
{
	download *d = s->context;
	if (!d->announced && stream_ready(s) > 0) {
		d->announced = true;
		stream_event(s, json_pack("{s:I, s:s, s:s}", "bytes", (json_int_t)all_bytes(d), "content_type",
		                          d->content_type, "filename", d->filename));
	}
	while (d->sent + d->around < all_bytes(d) && stream_ready(s) > 0) {
		const int64_t left = next_bytes(d);
		size_t n = left < DOWNLOAD_CHUNK ? (size_t)left : DOWNLOAD_CHUNK;
		error err = ERROR_INIT;
		char *chunk = malloc(n);
		if (!chunk)
			error_set(&err, STATUS_NOMEM, NULL, "out of memory");
		if (!chunk || download_next(d, chunk, n, &err) != STATUS_OK) {
			free(chunk);
			download_fail(s, d, &err);
			return;
		}
		stream_data(s, chunk, n);
	}
	if (d->announced && d->sent + d->around == all_bytes(d)) {
		int64_t bytes = all_bytes(d);
		download_free(d);
		stream_result(s, json_pack("{s:I}", "bytes", (json_int_t)bytes));
	}
}

static void download_on_cancel(stream *s)
{
	download_free(s->context);
	stream_refuse(s, STATUS_CANCELLED, NULL, NULL, "cancelled");
}

/* Start sending; d is taken over. */
static void download_send(stream *s, download *d)
{
	static const stream_watch watch = {.credit = download_on_credit, .cancel = download_on_cancel};
	s->context = d;
	s->watch = &watch;
	if (s->cancelled)
		download_on_cancel(s);
	else
		download_on_credit(s);
}

/* Open the file of a download and verify its first chunk. */
static status open_file(download *d, const char *path, error *err)
{
	struct stat st;
	const char *slash = strrchr(path, '/');
	snprintf(d->name, sizeof d->name, "%s", slash ? slash + 1 : path);
	d->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (d->fd < 0 && errno != ENOENT)
		return file_error(err, path, "cannot read");
	if (d->fd < 0 || fstat(d->fd, &st) != 0 || !S_ISREG(st.st_mode))
		return error_set(err, STATUS_STORAGE, NULL, "%s is missing", d->name);
	d->bytes = st.st_size;
	if (d->manifest && manifest_file_bytes(d->manifest, d->name) != d->bytes)
		return error_set(err, STATUS_STORAGE, NULL, "%s is damaged: its length is not the one that was written",
		                 d->name);
	return verify(d, err);
}

void download_file(stream *s, const char *path, const char *filename, const char *content_type, store_table table,
                   manifest *m)
{
	download_within(s, path, NULL, 0, 0, filename, content_type, table, m);
}

void download_within(stream *s, const char *path, char *before, size_t n_before, size_t n_after, const char *filename,
                     const char *content_type, store_table table, manifest *m)
{
	error err = ERROR_INIT;
	download *d = memory_new(1, sizeof *d);
	if (!d) {
		free(before);
		manifest_free(m);
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	*d = (download){.fd = -1,
	                .table = table,
	                .manifest = m,
	                .content_type = content_type,
	                .before = before,
	                .n_before = (int64_t)n_before,
	                .n_after = (int64_t)n_after};
	snprintf(d->filename, sizeof d->filename, "%s", filename);
	if (open_file(d, path, &err) == STATUS_OK)
		download_send(s, d);
	else
		download_fail(s, d, &err);
}

void download_bytes(stream *s, void *data, size_t bytes, const char *filename, const char *content_type)
{
	download *d = memory_new(1, sizeof *d);
	if (!d) {
		free(data);
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	*d = (download){.fd = -1, .data = data, .bytes = (int64_t)bytes, .content_type = content_type};
	snprintf(d->filename, sizeof d->filename, "%s", filename);
	download_send(s, d);
}
