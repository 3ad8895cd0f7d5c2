/* catalog.c - entries are in a list ordered by last use; the last one that nothing uses is dropped first. */
#include "engine/daemon/catalog/catalog.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/manifest.h"
#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "engine/model/class_names.h"
#include "engine/model/model_folder.h"
#include "engine/recipe/job_document.h"
#include "engine/serve/prefix_disk.h"

struct catalog {
	store *store;
	model_entry *first; /* each holds a reference */
	int count;
	prefix_disk *prefix_disk;
};

/* --- weights -------------------------------------------------------------------- */

static const struct {
	const char *name;
	dtype weights;
} dtypes[] = {{"fp32", DTYPE_PANEL_F32}, {"bf16", DTYPE_PANEL_BF16}, {"int8", DTYPE_PANEL_INT8}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

bool catalog_find_dtype(const char *name, dtype *out)
{
	int i = 0;
	while (i < DTYPES && strcmp(dtypes[i].name, name) != 0)
		i++;
	if (i < DTYPES)
		*out = dtypes[i].weights;
	return i < DTYPES;
}

const char *catalog_dtype_name(dtype weights)
{
	int i = 0;
	while (dtypes[i].weights != weights)
		i++;
	return dtypes[i].name;
}

status catalog_close(model_entry *m, model_closing purpose, error *err)
{
	if (m->gate == MODEL_CLOSED)
		return error_set(err, STATUS_CONFLICT, "model", "another request changes the model");
	if (m->loads > 0 && purpose != CLOSE_TO_CHANGE)
		return error_set(err, STATUS_CONFLICT, "model", "the model is being loaded");
	m->gate = MODEL_CLOSED;
	m->deleting = purpose == CLOSE_TO_DELETE;
	return STATUS_OK;
}

void catalog_reopen(model_entry *m, bool deleted)
{
	m->deleting = deleted;
	m->gate = deleted ? MODEL_DELETED : MODEL_OPEN;
}

bool catalog_prepare(const model_entry *m, device *d)
{
	const model_gate gate = m->gate;
	if (gate == MODEL_CLOSED)
		device_wait(d, m->id);
	return gate == MODEL_DELETED || (gate == MODEL_OPEN && device_prepare(d, m->id, m->folder, m->weights));
}

status catalog_model(model_entry *m, device *d, served_model **out, error *err)
{
	*out = NULL;
	if (m->gate == MODEL_DELETED)
		return error_set(err, STATUS_NOT_FOUND, "model", "there is no model \"%.64s\"", m->id);
	return catalog_load(m, d, m->weights, out, err);
}

static void copy_problem(char out[MODEL_ENTRY_PROBLEM_BYTES], error *err, status s)
{
	error_settle(err, s);
	snprintf(out, MODEL_ENTRY_PROBLEM_BYTES, "%.*s", MODEL_ENTRY_PROBLEM_BYTES - 1, error_message(err));
	utf8_repair(out);
}

static void note_load_problem(model_entry *m, error *err, status s)
{
	static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER; /* several executors may load the model */
	pthread_mutex_lock(&noting);
	if (!m->load_problem[0])
		copy_problem(m->load_problem, err, s);
	pthread_mutex_unlock(&noting);
}

status catalog_load(model_entry *m, device *d, dtype weights, served_model **out, error *err)
{
	error reason = ERROR_INIT;
	status s = device_model(d, m->id, m->folder, weights, out, &reason);
	if (s == STATUS_STORAGE)
		note_load_problem(m, &reason, s);
	if (s == STATUS_OK || s == STATUS_STORAGE)
		m->unloadable = s == STATUS_STORAGE;
	return s == STATUS_OK
	           ? s
	           : error_set(err, s, reason.param, "%s", reason.message[0] ? reason.message : status_text(s));
}

static status read_weights(const catalog *all, model_entry *m, error *err)
{
	char name[STORE_DTYPE_BYTES];
	dtype weights;
	TRY(store_dtype_get(all->store, m->id, name, err));
	if (!catalog_find_dtype(name, &weights))
		return error_set(err, STATUS_CORRUPT, NULL, "the ledger holds an unknown dtype \"%s\"", name);
	m->weights = weights;
	return STATUS_OK;
}

/* --- reading a folder ------------------------------------------------------------ */

static status fill_from_config(model_entry *m, const json_t *json, error *err)
{
	void *config = m->parsed;
	TRY(model_folder_complete(&m->config, m->architecture, config, json, err));
	m->dims = *architecture_dims(config);
	if (m->dims.form->head == HEAD_CLASSES)
		m->class_names = class_names_read(m->config, m->dims.outputs);
	if (m->dims.form->head == HEAD_CLASSES && !m->class_names)
		return STATUS_NOMEM;
	m->explainer = architecture_explainer(m->architecture, config);
	m->parameters = architecture_count_parameters(m->architecture, config);
	state_list states = {0};
	architecture_states(m->architecture, config, &states);
	m->state_bytes = state_list_slot(&states) * (int64_t)sizeof(float);
	bool whole = m->config && m->parameters >= 0 && states.status == STATUS_OK;
	state_list_free(&states);
	return whole ? STATUS_OK : STATUS_NOMEM;
}

/* An invalid or unknown template only affects conversations. */
static status fill_chat(model_entry *m, const json_t *config, error *err)
{
	status s = chat_template_open(&m->chat, m->tokenizer, config, &m->chat_problem);
	bool wrong = s == STATUS_INVALID || s == STATUS_UNSUPPORTED;
	return s == STATUS_OK || wrong ? STATUS_OK : error_set(err, s, NULL, "%s", error_message(&m->chat_problem));
}

/* Fill the fields of an entry that come from its folder. */
static status catalog_fill(model_entry *m, error *err)
{
	json_t *json;
	manifest *about;
	TRY(manifest_open_folder(&about, m->folder, err));
	status s = model_folder_config(&m->architecture, &json, about, m->folder, err);
	manifest_free(about);
	TRY(s);
	m->parsed = memory_new(1, m->architecture->config_bytes);
	s = m->parsed ? fill_from_config(m, json, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = tokenizer_open(&m->tokenizer, m->folder, m->dims.inputs, err);
	if (s == STATUS_OK)
		s = fill_chat(m, json, err);
	json_decref(json);
	return s;
}

status catalog_check_explains(const model_entry *m, bool with_tokens, const char *param, error *err)
{
	if (!m->explainer)
		return error_set(err, STATUS_INVALID, param, "the architecture %s has no importance weights",
		                 m->architecture->name);
	if (with_tokens && !m->explainer->scores)
		return error_set(
		    err, STATUS_INVALID, param,
		    "the architecture %s has no importance weights to send with tokens; explain the text, or "
		    "a session opened with explain",
		    m->architecture->name);
	return STATUS_OK;
}

status catalog_check_classifies(const model_entry *m, const char *param, error *err)
{
	if (m->dims.form->head == HEAD_CLASSES)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, param, "the architecture %s has no head for classes",
	                 m->architecture->name);
}

int32_t catalog_mask(const model_entry *m)
{
	return m->dims.mask >= 0 ? (int32_t)m->dims.mask : tokenizer_mask(m->tokenizer);
}

int32_t catalog_start(const model_entry *m)
{
	return m->dims.start >= 0 ? (int32_t)m->dims.start : tokenizer_start(m->tokenizer);
}

status catalog_check_reads_alone(const model_entry *m, const char *param, error *err)
{
	if (!m->dims.form->source)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, param, "the model needs a source, which this request cannot give");
}

