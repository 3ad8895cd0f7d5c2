#include "clients/cli/checksum.h"

#include <nettle/base16.h>
#include <nettle/sha2.h>
#include <stdio.h>

enum { PIECE = 64 << 10 };

bool checksum_file(const char *path, char out[CHECKSUM_BYTES])
{
	struct sha256_ctx hash;
	unsigned char piece[PIECE], digest[SHA256_DIGEST_SIZE];
	size_t n;
	FILE *f = fopen(path, "rb");

	if (!f)
		return false;
	sha256_init(&hash);
	while ((n = fread(piece, 1, sizeof(piece), f)) > 0)
		sha256_update(&hash, n, piece);
	bool whole = !ferror(f);
	fclose(f);
	sha256_digest(&hash, sizeof(digest), digest);
	base16_encode_update(out, sizeof(digest), digest);
	out[CHECKSUM_BYTES - 1] = '\0';
	return whole;
}
