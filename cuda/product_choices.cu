/* The text in memory is the file without its last line, "sum DIGEST". */
#include "cuda/product_choices.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

extern "C" {
#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
}

enum { MOST_BYTES = 4 << 20, LINE_BYTES = 512, SUM_BYTES = 4 + DIGEST_TEXT_BYTES };

struct product_choices {
	char folder[PATH_MAX], path[PATH_MAX];
	size_t identity_bytes;
	char *text;
	int lock; /* descriptor of the locked folder; -1: not locked */
	bool warned;
};

product_choices *product_choices_new(const char *folder, const char *identity)
{
	product_choices *c = (product_choices *)calloc(1, sizeof *c);
	char digest[DIGEST_TEXT_BYTES];
	if (!c)
		return NULL;
	c->lock = -1;
	c->identity_bytes = strlen(identity);
	c->text = strdup(identity);
	digest_write(digest_bytes(identity, c->identity_bytes), digest);
	const int folder_bytes = snprintf(c->folder, sizeof c->folder, "%s", folder);
	const int path_bytes = snprintf(c->path, sizeof c->path, "%s/products-%s", folder, digest);
	if (c->text && folder_bytes < PATH_MAX && path_bytes < PATH_MAX)
		return c;
	product_choices_free(c);
	return NULL;
}

void product_choices_free(product_choices *c)
{
	if (!c)
		return;
	product_choices_end(c, NULL, -1);
	free(c->text);
	free(c);
}

static void warn(product_choices *c, const char *what, const error *err)
{
	if (!c->warned)
		log_line(LOG_WARN, "algorithms of products %s: %s", what, error_message(err));
	c->warned = true;
}

/* Write the digest of `bytes` bytes of text as the last line. */
static void sum_line(char out[SUM_BYTES + 1], const char *text, size_t bytes)
{
	char digest[DIGEST_TEXT_BYTES];
	digest_write(digest_bytes(text, bytes), digest);
	snprintf(out, SUM_BYTES + 1, "sum %s\n", digest);
}

static void read_choices(product_choices *c)
{
	char *text = NULL, sum[SUM_BYTES + 1];
	size_t bytes = 0;
	error err = ERROR_INIT;
	const status s = file_read(c->path, MOST_BYTES, &text, &bytes, &err);
	if (s == STATUS_NOT_FOUND)
		return;
	if (s != STATUS_OK) {
		warn(c, "cannot be read", &err);
		return;
	}
	const size_t body = bytes < SUM_BYTES ? 0 : bytes - SUM_BYTES;
	sum_line(sum, text, body);
	if (body < c->identity_bytes || strlen(text) != bytes || strcmp(text + body, sum) != 0 ||
	    strncmp(text, c->text, c->identity_bytes) != 0) {
		error_set(&err, STATUS_STORAGE, NULL, "the file is damaged and will be written again");
		warn(c, "are chosen again", &err);
		free(text);
		return;
	}
	text[body] = 0;
	free(c->text);
	c->text = text;
	(void)utimensat(AT_FDCWD, c->path, NULL, 0); /* the time of the last use, for cache_folder.h */
}

int product_choices_find(const product_choices *c, const char *key)
{
	char line[LINE_BYTES];
	const int bytes = snprintf(line, sizeof line, "\n%s = ", key);
	const char *at = bytes < LINE_BYTES ? strstr(c->text, line) : NULL;
	return at ? atoi(at + bytes) : -1;
}

int product_choices_begin(product_choices *c, const char *key)
{
	int choice = product_choices_find(c, key);
	error err = ERROR_INIT;
	if (choice >= 0)
		return choice;
	if (file_make_folders(c->folder, &err) != STATUS_OK)
		warn(c, "cannot be kept", &err);
	c->lock = open(c->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (c->lock >= 0 && flock(c->lock, LOCK_EX) != 0 && errno == EINTR)
		;
	read_choices(c);
	choice = product_choices_find(c, key);
	if (choice >= 0)
		product_choices_end(c, key, -1);
	return choice;
}

static void add_choice(product_choices *c, const char *key, int choice)
{
	char line[LINE_BYTES], sum[SUM_BYTES + 1];
	const size_t before = strlen(c->text);
	const int bytes = snprintf(line, sizeof line, "%s = %d\n", key, choice);
	error err = ERROR_INIT;
	char *text = bytes < LINE_BYTES ? (char *)realloc(c->text, before + (size_t)bytes + 1) : NULL;
	if (!text)
		return;
	memcpy(text + before, line, (size_t)bytes + 1);
	c->text = text;
	sum_line(sum, text, before + (size_t)bytes);
	const file_part parts[] = {{text, before + (size_t)bytes}, {sum, SUM_BYTES}};
	if (file_write(c->path, parts, 2, &err) != STATUS_OK)
		warn(c, "cannot be kept", &err);
}

void product_choices_end(product_choices *c, const char *key, int choice)
{
	if (choice >= 0)
		add_choice(c, key, choice);
	if (c->lock >= 0)
		close(c->lock); /* unlocks it */
	c->lock = -1;
}