status catalog_check_fills_masks(const model_entry *m, const char *param, error *err)
{
	if (!m->dims.form->fills)
		return error_set(err, STATUS_INVALID, param, "the architecture %s %s, it does not fill in masks",
		                 m->architecture->name, m->dims.form->does);
	if (catalog_mask(m) == TOKEN_NONE)
		return error_set(err, STATUS_INVALID, param, "neither the model nor its tokenizer has a mask token");
	return STATUS_OK;
}

/* --- names ----------------------------------------------------------------------- */

bool catalog_parse_checkpoint(const char *id, char job[STORE_ID_BYTES], int64_t *step)
{
	if (strncmp(id, JOB_CHECKPOINT_PREFIX, strlen(JOB_CHECKPOINT_PREFIX)) != 0)
		return false;
	const char *hex = id + strlen(JOB_CHECKPOINT_PREFIX);
	if (strspn(hex, "0123456789abcdef") != JOB_ID_DIGITS || hex[JOB_ID_DIGITS] != '-')
		return false;
	const char *digits = hex + JOB_ID_DIGITS + 1;
	size_t n = strlen(digits);
	if (n == 0 || n > 18 || strspn(digits, "0123456789") != n)
		return false;
	*step = strtoll(digits, NULL, 10);
	snprintf(job, STORE_ID_BYTES, JOB_ID_PREFIX "%.*s", JOB_ID_DIGITS, hex);
	return true;
}

