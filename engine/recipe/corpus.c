#include "engine/recipe/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/cache_folder.h"
#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/recipe/corpus_chat.h"
#include "engine/recipe/job_check.h"
#include "engine/recipe/job_defaults.h"
#include "engine/recipe/job_tokenizer.h"
#include "engine/recipe/training_form.h"
#include "engine/text/corpus_tokens.h"
#include "engine/text/labelled.h"
#include "engine/text/pairs.h"
#include "engine/text/preferences.h"
#include "engine/text/sequence.h"

enum { FORMAT = 4 /* a part of every key: what the same text and tokenizer become */ };

static status find_tokenizer(corpus *c, error *err)
{
	char(*paths)[PATH_MAX] = memory_new(c->n_training, sizeof *paths);
	if (!paths)
		return STATUS_NOMEM;
	for (size_t i = 0; i < c->n_training; i++)
		c->paths.path(c->paths.context, c->training[i].id, paths[i]);
	const job_tokenizer_source source = {.folder = c->folder,
	                                     .vocab = c->vocab,
	                                     .spec = c->spec,
	                                     .paths = c->paths,
	                                     .texts = paths,
	                                     .n_texts = c->n_training,
	                                     .cache = c->cache.folder,
	                                     .temporary = c->temporary,
	                                     .cancel = &c->cancel};
	status s = job_tokenizer_open(&c->texts.tokenizer, &source, err);
	free(paths);
	return s;
}

static status open_tokenizer(corpus *c, error *err)
{
	status s = c->texts.tokenizer ? STATUS_OK : find_tokenizer(c, err);
	if (s == STATUS_INVALID && !err->param[0] && tokenizer_trains(c->spec)) /* the text that it is trained on */
		snprintf(err->param, sizeof err->param, "training_file");
	if (s != STATUS_OK && strcmp(err->param, "training_file") == 0)
		return s;
	if (s != STATUS_OK) {
		error_prefix(err, "additive.tokenizer");
		return s;
	}
	if (tokenizer_size(c->texts.tokenizer) > c->vocab)
		return error_set(err, STATUS_INVALID, "additive.config.vocab_size",
		                 "the tokenizer has %d ids, the model only %lld",
		                 (int)tokenizer_size(c->texts.tokenizer), (long long)c->vocab);
	return STATUS_OK;
}

/* A dataset's complaint is about the file, unless it is about how it is cut. */
static status blame(status s, error *err, const char *file)
{
	static const char *const ours[] = {"sequence_length", "source_length", "tokenizer", "validation_fraction",
	                                   "loss_on"};
	if (s == STATUS_OK)
		return s;
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (strcmp(err->param, ours[i]) == 0) {
			error_prefix(err, "additive");
			return s;
		}
	snprintf(err->param, sizeof err->param, "%s", file);
	return s;
}

/* --- a file as cached tokens ------------------------------------------------------------ */

/* Inputs that determine a text's tokens, beside the text and the tokenizer. */
typedef struct text_form {
	const conversation_template *chat; /* running text and preferences */
	const char *const *classes;        /* labelled texts: as for labelled_text_build */
	uint64_t digest;                   /* digest of all these */
} text_form;

static pair_lengths lengths_of(const corpus *c)
{
	return (pair_lengths){c->source_length, c->length};
}

/* For running text only out's tokens are set; for pairs and preferences only its records. */
static status open_form(const corpus *c, const char *path, uint64_t key, labelled_text *out, error *err)
{
	int32_t vocab = tokenizer_size(c->texts.tokenizer);
	*out = (labelled_text){0};
	return c->records == RECORD_LABELLED ? labelled_text_open(out, path, key, vocab, err)
	       : c->records == RECORD_BLOCK  ? token_cache_open(&out->text.tokens, path, key, vocab, err)
	                                     : record_text_open(&out->text, path, key, vocab, err);
}

