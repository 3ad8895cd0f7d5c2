/* A text here is a file without its last line, "sum DIGEST". */
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
	char *identity, *text; /* text: the choices of this process */
	bool warned;
};

product_choices *product_choices_new(const char *folder, const char *identity)
{
	product_choices *c = (product_choices *)calloc(1, sizeof *c);
	char digest[DIGEST_TEXT_BYTES];
	if (!c)
		return NULL;
	c->identity = strdup(identity);
	c->text = strdup(identity);
	digest_write(digest_bytes(identity, strlen(identity)), digest);
	const int folder_bytes = snprintf(c->folder, sizeof c->folder, "%s", folder);
	const int path_bytes = snprintf(c->path, sizeof c->path, "%s/products-%s", folder, digest);
	if (c->identity && c->text && folder_bytes < PATH_MAX && path_bytes < PATH_MAX)
		return c;
	product_choices_free(c);
	return NULL;
}

void product_choices_free(product_choices *c)
{
	if (!c)
		return;
	free(c->identity);
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

/* Return the text of the file; NULL: there is none that can be used. */
static char *read_kept(product_choices *c)
{
	char *text = NULL, sum[SUM_BYTES + 1];
	size_t bytes = 0;
	error err = ERROR_INIT;
	const status s = file_read(c->path, MOST_BYTES, &text, &bytes, &err);
	if (s == STATUS_NOT_FOUND)
		return NULL;
	if (s != STATUS_OK) {
		warn(c, "cannot be read", &err);
		return NULL;
	}
	const size_t body = bytes < SUM_BYTES ? 0 : bytes - SUM_BYTES, identity = strlen(c->identity);
	sum_line(sum, text, body);
	if (body < identity || strlen(text) != bytes || strcmp(text + body, sum) != 0 ||
	    strncmp(text, c->identity, identity) != 0) {
		error_set(&err, STATUS_STORAGE, NULL, "the file is damaged and will be written again");
		warn(c, "are chosen again", &err);
		free(text);
		return NULL;
	}
	text[body] = 0;
	(void)utimensat(AT_FDCWD, c->path, NULL, 0); /* the time of the last use, for cache_folder.h */
	return text;
}

static int find_in(const char *text, const char *key)
{
	char line[LINE_BYTES];
	const int bytes = snprintf(line, sizeof line, "\n%s = ", key);
	const char *at = bytes < LINE_BYTES ? strstr(text, line) : NULL;
	return at ? atoi(at + bytes) : -1;
}

/* Add a line unless the text has a choice for this key. False: out of memory, or the line is too long. */
static bool add_line(char **text, const char *key, int choice)
{
	char line[LINE_BYTES];
	if (find_in(*text, key) >= 0)
		return true;
	const size_t before = strlen(*text);
	const int bytes = snprintf(line, sizeof line, "%s = %d\n", key, choice);
	char *longer = bytes < LINE_BYTES ? (char *)realloc(*text, before + (size_t)bytes + 1) : NULL;
	if (!longer)
		return false;
	memcpy(longer + before, line, (size_t)bytes + 1);
	*text = longer;
	return true;
}

/* Add the choices of `from` that the text lacks. */
static bool add_lines(const product_choices *c, char **text, const char *from)
{
	for (const char *at = from + strlen(c->identity), *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
		char key[LINE_BYTES];
		const char *sign = strstr(at, " = ");
		if (!sign || sign > end || sign - at >= LINE_BYTES)
			continue;
		memcpy(key, at, (size_t)(sign - at));
		key[sign - at] = 0;
		if (!add_line(text, key, atoi(sign + 3)))
			return false;
	}
	return true;
}

int product_choices_find(product_choices *c, const char *key, bool may_read)
{
	const int choice = find_in(c->text, key);
	char *text = choice < 0 && may_read ? read_kept(c) : NULL;
	if (text)
		(void)add_lines(c, &c->text, text);
	free(text);
	return choice < 0 && may_read ? find_in(c->text, key) : choice;
}

/* Write the text with its digest. */
static status write_text(const product_choices *c, const char *text, error *err)
{
	char sum[SUM_BYTES + 1];
	const size_t bytes = strlen(text);
	sum_line(sum, text, bytes);
	const file_part parts[] = {{text, bytes}, {sum, SUM_BYTES}};
	return file_write(c->path, parts, 2, err);
}

/* Lock the folder. -1: it cannot be locked. */
static int lock_folder(product_choices *c)
{
	error err = ERROR_INIT;
	if (file_make_folders(c->folder, &err) != STATUS_OK)
		warn(c, "cannot be kept", &err);
	const int lock = open(c->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (lock >= 0 && flock(lock, LOCK_EX) != 0 && errno == EINTR)
		;
	return lock;
}

int product_choices_keep(product_choices *c, const char *key, int choice)
{
	const int lock = lock_folder(c);
	error err = ERROR_INIT;
	char *text = read_kept(c);
	if (!text)
		text = strdup(c->identity);
	if (text && add_lines(c, &text, c->text) && add_line(&text, key, choice)) {
		choice = find_in(text, key);
		if (write_text(c, text, &err) != STATUS_OK)
			warn(c, "cannot be kept", &err);
	}
	(void)add_line(&c->text, key, choice);
	free(text);
	if (lock >= 0)
		close(lock); /* unlocks it */
	return choice;
}