typedef struct search {
	const char *id;
	int64_t created;
	bool found;
} search;

static bool match(void *context, const json_t *row)
{
	search *find = context;
	const char *id = json_string_value(json_object_get(row, "id"));
	find->found = id && strcmp(id, find->id) == 0;
	find->created = json_integer_value(json_object_get(row, "created_at"));
	return !find->found;
}

#define UNKNOWN_PROJECT "?" /* no project's name */

static status no_checkpoint(error *err, const char *id)
{
	return error_set(err, STATUS_NOT_FOUND, "model", "there is no checkpoint \"%.64s\"", id);
}

static status locate_checkpoint(catalog *all, model_entry *m, const char *job, int64_t step, error *err)
{
	bool more;
	json_t *owner = NULL;
	store *s = all->store;
	search find = {.id = m->id};
	TRY(store_list(s, STORE_CHECKPOINTS, &(store_page){.parent = job}, match, &find, &more, err));
	if (!find.found)
		return no_checkpoint(err, m->id);
	const status found = store_job_get(s, job, &owner, NULL);
	if (found != STATUS_OK && found != STATUS_STORAGE)
		return error_settle(err, found);
	/* The project is unknown if the job's row is damaged: only admins may use the checkpoint. */
	const bool adapter = job_document_is_adapter(owner);
	const char *project = found == STATUS_OK ? job_document_text(owner, "project") : UNKNOWN_PROJECT;
	snprintf(m->project, sizeof m->project, "%s", project ? project : "");
	json_decref(owner);
	if (adapter)
		return error_set(err, STATUS_INVALID, "model", "the checkpoint \"%.64s\" is one of an adapter, not a model",
		                 m->id);
	snprintf(m->owned_by, sizeof m->owned_by, "%s", job);
	m->created = find.created;
	store_checkpoint_folder(s, job, step, m->folder);
	return STATUS_OK;
}

/* Find the folder in which the store keeps the entry's id. */
static status locate(catalog *all, model_entry *m, error *err)
{
	char job[STORE_ID_BYTES];
	int64_t step;
	store_model row;
	if (catalog_parse_checkpoint(m->id, job, &step))
		return locate_checkpoint(all, m, job, step, err);
	TRY(store_model_get(all->store, m->id, &row, err));
	snprintf(m->owned_by, sizeof m->owned_by, "%s", row.owned_by);
	snprintf(m->project, sizeof m->project, "%s", row.project);
	m->created = row.created;
	store_model_folder(all->store, m->id, m->folder);
	return STATUS_OK;
}

/* --- the table ------------------------------------------------------------------- */

void catalog_release(model_entry *m)
{
	if (!m || --m->references > 0)
		return;
	json_decref(m->config);
	json_decref(m->class_names);
	free(m->parsed);
	for (int i = 0; i < FLEET_MAX; i++)
		kept_constraints_fini(&m->constraints[i]);
	for (int i = 0; i < 2; i++)
		token_trie_free(m->tries[i]);
	tokenizer_free(m->tokenizer);
	chat_template_free(m->chat);
	free(m);
}

status catalog_token_trie(model_entry *m, bool marks, const token_trie **out)
{
	static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER; /* shared by all entries, which are few */
	status s = STATUS_OK;
	marks = marks && tokenizer_has_marks(m->tokenizer);
	pthread_mutex_lock(&making);
	if (!m->tries[marks])
		s = token_trie_new(&m->tries[marks], m->tokenizer, m->dims.outputs, marks);
	*out = m->tries[marks];
	pthread_mutex_unlock(&making);
	return s;
}