static status build_form(const corpus *c, const text_form *form, byte_source *source, corpus_tokens_options *o,
                         labelled_text *out, error *err)
{
	const tokenizer *t = c->texts.tokenizer;
	*out = (labelled_text){0};
	o->chat = form->chat;
	switch (c->records) {
	case RECORD_LABELLED:
		return labelled_text_build(out, source, t, c->length, form->classes, o, err);
	case RECORD_PAIR:
		return pairs_build(&out->text, source, t, lengths_of(c), o, err);
	case RECORD_PREFERENCE:
		return preferences_build(&out->text, source, t, c->length, o, err);
	default:
		return corpus_tokens_build(&out->text.tokens, source, t, o, err);
	}
}

/* If the data budget is short, remove unused files to make room for the tokens of `bytes` bytes of text. There is at
 * most one token for each byte, which takes slightly more than 4 bytes; entries are smaller than their lines. Returns
 * the limit of the new files' bytes; 0: none. */
static int64_t make_room(const corpus_cache *cache, int64_t bytes)
{
	enum { EACH = 5, INDEX = 1 << 20 };
	if (cache->room == INT64_MAX)
		return 0;
	int64_t others = bytes < (cache->room - INDEX) / EACH ? cache->room - INDEX - EACH * bytes : 0;
	int64_t left = cache->room - cache_folder_collect(cache->folder, others);
	return left > 0 ? left : 1;
}

/* Into files of a temporary name, which are then given their own. bytes: of the text. */
static status build_files(corpus *c, const text_form *form, size_t number, byte_source *source, int64_t bytes,
                          const char *path, corpus_tokens_options *o, labelled_text *out, error *err)
{
	char temporary[PATH_MAX];
	snprintf(temporary, sizeof temporary, "%s-%zu", c->temporary, number);
	o->path = temporary;
	o->most = make_room(&c->cache, bytes);
	TRY(build_form(c, form, source, o, out, err));
	if (c->records == RECORD_BLOCK ? rename(temporary, path) == 0 : record_text_rename(temporary, path))
		return file_sync_folder(c->cache.folder, err);
	status s = file_error(err, path, "cannot rename");
	record_text_unlink(temporary);
	labelled_text_close(out);
	return s;
}

/* The name that a client's message should have for a text of ours that is full or damaged stays out of it. */
static status open_cached(corpus *c, const char *path, uint64_t key, labelled_text *out)
{
	error cause = ERROR_INIT;
	status s = open_form(c, path, key, out, &cause);
	if (s == STATUS_STORAGE)
		record_text_unlink(path); /* made again from the text */
	return s;
}

/* Open file `id`, which is the number-th of the job. */
static status open_text(corpus *c, const text_form *form, size_t number, const char *id, labelled_text *out, error *err)
{
	char path[PATH_MAX], cached[PATH_MAX - 16];
	struct stat st;
	byte_source *source;
	corpus_tokens_options o = {.cancel = &c->cancel};
	c->paths.path(c->paths.context, id, path);
	uint64_t words[5] = {FORMAT, tokenizer_digest(c->texts.tokenizer), 0, form->digest, corpus_hint_of_file(path)};
	TRY(job_check_hash(path, &words[2], err));
	o.key = digest_bytes(words, sizeof words);
	snprintf(cached, sizeof cached, "%s/%016llx.tokens", c->cache.folder, (unsigned long long)o.key);
	if (open_cached(c, cached, o.key, out) == STATUS_OK)
		return STATUS_OK;
	TRY(job_check_file(path, id, err));
	TRY(byte_source_open(&source, path, err));
	int64_t bytes = !byte_source_compressed(source) && stat(path, &st) == 0 ? st.st_size : INT64_MAX;
	if (bytes <= CORPUS_SMALL_BYTES)
		return build_form(c, form, source, &o, out, err);
	TRY(build_files(c, form, number, source, bytes, cached, &o, out, err));
	cache_folder_collect(c->cache.folder, c->cache.budget < c->cache.room ? c->cache.budget : c->cache.room);
	return STATUS_OK;
}

