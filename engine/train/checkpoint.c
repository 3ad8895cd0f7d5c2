/* checkpoint.c - an existing folder with the name is exchanged atomically for the new one and then removed. Removing it
 * first would leave a moment without either. */
#include "engine/train/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/json_text.h"
#include "engine/base/manifest.h"
#include "engine/base/path.h"
#include "engine/model/adapter.h"
#include "engine/train/optimizer_file.h"

#define CARRIED "carried.safetensors"
#define BEST "best.safetensors"
#define TRAINED "trained.safetensors"
#define REFERENCE "reference.safetensors"
enum { STATE_MAX_BYTES = 16 << 20, CONFIG_DIGITS = 15 };

/* --- writing --------------------------------------------------------------------- */

static status write_state(const char *folder, const optimizer *o, const json_t *state, error *err)
{
	char path[PATH_MAX];
	TRY(path_join(path, folder, "trainer.json", err));
	status s = STATUS_NOMEM;
	char *text = NULL;
	json_t *all = json_pack("{s:s, s:i, s:I}", "format", "additive-trainer", "version", 1, "updates",
	                        (json_int_t)optimizer_updates(o));
	/* 17 significant digits restore every double exactly. */
	if (all && json_object_update(all, (json_t *)(uintptr_t)state) == 0)
		text = json_text(all, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
	if (text)
		s = file_write(path, &(file_part){text, strlen(text)}, 1, err);
	free(text);
	json_decref(all);
	return s;
}

static status write_kept(const char *folder, const char *name, const kept_weights *k, error *err)
{
	char path[PATH_MAX];
	TRY(path_join(path, folder, name, err));
	return kept_weights_write(k, path, err);
}

static status write_trained(const char *folder, const model *m, error *err)
{
	kept_weights *now;
	status s = kept_weights_new(&now, m);
	if (s == STATUS_OK)
		s = kept_weights_take(now);
	if (s == STATUS_OK)
		s = write_kept(folder, TRAINED, now, err);
	kept_weights_free(now);
	return s;
}

static status checkpoint_write_all(const char *folder, const checkpoint_parts *p, const tokenizer *tok,
                                   const json_t *state, error *err)
{
	if (chmod(folder, 0755) != 0)
		return error_set(err, STATUS_IO, NULL, "cannot make the checkpoint folder readable: %s",
		                 strerror(errno));
	TRY(model_save(p->model, folder, err));
	TRY(tokenizer_save(tok, folder, err));
	TRY(optimizer_file_write(folder, p->optimizer, err));
	if (p->carry) {
		char path[PATH_MAX];
		TRY(path_join(path, folder, CARRIED, err));
		TRY(carry_write(p->carry, p->step, path, err));
	}
	if (p->reference) {
		char path[PATH_MAX];
		TRY(path_join(path, folder, REFERENCE, err));
		TRY(reference_write(p->reference, path, err));
	}
	if (p->best)
		TRY(write_kept(folder, BEST, p->best, err));
	if (p->trained)
		TRY(write_trained(folder, p->trained, err));
	return write_state(folder, p->optimizer, state, err);
}

/* Rename the finished temporary folder durably. */
static status publish(const char *temporary, const char *folder, error *err)
{
	char parent[PATH_MAX];
	snprintf(parent, sizeof parent, "%s", folder);
	char *slash = strrchr(parent, '/');
	if (slash)
		slash[slash == parent] = 0;
	else
		strcpy(parent, ".");
	int rc = rename(temporary, folder);
	if (rc != 0 && (errno == ENOTEMPTY || errno == EEXIST))
		rc = renameat2(AT_FDCWD, temporary, AT_FDCWD, folder, RENAME_EXCHANGE);
	if (rc != 0)
		return error_set(err, STATUS_IO, NULL, "cannot rename the checkpoint: %s", strerror(errno));
	TRY(file_sync_folder(parent, err));
	/* Remove the folder that was exchanged, if any. A failure leaves garbage beside a good checkpoint. */
	file_remove_tree(temporary, NULL);
	return STATUS_OK;
}

status checkpoint_write(const char *folder, const checkpoint_parts *parts, const tokenizer *tok, const json_t *state,
                        const char *id, const json_t *about, error *err)
{
	char temporary[PATH_MAX];
	TRY(path_extend(temporary, folder, FILE_TEMPORARY "XXXXXX", err));
	if (!mkdtemp(temporary))
		return error_set(err, STATUS_IO, NULL, "cannot create the checkpoint folder: %s", strerror(errno));
	status s = checkpoint_write_all(temporary, parts, tok, state, err);
	if (s == STATUS_OK)
		s = manifest_write(temporary, "checkpoint", id, about, err);
	if (s == STATUS_OK)
		s = file_sync_folder(temporary, err);
	if (s == STATUS_OK)
		s = publish(temporary, folder, err);
	if (s == STATUS_OK)
		return s;
	file_remove_tree(temporary, NULL);
	return error_set(err, s, NULL, "cannot write the checkpoint: %s", status_text(s));
}

/* --- reading ----------------------------------------------------------------------- */

static status parse_state(const char *text, size_t bytes, json_t **state, error *err)
{
	json_error_t where;
	json_t *read;
	status s = json_read(&read, text, bytes, JSON_REJECT_DUPLICATES, &where);
	if (s == STATUS_NOMEM)
		return error_settle(err, s);
	if (s != STATUS_OK)
		return error_set(err, STATUS_CORRUPT, NULL, "trainer.json, line %d: %s", where.line, where.text);
	const char *format = json_string_value(json_object_get(read, "format"));
	if (!format || strcmp(format, "additive-trainer") != 0 ||
	    json_integer_value(json_object_get(read, "version")) != 1) {
		json_decref(read);
		return error_set(err, STATUS_CORRUPT, NULL, "trainer.json is not of a format this version reads");
	}
	*state = read;
	return STATUS_OK;
}

status checkpoint_read_state(const char *folder, json_t **state, error *err)
{
	manifest *about;
	char *text;
	size_t bytes;
	*state = NULL;
	status s = manifest_open_folder(&about, folder, err);
	if (s == STATUS_OK)
		s = manifest_read(about, folder, "trainer.json", STATE_MAX_BYTES, &text, &bytes, err);
	if (s == STATUS_OK) {
		s = parse_state(text, bytes, state, err);
		free(text);
	}
	manifest_free(about);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "cannot read the checkpoint: %s", status_text(s));
}

