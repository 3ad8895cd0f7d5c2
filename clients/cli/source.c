/* source.c - the hash is XXH3, which the service keeps of every file. Two texts can be made to have one hash on
 * purpose, but every client that may upload may also delete files and train on them. */
#include "clients/cli/source.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PIECE = 64 << 10 };

/* A nameless copy of a pipe. */
static FILE *spool(FILE *from)
{
	FILE *to = tmpfile();
	char piece[PIECE];
	size_t n;

	while (to && (n = fread(piece, 1, sizeof(piece), from)) > 0)
		if (fwrite(piece, 1, n, to) != n)
			break;
	if (to && (ferror(from) || ferror(to) || fflush(to) != 0)) {
		int saved_errno = errno;

		fclose(to);
		errno = saved_errno;
		return NULL;
	}
	return to;
}

static bool source_fail(const char *name)
{
	cli_fail("cannot read %s: %s", name, strerror(errno));
	return false;
}

bool source_open(source *s, const char *argument, const char *format)
{
	bool piped = strcmp(argument, "-") == 0;
	struct stat st;
	FILE *file = piped ? stdin : fopen(argument, "rb");

	*s = (source){.name = piped ? "stdin" : argument, .format = format ? format : "auto", .file = file};
	if (!file || fstat(fileno(file), &st) != 0)
		return source_fail(s->name);
	if (S_ISDIR(st.st_mode)) {
		errno = EISDIR;
		return source_fail(s->name);
	}
	if (piped || !S_ISREG(st.st_mode)) {
		s->file = spool(file);
		int saved_errno = errno;
		if (!piped)
			fclose(file);
		errno = saved_errno;
		if (!s->file || fstat(fileno(s->file), &st) != 0)
			return source_fail(s->name);
		snprintf(s->path, sizeof(s->path), "/proc/self/fd/%d", fileno(s->file));
	}
	s->bytes = st.st_size;
	return true;
}

void source_close(source *s)
{
	if (s->file && s->file != stdin)
		fclose(s->file);
	s->file = NULL;
}

static bool hash(source *s)
{
	XXH3_state_t state;
	char piece[PIECE];
	size_t n;

	XXH3_64bits_reset(&state);
	rewind(s->file);
	while ((n = fread(piece, 1, sizeof(piece), s->file)) > 0)
		XXH3_64bits_update(&state, piece, n);
	if (ferror(s->file))
		return source_fail(s->name);
	snprintf(s->digest, sizeof(s->digest), "%016" PRIx64, XXH3_64bits_digest(&state));
	return true;
}

static bool is_same(const source *s, const char *purpose, const json_t *file)
{
	const char *theirs = json_string_value(json_object_get(file, "purpose"));
	const char *digest = json_string_value(json_object_get(file, "xxh3"));
	const char *format = json_string_value(json_object_get(file, "format"));

	return digest && strcmp(digest, s->digest) == 0 && theirs && strcmp(theirs, purpose) == 0 &&
	       strcmp(format ? format : "auto", s->format) == 0 &&
	       json_integer_value(json_object_get(file, "bytes")) == s->bytes;
}

static void take_id(source *s, const json_t *file)
{
	const char *id = json_string_value(json_object_get(file, "id"));

	snprintf(s->id, sizeof(s->id), "%s", id ? id : "");
}

/* False after a complaint; s->id stays "" when the service has no such file. */
static bool look_up(cli *c, source *s, const char *purpose)
{
	json_t *all = http_json(c->http, "GET", "/v1/files?limit=10000", NULL), *file;
	size_t i;

	if (!all) {
		cli_complain(c);
		return false;
	}
	json_array_foreach(json_object_get(all, "data"), i, file) if (!s->id[0] && is_same(s, purpose, file))
	    take_id(s, file);
	json_decref(all);
	return true;
}

json_t *source_upload(cli *c, const source *s, const char *purpose, int64_t lifetime)
{
	char seconds[24];
	const http_part parts[] = {{"expires_after[anchor]", "created_at", NULL, NULL},
	                           {"expires_after[seconds]", seconds, NULL, NULL},
	                           {"purpose", purpose, NULL, NULL},
	                           {"format", s->format, NULL, NULL},
	                           {"file", NULL, s->path[0] ? s->path : s->name, s->path[0] ? s->name : NULL},
	                           {NULL, NULL, NULL, NULL}};

	snprintf(seconds, sizeof(seconds), "%" PRId64, lifetime);
	if (c->err.tty)
		cli_note(c, "uploading %s…", s->name);
	return http_form(c->http, "/v1/files", lifetime < 0 ? &parts[2] : parts);
}

bool source_send(cli *c, source *s, const char *purpose)
{
	if (!hash(s) || !look_up(c, s, purpose))
		return false;
	if (s->id[0]) {
		if (c->err.tty)
			cli_note(c, "%s is on the service already: %s", s->name, s->id);
		return true;
	}
	json_t *file = source_upload(c, s, purpose, -1);
	take_id(s, file);
	s->uploaded = s->id[0] != '\0';
	if (!s->uploaded)
		cli_complain(c);
	json_decref(file);
	return s->uploaded;
}

void source_take_back(cli *c, source *s)
{
	if (s->uploaded)
		json_decref(http_json(c->http, "DELETE", http_path(c->http, "/v1/files/%s", s->id), NULL));
	s->uploaded = false;
}
