/* Files are read with read(2) instead of mapped: if a file is truncated meanwhile, the read is short and there is no
 * SIGBUS.
 *
 * The seal is the hash of the manifest's own text, so it needs no second file. It comes last, with a fixed length, and
 * is found without parsing. Damage to the JSON itself is therefore detected before a parser sees it. */
#include "engine/base/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/checksum.h"
#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/base/path.h"

#define SEAL_BEFORE ",\"seal\":\""
#define SEAL_AFTER "\"}\n"
enum { HEX = DIGEST_TEXT_BYTES - 1, SEAL_BYTES = sizeof SEAL_BEFORE - 1 + HEX + sizeof SEAL_AFTER - 1, VERSION = 1 };

struct manifest {
	char *text;
	json_t *document;
	const char *kind, *id; /* into the document, like all below */
	const json_t *about, *files;
};

/* --- reading files ------------------------------------------------------------------ */

static int64_t chunks_of(int64_t bytes)
{
	return (bytes + MANIFEST_CHUNK_BYTES - 1) / MANIFEST_CHUNK_BYTES;
}

/* Read up to a chunk; fewer bytes only at the end of the file. -1: errno says why. */
static ssize_t read_chunk(int fd, char *out)
{
	size_t used = 0;
	while (used < MANIFEST_CHUNK_BYTES) {
		ssize_t n = read(fd, out + used, MANIFEST_CHUNK_BYTES - used);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		if (n == 0)
			break;
		used += (size_t)n;
	}
	return (ssize_t)used;
}

/* Open a regular file; *size gets its bytes. -1: *s and err say why. */
static int open_regular(const char *path, int64_t *size, status *s, error *err)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0 && fstat(fd, &st) == 0) {
		*size = st.st_size;
		*s = STATUS_OK;
		if (S_ISREG(st.st_mode))
			return fd;
		errno = EINVAL;
	}
	*s = file_error(err, path, "cannot open");
	if (fd >= 0)
		close(fd);
	return -1;
}

/* --- writing ------------------------------------------------------------------------- */

/* The hashes of a file's chunks as one text, malloc'ed. */
static status hash_file(const char *path, char **out, int64_t *bytes, error *err)
{
	status s;
	int64_t size;
	*out = NULL;
	*bytes = 0;
	int fd = open_regular(path, &size, &s, err);
	if (fd < 0)
		return s;
	char *chunk = malloc(MANIFEST_CHUNK_BYTES), *text = memory_new((size_t)chunks_of(size) * HEX + 1, 1);
	ssize_t n = chunk && text ? 1 : -1;
	if (n < 0)
		s = STATUS_NOMEM;
	for (int64_t i = 0; s == STATUS_OK && i < chunks_of(size); i++) {
		n = read_chunk(fd, chunk);
		if (n < 0)
			s = file_error(err, path, "cannot read");
		else
			digest_write(digest_bytes(chunk, (size_t)n), text + i * HEX);
		*bytes += n > 0 ? n : 0;
	}
	if (s == STATUS_OK && *bytes != size)
		s = error_set(err, STATUS_IO, NULL, "a file changed while it was read");
	close(fd);
	free(chunk);
	if (s == STATUS_OK)
		*out = text;
	else
		free(text);
	return s;
}

static status add_file(json_t *files, const char *path, const char *name, error *err)
{
	char *hashes;
	int64_t bytes;
	TRY(hash_file(path, &hashes, &bytes, err));
	json_t *file = json_pack("{s:s, s:I, s:s}", "name", name, "bytes", (json_int_t)bytes, "xxh3", hashes);
	free(hashes);
	return file && json_array_append_new(files, file) == 0 ? STATUS_OK : STATUS_NOMEM;
}

/* The sealed text of a manifest, malloc'ed. `files` is taken over. NULL when out of memory. */
static char *sealed_text(const char *kind, const char *id, const json_t *about, json_t *files)
{
	json_t *object = about ? json_incref((json_t *)(uintptr_t)about) : json_object();
	json_t *document =
	    json_pack("{s:s, s:i, s:s, s:s, s:o, s:i, s:o}", "format", "additive-manifest", "version", VERSION, "kind",
	              kind, "id", id, "about", object, "chunk_bytes", MANIFEST_CHUNK_BYTES, "files", files);
	char *plain = json_text(document, JSON_COMPACT | JSON_REAL_PRECISION(17));
	size_t bytes = plain ? strlen(plain) - 1 : 0; /* without the closing brace */
	char *text = plain ? realloc(plain, bytes + SEAL_BYTES + 1) : NULL;
	json_decref(document);
	if (!text) {
		free(plain);
		return NULL;
	}
	char hex[DIGEST_TEXT_BYTES];
	digest_write(digest_bytes(text, bytes), hex);
	snprintf(text + bytes, SEAL_BYTES + 1, SEAL_BEFORE "%s" SEAL_AFTER, hex);
	return text;
}

