#include "engine/daemon/requests/received.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"

static const char kept[] = "cannot keep the upload";

bool received_valid_name(const char *name)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	size_t n = strlen(name);
	return n > 0 && n < RECEIVED_NAME_BYTES && name[0] != '.' && strspn(name, allowed) == n;
}

status received_open(received *r, error *err)
{
	r->fd = -1;
	r->files = 0;
	return mkdir(r->folder, 0700) == 0 ? STATUS_OK : file_error(err, r->folder, kept);
}

status received_begin(received *r, const char *name, int64_t limit, error *err)
{
	char path[PATH_MAX + RECEIVED_NAME_BYTES];
	received_end(r);
	if (++r->files > RECEIVED_MAX_FILES)
		return error_set(err, STATUS_INVALID, name, "an upload has at most %d files", RECEIVED_MAX_FILES);
	snprintf(r->name, sizeof r->name, "%s", name);
	snprintf(path, sizeof path, "%s/%s", r->folder, name);
	r->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	r->bytes = 0;
	r->limit = limit;
	if (r->fd >= 0)
		return STATUS_OK;
	return errno == EEXIST ? error_set(err, STATUS_INVALID, name, "the file \"%s\" came twice", name)
	                       : file_error(err, r->folder, kept);
}

status received_write(received *r, const void *data, size_t bytes, error *err)
{
	r->bytes += (int64_t)bytes;
	if (r->bytes > r->limit)
		return error_set(err, STATUS_TOO_LARGE, r->name, "%s is over the limit of %lld bytes", r->name,
		                 (long long)r->limit);
	for (const char *at = data; bytes;) {
		ssize_t n = write(r->fd, at, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return file_error(err, r->folder, kept);
		at += n;
		bytes -= (size_t)n;
	}
	return STATUS_OK;
}

void received_end(received *r)
{
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
}

status received_clear(received *r, error *err)
{
	received_end(r);
	TRY(file_remove_tree(r->folder, err));
	return received_open(r, err);
}

void received_remove(received *r)
{
	received_end(r);
	file_remove_tree(r->folder, NULL);
}
