#include "engine/recipe/file_statistics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "engine/base/cache_folder.h"
#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/json_text.h"
#include "engine/recipe/corpus_chat.h"
#include "engine/recipe/job_check.h"
#include "engine/recipe/training_form.h"
#include "engine/text/text_counts.h"

enum { FORMAT = 1 /* a part of every key */, KEPT_BYTES = 1 << 20 };

/* --- kept results ---------------------------------------------------------------------- */

static status make_path(const file_statistics_source *from, uint64_t hash, uint64_t chat, char path[PATH_MAX],
                        error *err)
{
	const uint64_t words[] = {FORMAT, tokenizer_digest(from->tokenizer), hash, chat,
	                          corpus_hint_of_file(from->path)};
	const int n = snprintf(path, PATH_MAX, "%s/%016llx.statistics", from->cache.folder,
	                       (unsigned long long)digest_bytes(words, sizeof words));
	return n < PATH_MAX ? STATUS_OK : error_set(err, STATUS_INVALID, NULL, "path too long");
}

/* The digest of the JSON as text, a line feed, the JSON. *out NULL: there is no result, or a damaged one. */
static status read_kept(json_t **out, const char *path, error *err)
{
	enum { HEAD = DIGEST_TEXT_BYTES /* the place of a NUL is the line feed's */ };
	char *data;
	size_t bytes;
	uint64_t digest;
	*out = NULL;
	if (file_read(path, KEPT_BYTES, &data, &bytes, NULL) != STATUS_OK)
		return STATUS_OK;
	status s = STATUS_OK;
	if (bytes > HEAD && digest_read(data, &digest) && digest == digest_bytes(data + HEAD, bytes - HEAD))
		s = json_read(out, data + HEAD, bytes - HEAD, 0, NULL);
	free(data);
	if (*out)
		utimensat(AT_FDCWD, path, NULL, 0); /* the time of its last use */
	return s == STATUS_NOMEM ? error_settle(err, s) : STATUS_OK;
}

/* Without room for it the result is made again when it is needed. */
static void keep(const file_statistics_source *from, const json_t *result, const char *path)
{
	char digest[DIGEST_TEXT_BYTES], *text = json_text(result, JSON_COMPACT);
	const size_t bytes = text ? strlen(text) : 0;
	if (text) {
		digest_write(digest_bytes(text, bytes), digest);
		const file_part parts[] = {{digest, DIGEST_TEXT_BYTES - 1}, {"\n", 1}, {text, bytes}};
		file_write(path, parts, 3, NULL);
		cache_folder_collect(from->cache.folder,
		                     from->cache.budget < from->cache.room ? from->cache.budget : from->cache.room);
	}
	free(text);
}

/* --- the result as JSON ----------------------------------------------------------------- */

static const char *kind_name(training_form form, bool data)
{
	static const char *const names[] = {
	    [FORM_TEXT] = "documents",  [FORM_PROSE] = "text",  [FORM_CHAT] = "chat",
	    [FORM_LABELLED] = "labels", [FORM_PAIRS] = "pairs", [FORM_PREFERENCES] = "preferences"};
	return data ? names[form] : "text";
}

/* JSON null if there are no documents. */
static json_t *lengths_object(const length_counts *c)
{
	return c->n == 0 ? json_null()
	                 : json_pack("{s:I, s:I, s:I, s:I, s:I}", "min", (json_int_t)c->least, "p50",
	                             (json_int_t)length_counts_percentile(c, 50), "p90",
	                             (json_int_t)length_counts_percentile(c, 90), "p99",
	                             (json_int_t)length_counts_percentile(c, 99), "max", (json_int_t)c->most);
}

static json_t *scripts_array(text_counts *c)
{
	json_t *list = json_array();
	const char *name;
	int64_t n;
	for (int i = 0; list && (name = script_counts_at(&c->scripts, i, &n)); i++)
		json_array_append_new(list, json_pack("{s:s, s:I, s:f}", "script", name, "characters", (json_int_t)n,
		                                      "share", (double)n / (double)c->characters));
	return list;
}