/* --- datasets ---------------------------------------------------------------------------- */

typedef struct source_texts {
	dataset_text texts[CORPUS_MAX_FILES];
	size_t n;
} source_texts;

static void close_texts(source_texts *t)
{
	for (size_t i = 0; i < t->n; i++)
		token_cache_free(t->texts[i].tokens);
}

static status open_texts(corpus *c, const corpus_file *files, size_t n, size_t number, source_texts *out, error *err)
{
	corpus_chat t;
	out->n = 0;
	status s = corpus_chat_open(&t, c->texts.tokenizer, c->config, err);
	const text_form form = {.chat = &t.use, .digest = t.digest};
	for (size_t i = 0; i < n && s == STATUS_OK; i++) {
		labelled_text text;
		s = open_text(c, &form, number + i, files[i].id, &text, err);
		out->texts[i] = (dataset_text){text.text.tokens, files[i].weight};
		out->n += s == STATUS_OK;
	}
	corpus_chat_close(&t);
	return s;
}

static status make_blocks(corpus *c, const source_texts *t, double share, dataset **train, dataset **valid, error *err)
{
	const dataset_options o = {.length = c->length,
	                           .held_back = share,
	                           .split_documents = c->split_documents,
	                           .completions = c->completions,
	                           .reset_at_document = c->reset_at_document};
	return dataset_make(train, valid, c->texts.tokenizer, t->texts, t->n, &o, err);
}

static int64_t count_tokens(const source_texts *t)
{
	int64_t tokens = 0;
	for (size_t i = 0; i < t->n; i++)
		tokens += token_cache_tokens(t->texts[i].tokens);
	return tokens;
}

static status build_training_blocks(corpus *c, error *err)
{
	source_texts t;
	error ignored = ERROR_INIT;
	status s = open_texts(c, c->training, c->n_training, 0, &t, err);
	if (s == STATUS_OK && c->fit.length)
		c->length = job_defaults_block(count_tokens(&t), c->fit.epochs, c->length);
	if (s == STATUS_OK && c->holdout < 0)
		c->holdout = make_blocks(c, &t, CORPUS_HOLDOUT, &c->texts.train, &c->texts.valid, &ignored) == STATUS_OK
		                 ? CORPUS_HOLDOUT
		                 : 0;
	if (s == STATUS_OK && !c->texts.train)
		s = make_blocks(c, &t, c->holdout, &c->texts.train, &c->texts.valid, err);
	close_texts(&t);
	if (c->fit.length && strcmp(err->param, "sequence_length") == 0)
		err->param[0] = 0; /* the data chose the length: the file is too short */
	return blame(s, err, "training_file");
}

static status build_blocks(corpus *c, error *err)
{
	TRY(build_training_blocks(c, err));
	if (!c->validation[0])
		return STATUS_OK;
	source_texts t;
	corpus_file file = {.weight = 1};
	memcpy(file.id, c->validation, sizeof file.id);
	status s = open_texts(c, &file, 1, c->n_training, &t, err);
	if (s == STATUS_OK)
		s = make_blocks(c, &t, 0, &c->texts.valid, NULL, err);
	close_texts(&t);
	return blame(s, err, "validation_file");
}

/* --- labelled texts, pairs and preferences --------------------------------------------------- */

/* The key of a text includes its lengths, the chat template of preferences, and known classes: a label that is none of
 * these is an error. */
