#include "engine/base/checksum.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <nettle/base16.h>
#include <nettle/sha2.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"

enum { PIECE = 256 << 10 };

_Static_assert(CHECKSUM_TEXT_BYTES == 2 * SHA256_DIGEST_SIZE + 1, "two digits a byte");

struct checksum {
	struct sha256_ctx hash;
};

checksum *checksum_new(void)
{
	checksum *c = memory_new(1, sizeof *c);
	if (c)
		sha256_init(&c->hash);
	return c;
}

void checksum_add(checksum *c, const void *data, size_t bytes)
{
	sha256_update(&c->hash, bytes, data);
}

void checksum_end(checksum *c, char out[CHECKSUM_TEXT_BYTES])
{
	uint8_t digest[SHA256_DIGEST_SIZE];
	sha256_digest(&c->hash, sizeof digest, digest);
	base16_encode_update(out, sizeof digest, digest);
	out[CHECKSUM_TEXT_BYTES - 1] = '\0';
}

void checksum_free(checksum *c)
{
	free(c);
}

static status add_file(checksum *c, const char *path, char *piece, error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n = -1;
	while (fd >= 0 && ((n = read(fd, piece, PIECE)) > 0 || (n < 0 && errno == EINTR)))
		if (n > 0)
			checksum_add(c, piece, (size_t)n);
	status s = n < 0 ? file_error(err, path, "cannot read") : STATUS_OK;
	if (fd >= 0)
		close(fd);
	return s;
}

status checksum_file(const char *path, char out[CHECKSUM_TEXT_BYTES], error *err)
{
	checksum *c = checksum_new();
	char *piece = malloc(PIECE);
	status s = c && piece ? add_file(c, path, piece, err) : error_settle(err, STATUS_NOMEM);
	out[0] = '\0';
	if (s == STATUS_OK)
		checksum_end(c, out);
	checksum_free(c);
	free(piece);
	return s;
}

bool checksum_read(const char *text, char out[CHECKSUM_TEXT_BYTES], const char **end)
{
	static const char prefix[] = "sha256:";
	if (strncmp(text, prefix, sizeof prefix - 1) == 0)
		text += sizeof prefix - 1;
	int n = 0;
	for (; n < CHECKSUM_TEXT_BYTES - 1 && isxdigit((unsigned char)text[n]); n++)
		out[n] = (char)tolower((unsigned char)text[n]);
	out[n] = '\0';
	if (end)
		*end = text + n;
	return n == CHECKSUM_TEXT_BYTES - 1 && !isxdigit((unsigned char)text[n]);
}
