#include "engine/daemon/library/model_files.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/checksum.h"
#include "engine/base/file.h"
#include "engine/base/path.h"
#include "engine/model/shards.h"
#include "engine/recipe/model_card.h"
#include "engine/recipe/model_card_page.h"
#include "proto/model_files.h"

#define WEIGHTS "model.safetensors"
#define WEIGHTS_SUFFIX ".safetensors"
enum { MAX_SUMS = 1 << 20 };

static const model_file files[] = {
#define MODEL_FILE(name, type, most) {name, type, most},
#include "proto/model_files.def"
#undef MODEL_FILE
};
enum { FILES = sizeof files / sizeof *files };

const model_file *model_file_at(int i)
{
	return i >= 0 && i < FILES ? &files[i] : NULL;
}

const model_file *model_file_find(const char *name)
{
	for (int i = 0; i < FILES; i++)
		if (strcmp(files[i].name, name) == 0)
			return &files[i];
	return NULL;
}

static bool is_weights(const char *name)
{
	size_t n = strlen(name), suffix = strlen(WEIGHTS_SUFFIX);
	return n > suffix && strcmp(name + n - suffix, WEIGHTS_SUFFIX) == 0;
}

int64_t model_files_accept(const char *name)
{
	const model_file *f = model_file_find(name);
	return f                                        ? f->limit
	       : is_weights(name)                       ? model_file_find(WEIGHTS)->limit
	       : strcmp(name, MODEL_WEIGHTS_INDEX) == 0 ? SHARDS_MAX_INDEX
	       : strcmp(name, MODEL_SUMS) == 0          ? MAX_SUMS
	                                                : -1;
}

bool model_files_decides(const char *name)
{
	static const char *const about[] = {MODEL_CARD_LICENSE, MODEL_CARD_PAGE, MODEL_CARD_FILE};
	for (size_t i = 0; i < sizeof about / sizeof *about; i++)
		if (strcmp(name, about[i]) == 0)
			return false;
	return true;
}

/* --- checksums ------------------------------------------------------------------------------------- */

static status check_sum(const char *folder, const char *name, const char *expected, error *err)
{
	char path[PATH_MAX], found[CHECKSUM_TEXT_BYTES];
	if (strchr(name, '/') || model_files_accept(name) < 0)
		return STATUS_OK; /* listed, but the file was not kept */
	TRY(path_join(path, folder, name, err));
	if (access(path, F_OK) != 0 && !model_files_decides(name))
		return STATUS_OK;
	if (access(path, F_OK) != 0)
		return error_set(err, STATUS_INVALID, name, "%s is missing, which " MODEL_SUMS " lists", name);
	TRY(checksum_file(path, found, err));
	if (strcmp(found, expected) == 0)
		return STATUS_OK;
	return error_set(err, STATUS_CORRUPT, name, "%s has the SHA-256 %s, " MODEL_SUMS " says %s", name, found,
	                 expected);
}

/* "HEX  NAME" (or " *NAME") a line. */
static status check_line(const char *folder, char *line, error *err)
{
	char expected[CHECKSUM_TEXT_BYTES];
	const char *name;
	line[strcspn(line, "\r")] = '\0';
	if (!line[0] || line[0] == '#')
		return STATUS_OK;
	if (!checksum_read(line, expected, &name) || *name != ' ' || (name[1] != ' ' && name[1] != '*') || !name[2])
		return error_set(err, STATUS_INVALID, MODEL_SUMS,
		                 MODEL_SUMS " has a line that sha256sum does not write");
	name += 2;
	return check_sum(folder, strncmp(name, "./", 2) == 0 ? name + 2 : name, expected, err);
}

static status check_sums(const char *folder, error *err)
{
	char path[PATH_MAX], *lines, *rest;
	size_t bytes;
	error reason = ERROR_INIT;
	TRY(path_join(path, folder, MODEL_SUMS, err));
	status s = file_read(path, MAX_SUMS, &lines, &bytes, &reason);
	if (s == STATUS_NOT_FOUND)
		return STATUS_OK;
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "%s", error_message(&reason));
	for (char *line = strtok_r(lines, "\n", &rest); line && s == STATUS_OK; line = strtok_r(NULL, "\n", &rest))
		s = check_line(folder, line, err);
	free(lines);
	if (s == STATUS_OK && unlink(path) != 0)
		s = file_error(err, path, "cannot remove");
	return s;
}

/* --- the folder ------------------------------------------------------------------------------------- */

static status require(const char *folder, const char *name, const char *part, const char *more, error *err)
{
	char path[PATH_MAX];
	TRY(path_join(path, folder, name, err));
	return access(path, F_OK) == 0
	           ? STATUS_OK
	           : error_set(err, STATUS_INVALID, part, "%s is missing among the files that were sent%s", name, more);
}

/* Refuse weights that are neither the model's nor named by an index. */
static status refuse_strays(const char *folder, error *err)
{
	status s = STATUS_OK;
	DIR *dir = opendir(folder);
	if (!dir)
		return file_error(err, folder, "cannot open folder");
	for (struct dirent *e; s == STATUS_OK && (e = readdir(dir));)
		if (is_weights(e->d_name) && !model_file_find(e->d_name))
			s = error_set(err, STATUS_INVALID, e->d_name,
			              "%.100s is not part of the model: no " MODEL_WEIGHTS_INDEX " names it",
			              e->d_name);
	closedir(dir);
	return s;
}

/* A tokenizer.json without a JSON object is a SentencePiece model; the part "tokenizer" of a form may be either. */
static status name_tokenizer(const char *folder, error *err)
{
	char from[PATH_MAX], to[PATH_MAX];
	int first;
	TRY(path_join(from, folder, "tokenizer.json", err));
	TRY(path_join(to, folder, "tokenizer.model", err));
	FILE *f = fopen(from, "rb");
	if (!f)
		return errno == ENOENT ? STATUS_OK : file_error(err, from, "cannot read");
	first = getc(f); /* field 1 of the model's message is a piece */
	fclose(f);
	if (first != '\n' || access(to, F_OK) == 0)
		return STATUS_OK;
	return rename(from, to) == 0 ? STATUS_OK : file_error(err, from, "cannot rename");
}

status model_files_prepare(const char *folder, error *err)
{
	TRY(check_sums(folder, err));
	TRY(require(folder, "config.json", "config", "", err));
	TRY(shards_join(folder, err));
	TRY(refuse_strays(folder, err));
	TRY(require(folder, WEIGHTS, "weights", " (weights of other formats, such as pytorch_model.bin, are not read)",
	            err));
	return name_tokenizer(folder, err);
}