static status write_sealed(const char *path, const char *kind, const char *id, const json_t *about, json_t *files,
                           error *err)
{
	char *text = sealed_text(kind, id, about, files);
	if (!text)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory for a manifest");
	status s = file_write(path, &(file_part){text, strlen(text)}, 1, err);
	free(text);
	return s;
}

/* Every regular file of a folder, in the order of names, so that equal folders have equal manifests. */
static status add_folder(json_t *files, const char *folder, error *err)
{
	struct dirent **names;
	char path[PATH_MAX];
	status s = STATUS_OK;
	int n = scandir(folder, &names, NULL, alphasort);
	if (n < 0)
		return file_error(err, folder, "cannot read folder");
	for (int i = 0; i < n; i++) {
		const char *name = names[i]->d_name;
		if (s == STATUS_OK && name[0] != '.' && strcmp(name, MANIFEST_NAME) != 0) {
			s = path_join(path, folder, name, err);
			if (s == STATUS_OK)
				s = add_file(files, path, name, err);
		}
		free(names[i]);
	}
	free(names);
	return s;
}

status manifest_write(const char *folder, const char *kind, const char *id, const json_t *about, error *err)
{
	char path[PATH_MAX];
	TRY(path_join(path, folder, MANIFEST_NAME, err));
	json_t *files = json_array();
	status s = files ? add_folder(files, folder, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		return write_sealed(path, kind, id, about, files, err);
	json_decref(files);
	return error_set(err, s, NULL, "%s", status_text(s));
}

status manifest_write_file(const char *path, const char *name, const char *kind, const char *id, const json_t *about,
                           error *err)
{
	char beside[PATH_MAX];
	TRY(path_extend(beside, path, MANIFEST_SUFFIX, err));
	json_t *files = json_array();
	status s = files ? add_file(files, path, name, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		return write_sealed(beside, kind, id, about, files, err);
	json_decref(files);
	return error_set(err, s, NULL, "%s", status_text(s));
}

status manifest_write_document(const char *path, const char *kind, const char *id, const json_t *about, error *err)
{
	return write_sealed(path, kind, id, about, json_array(), err);
}

/* --- opening --------------------------------------------------------------------------- */

static status manifest_damaged(error *err, const char *name, const char *what)
{
	const char *slash = strrchr(name, '/');
	return error_set(err, STATUS_STORAGE, NULL, "%s is damaged: %s", slash ? slash + 1 : name, what);
}

static bool is_sealed(const char *text, size_t bytes)
{
	uint64_t seal;
	if (bytes < SEAL_BYTES || memchr(text, '\0', bytes))
		return false;
	const char *tail = text + bytes - SEAL_BYTES, *hex = tail + sizeof SEAL_BEFORE - 1;
	return memcmp(tail, SEAL_BEFORE, sizeof SEAL_BEFORE - 1) == 0 && strcmp(hex + HEX, SEAL_AFTER) == 0 &&
	       digest_read(hex, &seal) && seal == digest_bytes(text, bytes - SEAL_BYTES);
}

/* A sealed text was written by this program, so a wrong member means another version. */
static status read_members(manifest *m)
{
	json_t *about, *files;
	int version, chunk_bytes;
	TRY(json_read_members(m->document, "{s:i, s:s, s:s, s:o, s:i, s:o}", "version", &version, "kind", &m->kind,
	                      "id", &m->id, "about", &about, "chunk_bytes", &chunk_bytes, "files", &files));
	if (version != VERSION || chunk_bytes != MANIFEST_CHUNK_BYTES || !json_is_array(files))
		return STATUS_INVALID;
	m->about = about;
	m->files = files;
	return STATUS_OK;
}

status manifest_parse(manifest **out, const char *text, size_t bytes, const char *name, error *err)
{
	*out = NULL;
	if (!is_sealed(text, bytes))
		return manifest_damaged(err, name, "it does not end with the hash of its text");
	manifest *m = memory_new(1, sizeof *m);
	if (m)
		m->text = memory_new(bytes + 1, 1);
	status s = m && m->text ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK) {
		memcpy(m->text, text, bytes);
		s = json_read(&m->document, text, bytes, 0, NULL);
	}
	if (s == STATUS_OK)
		s = read_members(m);
	if (s == STATUS_NOMEM)
		error_set(err, s, NULL, "out of memory for a manifest");
	else if (s != STATUS_OK)
		s = manifest_damaged(err, name, "it is not of a format this version reads");
	if (s == STATUS_OK)
		*out = m;
	else
		manifest_free(m);
	return s;
}

status manifest_open(manifest **out, const char *path, error *err)
{
	char *text;
	size_t bytes;
	*out = NULL;
	TRY(file_read(path, MANIFEST_MAX_BYTES, &text, &bytes, err));
	status s = manifest_parse(out, text, bytes, path, err);
	free(text);
	return s;
}

status manifest_open_folder(manifest **out, const char *folder, error *err)
{
	char path[PATH_MAX];
	error cause = ERROR_INIT;
	*out = NULL;
	TRY(path_join(path, folder, MANIFEST_NAME, err));
	status s = manifest_open(out, path, &cause);
	return s == STATUS_OK || s == STATUS_NOT_FOUND ? STATUS_OK
	                                               : error_set(err, s, NULL, "%s", error_message(&cause));
}

void manifest_free(manifest *m)
{
	if (!m)
		return;
	json_decref(m->document);
	free(m->text);
	free(m);
}

const char *manifest_kind(const manifest *m)
{
	return m->kind;
}

const char *manifest_id(const manifest *m)
{
	return m->id;
}

const json_t *manifest_about(const manifest *m)
{
	return m->about;
}

const char *manifest_text(const manifest *m)
{
	return m->text;
}

/* --- checking ---------------------------------------------------------------------------- */

static const char *file_name(const json_t *file)
{
	const char *name = json_string_value(json_object_get(file, "name"));
	return name ? name : "";
}

static const json_t *find_file(const manifest *m, const char *name)
{
	size_t i;
	json_t *file;
	json_array_foreach(m->files, i, file) if (strcmp(file_name(file), name) == 0) return file;
	return NULL;
}

static int64_t file_bytes(const json_t *file)
{
	return json_integer_value(json_object_get(file, "bytes"));
}

int64_t manifest_file_bytes(const manifest *m, const char *name)
{
	const json_t *file = find_file(m, name);
	return file ? file_bytes(file) : -1;
}

bool manifest_file_digest(const manifest *m, const char *name, uint64_t *out)
{
	const json_t *file = find_file(m, name), *chunks = json_object_get(file, "xxh3");
	*out = json_is_string(chunks) ? digest_bytes(json_string_value(chunks), json_string_length(chunks)) : 0;
	return json_is_string(chunks);
}

int64_t manifest_bytes(const manifest *m)
{
	int64_t total = 0;
	size_t i;
	json_t *file;
	json_array_foreach(m->files, i, file) total += file_bytes(file);
	return total;
}

static status check_chunk(const json_t *file, int64_t index, const void *data, size_t bytes, error *err)
{
	const json_t *hashes = json_object_get(file, "xxh3");
	int64_t from = index * MANIFEST_CHUNK_BYTES, left = file_bytes(file) - from;
	int64_t expected = left < MANIFEST_CHUNK_BYTES ? left : MANIFEST_CHUNK_BYTES;
	uint64_t written;
	char what[96];
	if (index < 0 || (int64_t)bytes != expected || (int64_t)json_string_length(hashes) < (index + 1) * HEX)
		return manifest_damaged(err, file_name(file), "it has another length than was written");
	if (digest_read(json_string_value(hashes) + index * HEX, &written) && written == digest_bytes(data, bytes))
		return STATUS_OK;
	snprintf(what, sizeof what, "bytes %lld to %lld differ from what was written", (long long)from,
	         (long long)(from + expected - 1));
	return manifest_damaged(err, file_name(file), what);
}

status manifest_check_chunk(const manifest *m, const char *name, int64_t index, const void *data, size_t bytes,
                            error *err)
{
	const json_t *file = m ? find_file(m, name) : NULL;
	if (!m)
		return STATUS_OK;
	return file ? check_chunk(file, index, data, bytes, err)
	            : manifest_damaged(err, name, "the manifest does not list it");
}

status manifest_check_data(const manifest *m, const char *name, const void *data, size_t bytes, error *err)
{
	const json_t *file = m ? find_file(m, name) : NULL;
	if (!m)
		return STATUS_OK;
	if (!file)
		return manifest_damaged(err, name, "the manifest does not list it");
	if ((int64_t)bytes != file_bytes(file))
		return manifest_damaged(err, name, "it has another length than was written");
	for (int64_t i = 0; i < chunks_of((int64_t)bytes); i++) {
		size_t from = (size_t)i * MANIFEST_CHUNK_BYTES, left = bytes - from;
		TRY(check_chunk(file, i, (const char *)data + from,
		                left < MANIFEST_CHUNK_BYTES ? left : MANIFEST_CHUNK_BYTES, err));
	}
	return STATUS_OK;
}

status manifest_read(const manifest *m, const char *folder, const char *name, size_t limit, char **out, size_t *bytes,
                     error *err)
{
	char path[PATH_MAX];
	error cause = ERROR_INIT;
	*out = NULL;
	*bytes = 0;
	TRY(path_join(path, folder, name, err));
	status s = file_read(path, limit, out, bytes, &cause);
	bool listed = m && find_file(m, name);
	if (listed && s == STATUS_NOT_FOUND)
		return error_set(err, STATUS_STORAGE, NULL, "%s is missing", name);
	if (listed && s == STATUS_TOO_LARGE)
		return manifest_damaged(err, name, "it has another length than was written");
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "%s: %s", name, cause.message[0] ? cause.message : status_text(s));
	s = manifest_check_data(m, name, *out, *bytes, err);
	if (s != STATUS_OK) {
		free(*out);
		*out = NULL;
		*bytes = 0;
	}
	return s;
}