static model_entry *unlink_entry(catalog *all, model_entry **link)
{
	model_entry *m = *link;
	*link = m->next;
	m->next = NULL;
	all->count--;
	return m;
}

static void link_entry(catalog *all, model_entry *m)
{
	m->next = all->first;
	all->first = m;
	all->count++;
}

static model_entry **find_entry(catalog *all, const char *id)
{
	model_entry **link = &all->first;
	while (*link && strcmp((*link)->id, id) != 0)
		link = &(*link)->next;
	return link;
}

/* Drop the least recently used entry without other references, if any. */
static void drop_oldest(catalog *all)
{
	model_entry **last = NULL;
	for (model_entry **link = &all->first; *link; link = &(*link)->next)
		if ((*link)->references == 1)
			last = link;
	if (last)
		catalog_release(unlink_entry(all, last));
}

store_table catalog_table(const model_entry *m)
{
	char job[STORE_ID_BYTES];
	int64_t step;
	return catalog_parse_checkpoint(m->id, job, &step) ? STORE_CHECKPOINTS : STORE_MODELS;
}

/* Fill an entry from its row and its folder. */
static status catalog_read_object(catalog *all, model_entry *m, error *err)
{
	TRY(locate(all, m, err));
	TRY(store_check_blob(all->store, catalog_table(m), m->id, false, err));
	TRY(read_weights(all, m, err));
	return catalog_fill(m, err);
}

/* Any fault of a stored model is reported as damage, because the request itself is valid. */
static status read_entry(catalog *all, const char *id, model_entry **out, error *err)
{
	error reason = ERROR_INIT;
	*out = NULL;
	model_entry *m = memory_new(1, sizeof *m);
	if (!m)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	m->references = 1;
	m->weights = DTYPE_PANEL_F32;
	snprintf(m->id, sizeof m->id, "%s", id);
	status s = catalog_read_object(all, m, &reason);
	bool known = m->folder[0] || s == STATUS_STORAGE;
	if (s == STATUS_NOMEM || (s != STATUS_OK && !known)) {
		catalog_release(m);
		return error_set(err, s, reason.param, "%s", reason.message[0] ? reason.message : status_text(s));
	}
	if (s != STATUS_OK) {
		copy_problem(m->problem, &reason, s);
		store_note_damage(all->store, catalog_table(m), id, m->problem);
	}
	*out = m;
	return STATUS_OK;
}

status catalog_inspect(catalog *all, const char *id, model_entry **out, error *err)
{
	*out = NULL;
	model_entry **link = find_entry(all, id), *m;
	if (!store_valid_name(id) || (*link && (*link)->deleting))
		return error_set(err, STATUS_NOT_FOUND, "model", "there is no model \"%.64s\"", id);
	if (*link)
		m = unlink_entry(all, link);
	else
		TRY(read_entry(all, id, &m, err));
	*out = m;
	if (m->problem[0])
		return STATUS_OK; /* read again next time, because it may have been repaired */
	link_entry(all, m);
	m->references++;
	if (all->count > CATALOG_MAX)
		drop_oldest(all);
	return STATUS_OK;
}

status catalog_open(catalog *all, const char *id, model_entry **out, error *err)
{
	model_entry *m;
	*out = NULL;
	TRY(catalog_inspect(all, id, &m, err));
	if (m->problem[0]) {
		error reason = ERROR_INIT;
		error_set(&reason, STATUS_STORAGE, "model", "the model \"%s\" is damaged: %s", id, m->problem);
		log_line(LOG_ERROR, "%s", reason.message);
		catalog_release(m);
		return error_set(err, STATUS_STORAGE, reason.param, "%s", reason.message);
	}
	*out = m;
	return STATUS_OK;
}

static status check_generates(const model_entry *m, error *err)
{
	if (m->dims.parallel_only)
		return error_set(err, STATUS_INVALID, "model", "the model does not generate text: it has %s",
		                 m->dims.parallel_only);
	if (m->dims.form->stepwise)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "model", "the architecture %s does not generate text; it can %s",
	                 m->architecture->name, m->dims.form->offers);
}

status catalog_open_generative(catalog *all, const char *id, model_entry **out, error *err)
{
	TRY(catalog_open(all, id, out, err));
	status s = check_generates(*out, err);
	if (s != STATUS_OK) {
		catalog_release(*out);
		*out = NULL;
	}
	return s;
}