static json_t *result_object(const file_statistics_source *from, text_counts *c, training_form form, int64_t bytes)
{
	bool estimated;
	const json_int_t duplicates = duplicate_count_value(c->duplicates, &estimated);
	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:{s:o, s:o}, s:{s:I, s:b}, s:I, s:o}", "kind",
	                 kind_name(form, c->data), "tokenizer", tokenizer_type(from->tokenizer), "bytes",
	                 (json_int_t)bytes, "documents", (json_int_t)c->documents, "characters",
	                 (json_int_t)c->characters, "tokens", (json_int_t)c->tokens, "lengths", "characters",
	                 lengths_object(&c->lengths[0]), "tokens", lengths_object(&c->lengths[1]), "duplicates",
	                 "count", duplicates, "estimated", estimated, "invalid_utf8_lines",
	                 (json_int_t)c->invalid_lines, "scripts", scripts_array(c));
}

/* --- the whole ---------------------------------------------------------------------------- */

static status count_file(json_t **out, const file_statistics_source *from, const corpus_chat *chat, error *err)
{
	const training_form form =
	    corpus_hint_of_file(from->path) == CORPUS_HINT_TEXT ? FORM_PROSE : training_form_of(from->path);
	struct stat st;
	byte_source *source;
	text_counts c;
	if (form == FORM_CHAT && !chat->own)
		return error_set(err, STATUS_INVALID, "model", "%s", error_message(&chat->problem));
	if (stat(from->path, &st) != 0)
		return file_error(err, from->path, "cannot read");
	TRY(job_check_file(from->path, from->id, err));
	TRY(byte_source_open(&source, from->path, err));
	const text_counts_options o = {.tokenizer = from->tokenizer,
	                               .chat = &chat->use,
	                               .records = training_form_records(form),
	                               .documents = FILE_STATISTICS_DOCUMENTS,
	                               .cancel = from->cancel};
	status s = text_counts_read(&c, source, &o, err);
	if (s == STATUS_OK && !(*out = result_object(from, &c, form, st.st_size)))
		s = error_settle(err, STATUS_NOMEM);
	text_counts_fini(&c);
	return s;
}

/* Open the chat template and find where the result is kept. hash: the file's. */
static status begin(const file_statistics_source *from, uint64_t hash, corpus_chat *chat, char path[PATH_MAX],
                    error *err)
{
	TRY(corpus_chat_open(chat, from->tokenizer, from->config, err));
	status s = make_path(from, hash, chat->digest, path, err);
	if (s != STATUS_OK)
		corpus_chat_close(chat);
	return s;
}

status file_statistics_find(json_t **out, const file_statistics_source *from, error *err)
{
	corpus_chat chat;
	char path[PATH_MAX];
	uint64_t hash;
	*out = NULL;
	if (!job_check_known_hash(from->path, &hash))
		return STATUS_OK;
	TRY(begin(from, hash, &chat, path, err));
	corpus_chat_close(&chat);
	return read_kept(out, path, err);
}

static status count_and_keep(json_t **out, const file_statistics_source *from, const corpus_chat *chat,
                             const char *path, error *err)
{
	status s = count_file(out, from, chat, err);
	if (s == STATUS_OK)
		keep(from, *out, path);
	else if (s == STATUS_INVALID && !err->param[0])
		snprintf(err->param, sizeof err->param, "id");
	return s;
}

status file_statistics_make(json_t **out, const file_statistics_source *from, error *err)
{
	corpus_chat chat;
	char path[PATH_MAX];
	uint64_t hash;
	*out = NULL;
	TRY(job_check_hash(from->path, &hash, err));
	TRY(begin(from, hash, &chat, path, err));
	status s = read_kept(out, path, err);
	if (s == STATUS_OK && !*out)
		s = count_and_keep(out, from, &chat, path, err);
	corpus_chat_close(&chat);
	return s;
}