/* A missing file is damage too. */
static status open_listed(const char *folder, const json_t *file, int *fd, error *err)
{
	char path[PATH_MAX];
	int64_t bytes;
	status s;
	error cause = ERROR_INIT;
	*fd = -1;
	TRY(path_join(path, folder, file_name(file), err));
	*fd = open_regular(path, &bytes, &s, &cause);
	if (s == STATUS_NOT_FOUND)
		return error_set(err, STATUS_STORAGE, NULL, "%s is missing", file_name(file));
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "%s", cause.message);
	if (bytes == file_bytes(file))
		return STATUS_OK;
	close(*fd);
	*fd = -1;
	return manifest_damaged(err, file_name(file), "it has another length than was written");
}

/* sum: NULL, or it gets every verified byte. */
static status check_contents(int fd, const json_t *file, char *chunk, checksum *sum, error *err)
{
	for (int64_t i = 0; i < chunks_of(file_bytes(file)); i++) {
		ssize_t n = read_chunk(fd, chunk);
		if (n < 0)
			return file_error(err, file_name(file), "cannot read");
		TRY(check_chunk(file, i, chunk, (size_t)n, err));
		if (sum)
			checksum_add(sum, chunk, (size_t)n);
	}
	return STATUS_OK;
}

/* contents: hash them too. */
static status check(const manifest *m, const char *folder, bool contents, error *err)
{
	size_t i;
	json_t *file;
	char *chunk = contents ? malloc(MANIFEST_CHUNK_BYTES) : NULL;
	status s = contents && !chunk ? STATUS_NOMEM : STATUS_OK;
	json_array_foreach(m->files, i, file)
	{
		int fd = -1;
		if (s == STATUS_OK)
			s = open_listed(folder, file, &fd, err);
		if (s == STATUS_OK && contents)
			s = check_contents(fd, file, chunk, NULL, err);
		if (fd >= 0)
			close(fd);
	}
	free(chunk);
	return s;
}

status manifest_check(const manifest *m, const char *folder, error *err)
{
	return check(m, folder, true, err);
}

status manifest_check_sizes(const manifest *m, const char *folder, error *err)
{
	return check(m, folder, false, err);
}

status manifest_checksum(const manifest *m, const char *folder, const char *name, char out[CHECKSUM_TEXT_BYTES],
                         error *err)
{
	const json_t *file = find_file(m, name);
	checksum *sum = checksum_new();
	char *chunk = malloc(MANIFEST_CHUNK_BYTES);
	int fd = -1;
	status s = !file            ? STATUS_NOT_FOUND
	           : !sum || !chunk ? error_settle(err, STATUS_NOMEM)
	                            : open_listed(folder, file, &fd, err);
	out[0] = '\0';
	if (s == STATUS_OK)
		s = check_contents(fd, file, chunk, sum, err);
	if (s == STATUS_OK)
		checksum_end(sum, out);
	if (fd >= 0)
		close(fd);
	checksum_free(sum);
	free(chunk);
	return s;
}