static status open_records(corpus *c, size_t number, const char *id, const char *const *classes, labelled_text *out,
                           error *err)
{
	const uint64_t salt[] = {c->records, (uint64_t)c->length, SEQUENCE_FORMAT, (uint64_t)c->source_length};
	const size_t words = c->records == RECORD_PAIR ? 4 : 3;
	corpus_chat chat = {0};
	text_form form = {.classes = classes, .digest = digest_bytes(salt, words * sizeof *salt)};
	if (c->records == RECORD_PREFERENCE) {
		TRY(corpus_chat_open(&chat, c->texts.tokenizer, c->config, err));
		const uint64_t both[] = {form.digest, chat.digest};
		form.digest = digest_bytes(both, sizeof both);
		form.chat = &chat.use;
	}
	for (size_t i = 0; classes && classes[i]; i++) {
		const uint64_t both[] = {form.digest, digest_bytes(classes[i], strlen(classes[i]))};
		form.digest = digest_bytes(both, sizeof both);
	}
	const status s = open_text(c, &form, number, id, out, err);
	if (form.chat)
		corpus_chat_close(&chat);
	return s;
}

static status make_records(const corpus *c, const labelled_text *x, double share, dataset **train, dataset **valid,
                           error *err)
{
	const tokenizer *t = c->texts.tokenizer;
	return c->records == RECORD_PAIR         ? pairs_make(train, valid, t, &x->text, lengths_of(c), share, err)
	       : c->records == RECORD_PREFERENCE ? preferences_make(train, valid, t, &x->text, c->length, share, err)
	                                         : labelled_make(train, valid, t, x, c->length, share, err);
}

static status build_training_records(corpus *c, const char *const *classes, error *err)
{
	labelled_text x;
	error ignored = ERROR_INIT;
	dataset **train = &c->texts.train, **valid = &c->texts.valid;
	TRY(open_records(c, 0, c->training[0].id, classes, &x, err));
	if (c->holdout < 0)
		c->holdout =
		    make_records(c, &x, CORPUS_HOLDOUT, train, valid, &ignored) == STATUS_OK ? CORPUS_HOLDOUT : 0;
	status s = *train ? STATUS_OK : make_records(c, &x, c->holdout, train, valid, err);
	labelled_text_close(&x);
	return s;
}

static status build_fitting_records(corpus *c, const char *const *classes, error *err)
{
	bool changed;
	TRY(build_training_records(c, classes, err));
	TRY(corpus_lengths_fit(c, &changed, err));
	if (!changed)
		return STATUS_OK;
	dataset_free(c->texts.train);
	dataset_free(c->texts.valid);
	c->texts.train = c->texts.valid = NULL;
	return build_training_records(c, classes, err);
}

static status build_validation_records(corpus *c, error *err)
{
	labelled_text x;
	TRY(open_records(c, 1, c->validation, c->records == RECORD_LABELLED ? labelled_classes(c->texts.train) : NULL,
	                 &x, err));
	status s = make_records(c, &x, 0, &c->texts.valid, NULL, err);
	labelled_text_close(&x);
	return s;
}

static status build_records(corpus *c, error *err)
{
	const char **classes;
	/* The names of the classes, NULL-terminated, to be freed; NULL: not given, or (STATUS_NOMEM) out of memory. */
	size_t n = json_array_size(c->classes);
	classes = c->classes ? memory_new(n + 1, sizeof *classes) : NULL;
	for (size_t i = 0; classes && i < n; i++)
		classes[i] = json_string_value(json_array_get(c->classes, i));
	if (c->classes && !classes)
		return STATUS_NOMEM;
	status s = blame(build_fitting_records(c, classes, err), err, "training_file");
	free(classes);
	return s == STATUS_OK && c->validation[0] ? blame(build_validation_records(c, err), err, "validation_file") : s;
}

/* --- both ------------------------------------------------------------------------------------ */

static training_form find_form_of(const corpus *c, const char *id)
{
	char path[PATH_MAX];
	c->paths.path(c->paths.context, id, path);
	return training_form_of(path);
}

static training_form find_form(const corpus *c)
{
	return find_form_of(c, c->training[0].id);
}

static bool has_conversations_only(const corpus *c)
{
	for (size_t i = 0; i < c->n_training; i++)
		if (find_form_of(c, c->training[i].id) != FORM_CHAT)
			return false;
	return !c->validation[0] || find_form_of(c, c->validation) == FORM_CHAT;
}

