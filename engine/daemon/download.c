#include "engine/daemon/download.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/memory.h"

typedef struct download {
	int fd; /* -1: from memory */
	char *data;
	int64_t bytes, sent;
	const char *content_type;
	bool announced;
} download;

static void download_free(download *d)
{
	if (d->fd >= 0)
		close(d->fd);
	free(d->data);
	free(d);
}

static bool read_chunk(download *d, char *out, size_t bytes)
{
	if (d->fd < 0) {
		memcpy(out, d->data + d->sent, bytes);
		return true;
	}
	while (bytes) {
		ssize_t n = read(d->fd, out, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		out += n;
		bytes -= (size_t)n;
	}
	return true;
}

static void on_credit(stream *s)
{
	download *d = s->context;
	if (!d->announced && stream_ready(s) > 0) {
		d->announced = true;
		stream_event(s,
		             json_pack("{s:I, s:s}", "bytes", (json_int_t)d->bytes, "content_type", d->content_type));
	}
	while (d->sent < d->bytes && stream_ready(s) > 0) {
		int64_t left = d->bytes - d->sent;
		size_t n = left < DOWNLOAD_CHUNK ? (size_t)left : DOWNLOAD_CHUNK;
		char *chunk = malloc(n);
		if (!chunk || !read_chunk(d, chunk, n)) {
			download_free(d);
			stream_refuse(s, chunk ? STATUS_IO : STATUS_NOMEM, NULL, NULL,
			              "the file cannot be read to its end");
			free(chunk);
			return;
		}
		stream_data(s, chunk, n);
		d->sent += (int64_t)n;
	}
	if (d->announced && d->sent == d->bytes) {
		int64_t bytes = d->bytes;
		download_free(d);
		stream_result(s, json_pack("{s:I}", "bytes", (json_int_t)bytes));
	}
}

static void on_cancel(stream *s)
{
	download_free(s->context);
	stream_refuse(s, STATUS_CANCELLED, NULL, NULL, "cancelled");
}

static void begin(stream *s, int fd, void *data, int64_t bytes, const char *content_type)
{
	static const stream_watch watch = {.credit = on_credit, .cancel = on_cancel};
	download *d = memory_new(1, sizeof *d);
	if (!d) {
		if (fd >= 0)
			close(fd);
		free(data);
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	*d = (download){.fd = fd, .data = data, .bytes = bytes, .content_type = content_type};
	s->context = d;
	s->watch = &watch;
	if (s->cancelled)
		on_cancel(s);
	else
		on_credit(s);
}

void download_file(stream *s, const char *path, const char *content_type)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
		begin(s, fd, NULL, st.st_size, content_type);
		return;
	}
	if (fd >= 0)
		close(fd);
	stream_refuse(s, STATUS_NOT_FOUND, NULL, NULL, "the file is not there");
}

void download_bytes(stream *s, void *data, size_t bytes, const char *content_type)
{
	begin(s, -1, data, (int64_t)bytes, content_type);
}