/* Return a model's configuration with the digits that config.json keeps. NULL: out of memory. */
static char *configuration_text(const model *m)
{
	json_t *json = model_architecture(m)->config_write(model_config(m));
	char *text = json_text(json, JSON_SORT_KEYS | JSON_REAL_PRECISION(CONFIG_DIGITS));
	json_decref(json);
	return text;
}

static status check_configuration(const model *m, const model *saved, error *err)
{
	char *own = configuration_text(m), *other = configuration_text(saved);
	status s = STATUS_OK;
	if (!own || !other)
		s = STATUS_NOMEM;
	else if (strcmp(own, other) != 0)
		s = error_set(err, STATUS_INVALID, "config", "the checkpoint's model has another configuration");
	free(own);
	free(other);
	return s;
}

static status load_adapter(const char *folder, model *m, error *err)
{
	char path[PATH_MAX];
	manifest *about;
	TRY(path_join(path, folder, adapter_file(m), err));
	TRY(manifest_open_folder(&about, folder, err));
	const status s = adapter_read(m, path, about, err);
	manifest_free(about);
	return s;
}

static status load_weights(const char *folder, model *m, error *err)
{
	if (model_base(m))
		return load_adapter(folder, m, err);
	model *saved;
	backend *b = model_backend(m);
	TRY(model_open(&saved, folder, DTYPE_F32, b, err));
	status s = check_configuration(m, saved, err);
	if (s == STATUS_OK)
		s = b->copy(b, model_arena(m), model_arena(saved), (size_t)model_arena_floats(m) * sizeof(float));
	if (s == STATUS_OK)
		s = b->synchronize(b); /* before the source is freed */
	model_free(saved);
	return s;
}

status checkpoint_load(const char *folder, const json_t *state, model *m, optimizer *o, error *err)
{
	const json_t *updates = json_object_get(state, "updates");
	if (!json_is_integer(updates) || json_integer_value(updates) < 0)
		return error_set(err, STATUS_CORRUPT, NULL, "trainer.json lacks \"updates\"");
	status s = load_weights(folder, m, err);
	if (s == STATUS_OK)
		s = optimizer_file_read(folder, o, err);
	if (s == STATUS_OK)
		optimizer_set_updates(o, json_integer_value(updates));
	return s == STATUS_OK ? s : error_set(err, s, NULL, "cannot load the checkpoint: %s", status_text(s));
}

/* Open one file other than the model's. */
static status open_part(const char *folder, const char *name, char path[PATH_MAX], manifest **about, error *err)
{
	TRY(path_join(path, folder, name, err));
	return manifest_open_folder(about, folder, err);
}

static status close_part(manifest *about, status s, error *err)
{
	manifest_free(about);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "cannot load the checkpoint: %s", status_text(s));
}

status checkpoint_load_carry(const char *folder, carry *c, int64_t step, error *err)
{
	char path[PATH_MAX];
	manifest *about;
	if (!c)
		return STATUS_OK;
	TRY(open_part(folder, CARRIED, path, &about, err));
	return close_part(about, carry_read(c, step, path, about, err), err);
}

status checkpoint_load_reference(const char *folder, reference *r, error *err)
{
	char path[PATH_MAX];
	manifest *about;
	if (!r)
		return STATUS_OK;
	TRY(open_part(folder, REFERENCE, path, &about, err));
	return close_part(about, reference_read(r, path, about, err), err);
}

static status load_kept(const char *folder, const char *name, kept_weights *k, error *err)
{
	char path[PATH_MAX];
	manifest *about;
	TRY(open_part(folder, name, path, &about, err));
	return close_part(about, kept_weights_read(k, path, about, err), err);
}

status checkpoint_load_trained(const char *folder, model *m, error *err)
{
	kept_weights *read;
	status s = kept_weights_new(&read, m);
	if (s == STATUS_OK)
		s = load_kept(folder, TRAINED, read, err);
	if (s == STATUS_OK)
		s = kept_weights_use(read);
	kept_weights_free(read);
	return s;
}

status checkpoint_load_best(const char *folder, kept_weights *b, error *err)
{
	return b ? load_kept(folder, BEST, b, err) : STATUS_OK;
}