/* Records are no running text, unless the request says so, and running text is neither. */
static status check_form(const corpus *c, error *err)
{
	if (c->records == RECORD_BLOCK && !c->objective_open)
		return STATUS_OK;
	const training_form form = find_form(c);
	const char *advice = training_form_records(form) == c->records ? NULL : training_form_advice(form);
	if (c->records == RECORD_BLOCK)
		return advice ? error_set(err, STATUS_INVALID, "additive.objective", "must be given: %s", advice)
		              : STATUS_OK;
	return form == FORM_PROSE ? error_set(err, STATUS_INVALID, "training_file", "the file is running text; %s",
	                                      training_form_example(c->records))
	                          : STATUS_OK;
}

/* Lines that the objective cannot read may fit another; else the message shows what it reads. */
static status advise(const corpus *c, status s, error *err)
{
	if (s != STATUS_INVALID || strcmp(err->param, "training_file") != 0)
		return s;
	const training_form form = find_form(c);
	const char *advice = training_form_records(form) == c->records ? NULL : training_form_advice(form);
	const size_t used = strlen(err->message);
	advice = advice ? advice : training_form_example(c->records);
	if (advice)
		snprintf(err->message + used, sizeof err->message - used, "; %s", advice);
	return s;
}

static status check_not_empty(const corpus *c, const char *id, const char *field, error *err)
{
	char path[PATH_MAX];
	struct stat st;
	c->paths.path(c->paths.context, id, path);
	return stat(path, &st) == 0 && st.st_size == 0 ? error_set(err, STATUS_INVALID, field, "the file is empty")
	                                               : STATUS_OK;
}

static status check_files(const corpus *c, error *err)
{
	for (size_t i = 0; i < c->n_training; i++)
		TRY(check_not_empty(c, c->training[i].id, "training_file", err));
	if (c->validation[0])
		TRY(check_not_empty(c, c->validation, "validation_file", err));
	return check_form(c, err);
}

static status build_all(corpus *c, error *err)
{
	TRY(open_tokenizer(c, err));
	if (c->validation[0])
		c->holdout = 0;
	if (c->completions_open)
		c->completions = has_conversations_only(c);
	return c->records == RECORD_BLOCK ? build_blocks(c, err) : build_records(c, err);
}

static status build(corpus *c)
{
	TRY(check_files(c, &c->error));
	return advise(c, build_all(c, &c->error), &c->error);
}

status corpus_build(corpus *c)
{
	status s = c->texts.train ? STATUS_OK : build(c);
	if (s != STATUS_OK)
		error_set(&c->error, s, "training_file", "%s", status_text(s));
	return s;
}

status corpus_open_tokens(corpus *c, token_cache **out)
{
	source_texts t;
	*out = NULL;
	status s = open_tokenizer(c, &c->error);
	if (s == STATUS_OK) {
		s = open_texts(c, c->training, 1, 0, &t, &c->error);
		if (s == STATUS_OK)
			*out = token_cache_share(t.texts[0].tokens);
		close_texts(&t);
		blame(s, &c->error, "training_file");
	}
	return error_settle(&c->error, s);
}

status corpus_count(const corpus_texts *t, int64_t vocab, int64_t **out, error *err)
{
	*out = memory_new((size_t)vocab, sizeof **out);
	if (!*out)
		return STATUS_NOMEM;
	TRY(dataset_count(t->train, *out, err));
	return t->valid ? dataset_count(t->valid, *out, err) : STATUS_OK;
}

int64_t corpus_memory(const corpus_texts *t)
{
	return (t->train ? dataset_memory(t->train) : 0) + (t->valid ? dataset_memory(t->valid) : 0);
}

void corpus_free(corpus_texts *t)
{
	tokenizer_free(t->tokenizer);
	dataset_free(t->train);
	dataset_free(t->valid);
	*t = (corpus_texts){0};
}
