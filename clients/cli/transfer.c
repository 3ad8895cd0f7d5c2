/* transfer.c - written beside the target and renamed, so that a broken transfer leaves nothing that looks whole. */
#include "clients/cli/transfer.h"

#include <errno.h>
#include <string.h>

#include "clients/cli/checksum.h"

static FILE *open_beside(const char *file, text *temporary)
{
	FILE *f = text_format(temporary, "%s.part", file) ? fopen(text_get(temporary), "wb") : NULL;

	if (!f)
		cli_fail("cannot write %s: %s", file, strerror(errno));
	return f;
}

/* Close and rename, or remove. */
static bool transfer_finish(FILE *f, const text *temporary, const char *file, bool ok)
{
	bool written = fclose(f) == 0;

	if (ok && written && rename(text_get(temporary), file) == 0)
		return true;
	if (ok)
		cli_fail("cannot write %s: %s", file, strerror(errno));
	remove(text_get(temporary));
	return false;
}

int transfer_answer(cli *c, const char *method, const char *path, json_t *body, const char *accept, const char *file)
{
	text temporary = {0};

	if (strcmp(file, "-") == 0) {
		bool written = http_download(c->http, method, path, body, accept, stdout) && fflush(stdout) == 0;
		return written ? CLI_OK : cli_complain(c);
	}
	FILE *f = open_beside(file, &temporary);
	if (!f)
		json_decref(body);
	bool ok = f && http_download(c->http, method, path, body, accept, f);
	if (f && !ok)
		cli_complain(c);
	if (f)
		ok = transfer_finish(f, &temporary, file, ok);
	text_free(&temporary);
	return ok ? CLI_OK : CLI_FAILED;
}

bool transfer_write(const char *file, const char *data, size_t bytes)
{
	text temporary = {0};

	FILE *f = open_beside(file, &temporary);
	bool whole = f && fwrite(data, 1, bytes, f) == bytes;
	if (f && !whole)
		cli_fail("cannot write %s: %s", file, strerror(errno));
	if (f)
		whole = transfer_finish(f, &temporary, file, whole);
	text_free(&temporary);
	return whole;
}

/* True if the written file has the checksum; prints an error otherwise. */
static bool has_sum(FILE *f, const text *temporary, const char *file, const char *sha256)
{
	char sum[CHECKSUM_BYTES];

	if (fflush(f) != 0 || !checksum_file(text_get(temporary), sum)) {
		cli_fail("cannot write %s: %s", file, strerror(errno));
		return false;
	}
	if (strcmp(sum, sha256) == 0)
		return true;
	cli_fail("%s is not what the service has: its SHA-256 is %s instead of %s", file, sum, sha256);
	return false;
}

int transfer_checked(cli *c, const char *path, const char *file, const char *sha256)
{
	text temporary = {0};
	FILE *f = open_beside(file, &temporary);
	bool ok = f && http_download(c->http, "GET", path, NULL, NULL, f);

	if (f && !ok)
		cli_complain(c);
	ok = ok && has_sum(f, &temporary, file, sha256);
	if (f)
		ok = transfer_finish(f, &temporary, file, ok);
	text_free(&temporary);
	return ok ? CLI_OK : CLI_FAILED;
}

int transfer_download(cli *c, const char *path, const char *file)
{
	return transfer_answer(c, "GET", path, NULL, NULL, file);
}