status catalog_check_project(catalog *all, const char *id, const char *project, error *err)
{
	const model_entry *known = *find_entry(all, id);
	model_entry *read = known ? NULL : memory_new(1, sizeof *read);
	status s = known || read ? STATUS_OK : STATUS_NOMEM;
	if (read) {
		snprintf(read->id, sizeof read->id, "%s", id);
		s = locate(all, read, err);
		known = read;
	}
	const bool checkpoint = known && catalog_table(known) == STORE_CHECKPOINTS;
	const bool allowed = s == STATUS_NOT_FOUND || (s == STATUS_OK && ((!known->project[0] && !checkpoint) ||
	                                                                  strcmp(known->project, project) == 0));
	free(read);
	if (allowed || (s != STATUS_OK && s != STATUS_NOT_FOUND))
		return allowed ? STATUS_OK : s;
	return checkpoint ? no_checkpoint(err, id)
	                  : error_set(err, STATUS_NOT_FOUND, "model", "there is no model \"%.64s\"", id);
}

const char *catalog_problem(const model_entry *m)
{
	return m->problem[0] ? m->problem : m->unloadable ? m->load_problem : NULL;
}

void catalog_note_damage(catalog *all)
{
	for (const model_entry *m = all->first; m; m = m->next)
		if (m->unloadable)
			store_note_damage(all->store, catalog_table(m), m->id, m->load_problem);
}

status catalog_set_weights(catalog *all, model_entry *m, dtype weights, error *err)
{
	TRY(store_dtype_put(all->store, m->id, catalog_dtype_name(weights), err));
	m->weights = weights;
	return STATUS_OK;
}

void catalog_forget(catalog *all, const char *id)
{
	model_entry **link = find_entry(all, id);
	if (*link)
		catalog_release(unlink_entry(all, link));
	prefix_disk_remove_model(all->prefix_disk, id);
}

/* Make the row of a finished folder. If the folder is sealed, its seal is kept. */
static status catalog_describe(store_model *row, const char *id, const char *folder, const char *project, error *err)
{
	model_entry m = {.references = 1};
	manifest *about = NULL;
	*row = (store_model){.created = clock_unix(), .owned_by = "user"};
	snprintf(row->id, sizeof row->id, "%s", id);
	snprintf(row->project, sizeof row->project, "%s", project);
	snprintf(m.folder, sizeof m.folder, "%s", folder);
	status s = catalog_fill(&m, err);
	if (s == STATUS_OK && m.chat_problem.status == STATUS_INVALID)
		s = error_set(err, STATUS_INVALID, m.chat_problem.param, "%s", error_message(&m.chat_problem));
	if (s == STATUS_OK)
		s = manifest_open_folder(&about, folder, err);
	if (s == STATUS_OK) {
		snprintf(row->architecture, sizeof row->architecture, "%s", m.architecture->name);
		row->parameters = m.parameters;
	}
	if (about && strcmp(manifest_id(about), id) == 0)
		row->created = json_integer_value(json_object_get(manifest_about(about), "created"));
	manifest_free(about);
	json_decref(m.config);
	json_decref(m.class_names);
	free(m.parsed);
	tokenizer_free(m.tokenizer);
	chat_template_free(m.chat);
	return s;
}

status catalog_seal(const char *id, const char *folder, const char *project, error *err)
{
	store_model row;
	TRY(catalog_describe(&row, id, folder, project, err));
	return store_model_seal(&row, folder, err);
}

status catalog_add(catalog *all, const char *id, const char *folder, const char *project, error *err)
{
	store_model row;
	TRY(catalog_describe(&row, id, folder, project, err));
	return store_model_add(all->store, &row, folder, err);
}

status catalog_new(catalog **out, store *s)
{
	*out = memory_new(1, sizeof **out);
	if (!*out)
		return STATUS_NOMEM;
	(*out)->store = s;
	return STATUS_OK;
}

void catalog_set_prefix_disk(catalog *all, prefix_disk *d)
{
	all->prefix_disk = d;
}

void catalog_free(catalog *all)
{
	if (!all)
		return;
	while (all->first)
		catalog_release(unlink_entry(all, &all->first));
	free(all);
}
