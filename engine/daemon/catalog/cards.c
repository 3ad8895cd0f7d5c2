/* The table of cards: a list in order of use, so the last one is the one to drop. */
#include "engine/daemon/catalog/cards.h"

#include <errno.h>
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

enum { JOB_HEX = 24 };
#define CHECKPOINT_PREFIX "ckpt-"
#define JOB_PREFIX "ftjob-"

struct cards {
	store *store;
	card *first; /* each holds a reference of its own */
	int count;
};

/* --- weights -------------------------------------------------------------------- */

static const struct {
	const char *name;
	dtype weights;
} dtypes[] = {{"fp32", DTYPE_PANEL_F32}, {"bf16", DTYPE_PANEL_BF16}, {"int8", DTYPE_PANEL_INT8}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

bool cards_find_dtype(const char *name, dtype *out)
{
	int i = 0;
	while (i < DTYPES && strcmp(dtypes[i].name, name) != 0)
		i++;
	if (i < DTYPES)
		*out = dtypes[i].weights;
	return i < DTYPES;
}

const char *cards_dtype_name(dtype weights)
{
	int i = 0;
	while (dtypes[i].weights != weights)
		i++;
	return dtypes[i].name;
}

bool cards_prepare(const card *c, device *d)
{
	return device_prepare(d, c->id, c->folder, c->weights);
}

status cards_model(card *c, device *d, served_model **out, error *err)
{
	return cards_load(c, d, c->weights, out, err);
}

static void copy_problem(char out[CARD_PROBLEM_BYTES], error *why, status s)
{
	error_settle(why, s);
	snprintf(out, CARD_PROBLEM_BYTES, "%.*s", CARD_PROBLEM_BYTES - 1, error_message(why));
	utf8_repair(out);
}

status cards_load(card *c, device *d, dtype weights, served_model **out, error *err)
{
	error why = ERROR_INIT;
	status s = device_model(d, c->id, c->folder, weights, out, &why);
	if (s == STATUS_STORAGE && !c->load_problem[0])
		copy_problem(c->load_problem, &why, s);
	if (s == STATUS_OK || s == STATUS_STORAGE)
		c->unloadable = s == STATUS_STORAGE;
	return s == STATUS_OK ? s : error_set(err, s, why.param, "%s", why.message[0] ? why.message : status_text(s));
}

static status read_weights(const cards *all, card *c, error *err)
{
	char name[STORE_DTYPE_BYTES];
	dtype weights;
	TRY(store_dtype_get(all->store, c->id, name, err));
	if (!cards_find_dtype(name, &weights))
		return error_set(err, STATUS_CORRUPT, NULL, "the ledger holds an unknown dtype \"%s\"", name);
	c->weights = weights;
	return STATUS_OK;
}

/* --- reading a folder ------------------------------------------------------------ */

int64_t cards_count_parameters(const architecture *a, const void *config)
{
	parameter_list list = {0};
	int64_t total = 0;
	a->parameters(config, &list);
	bool ok = list.status == STATUS_OK;
	for (int i = 0; ok && i < list.count; i++)
		ok = shape_check(list.items[i].shape) == STATUS_OK &&
		     !__builtin_add_overflow(total, shape_count(list.items[i].shape), &total);
	parameter_list_free(&list);
	return ok ? total : -1;
}

static status fill_from_config(card *c, const json_t *json, error *err)
{
	void *config = c->parsed;
	TRY(c->architecture->config_read(config, json, err));
	c->config = c->architecture->config_write(config);
	c->architecture->dims(config, &c->dims);
	if (c->dims.head == HEAD_CLASSES) {
		c->class_names = class_names_read(json, c->dims.outputs);
		if (!c->config || !c->class_names || !class_names_write(c->config, c->class_names))
			return STATUS_NOMEM;
	}
	c->explainer = architecture_explainer(c->architecture, config);
	c->parameters = cards_count_parameters(c->architecture, config);
	state_list states = {0};
	architecture_states(c->architecture, config, &states);
	c->state_bytes = state_list_slot(&states) * (int64_t)sizeof(float);
	bool whole = c->config && c->parameters >= 0 && states.status == STATUS_OK;
	state_list_free(&states);
	return whole ? STATUS_OK : STATUS_NOMEM;
}

/* Everything a card says that its folder knows. */
static status fill(card *c, error *err)
{
	json_t *json;
	manifest *about;
	TRY(manifest_open_folder(&about, c->folder, err));
	status s = model_folder_config(&c->architecture, &json, about, c->folder, err);
	manifest_free(about);
	TRY(s);
	c->parsed = memory_new(1, c->architecture->config_bytes);
	s = c->parsed ? fill_from_config(c, json, err) : STATUS_NOMEM;
	json_decref(json);
	return s == STATUS_OK ? tokenizer_open(&c->tokenizer, c->folder, c->dims.inputs, err) : s;
}

status cards_check_explains(const card *c, bool with_tokens, const char *param, error *err)
{
	if (!c->explainer)
		return error_set(err, STATUS_INVALID, param, "the architecture %s has no importance weights",
		                 c->architecture->name);
	if (with_tokens && !c->explainer->scores)
		return error_set(
		    err, STATUS_INVALID, param,
		    "the architecture %s has no importance weights to send with tokens; explain the text, or "
		    "a session opened with explain",
		    c->architecture->name);
	return STATUS_OK;
}

status cards_check_classifies(const card *c, const char *param, error *err)
{
	if (c->dims.head == HEAD_CLASSES)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, param, "the architecture %s has no head for classes",
	                 c->architecture->name);
}

/* --- names ----------------------------------------------------------------------- */

void cards_checkpoint_name(const char *job, int64_t step, char out[STORE_ID_BYTES])
{
	snprintf(out, STORE_ID_BYTES, CHECKPOINT_PREFIX "%.*s-%lld", JOB_HEX, job + strlen(JOB_PREFIX),
	         (long long)step);
}

bool cards_parse_checkpoint(const char *id, char job[STORE_ID_BYTES], int64_t *step)
{
	if (strncmp(id, CHECKPOINT_PREFIX, strlen(CHECKPOINT_PREFIX)) != 0)
		return false;
	const char *hex = id + strlen(CHECKPOINT_PREFIX);
	if (strspn(hex, "0123456789abcdef") != JOB_HEX || hex[JOB_HEX] != '-')
		return false;
	const char *digits = hex + JOB_HEX + 1;
	size_t n = strlen(digits);
	if (n == 0 || n > 18 || strspn(digits, "0123456789") != n)
		return false;
	*step = strtoll(digits, NULL, 10);
	snprintf(job, STORE_ID_BYTES, JOB_PREFIX "%.*s", JOB_HEX, hex);
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

static status locate_checkpoint(cards *all, card *c, const char *job, int64_t step, error *err)
{
	bool more;
	store *s = all->store;
	search find = {.id = c->id};
	TRY(store_list(s, STORE_CHECKPOINTS, &(store_page){.parent = job}, match, &find, &more, err));
	if (!find.found)
		return error_set(err, STATUS_NOT_FOUND, "model", "there is no checkpoint \"%.64s\"", c->id);
	snprintf(c->owned_by, sizeof c->owned_by, "%s", job);
	c->created = find.created;
	store_checkpoint_folder(s, job, step, c->folder);
	return STATUS_OK;
}

/* Where the store keeps what the card's id names. */
static status locate(cards *all, card *c, error *err)
{
	char job[STORE_ID_BYTES];
	int64_t step;
	store_model row;
	if (cards_parse_checkpoint(c->id, job, &step))
		return locate_checkpoint(all, c, job, step, err);
	TRY(store_model_get(all->store, c->id, &row, err));
	snprintf(c->owned_by, sizeof c->owned_by, "%s", row.owned_by);
	c->created = row.created;
	store_model_folder(all->store, c->id, c->folder);
	return STATUS_OK;
}

/* --- the table ------------------------------------------------------------------- */

void cards_release(card *c)
{
	if (!c || --c->references > 0)
		return;
	json_decref(c->config);
	json_decref(c->class_names);
	free(c->parsed);
	tokenizer_free(c->tokenizer);
	free(c);
}

static card *unlink_card(cards *all, card **link)
{
	card *c = *link;
	*link = c->next;
	c->next = NULL;
	all->count--;
	return c;
}

static void link_card(cards *all, card *c)
{
	c->next = all->first;
	all->first = c;
	all->count++;
}

static card **find_card(cards *all, const char *id)
{
	card **link = &all->first;
	while (*link && strcmp((*link)->id, id) != 0)
		link = &(*link)->next;
	return link;
}

static void drop_oldest(cards *all)
{
	card **last = &all->first;
	while ((*last)->next)
		last = &(*last)->next;
	cards_release(unlink_card(all, last));
}

store_table cards_table(const card *c)
{
	char job[STORE_ID_BYTES];
	int64_t step;
	return cards_parse_checkpoint(c->id, job, &step) ? STORE_CHECKPOINTS : STORE_MODELS;
}

/* What a card says, from the row and the folder. */
static status read_object(cards *all, card *c, error *err)
{
	TRY(locate(all, c, err));
	TRY(store_check_blob(all->store, cards_table(c), c->id, false, err));
	TRY(read_weights(all, c, err));
	return fill(c, err);
}

/* Whatever is wrong with what the store has is damage, and not what the client asked for. */
static status read_card(cards *all, const char *id, card **out, error *err)
{
	error why = ERROR_INIT;
	*out = NULL;
	card *c = memory_new(1, sizeof *c);
	if (!c)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	c->references = 1;
	c->weights = DTYPE_PANEL_F32;
	snprintf(c->id, sizeof c->id, "%s", id);
	status s = read_object(all, c, &why);
	bool known = c->folder[0] || s == STATUS_STORAGE;
	if (s == STATUS_NOMEM || (s != STATUS_OK && !known)) {
		cards_release(c);
		return error_set(err, s, why.param, "%s", why.message[0] ? why.message : status_text(s));
	}
	if (s != STATUS_OK) {
		copy_problem(c->problem, &why, s);
		store_note_damage(all->store, cards_table(c), id, c->problem);
	}
	*out = c;
	return STATUS_OK;
}

status cards_inspect(cards *all, const char *id, card **out, error *err)
{
	*out = NULL;
	card **link = find_card(all, id), *c;
	if (!store_valid_name(id) || (*link && (*link)->deleting))
		return error_set(err, STATUS_NOT_FOUND, "model", "there is no model \"%.64s\"", id);
	if (*link)
		c = unlink_card(all, link);
	else
		TRY(read_card(all, id, &c, err));
	*out = c;
	if (c->problem[0])
		return STATUS_OK; /* read again next time: it may have been put right */
	link_card(all, c);
	c->references++;
	if (all->count > CARDS_MAX)
		drop_oldest(all);
	return STATUS_OK;
}

status cards_open(cards *all, const char *id, card **out, error *err)
{
	card *c;
	*out = NULL;
	TRY(cards_inspect(all, id, &c, err));
	if (c->problem[0]) {
		error why = ERROR_INIT;
		error_set(&why, STATUS_STORAGE, "model", "the model \"%s\" is damaged: %s", id, c->problem);
		log_line(LOG_ERROR, "%s", why.message);
		cards_release(c);
		return error_set(err, STATUS_STORAGE, why.param, "%s", why.message);
	}
	*out = c;
	return STATUS_OK;
}

static status check_generates(const card *c, error *err)
{
	if (c->dims.causal && c->dims.head == HEAD_VOCABULARY)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "model", "the architecture %s does not generate text; it can %sembed",
	                 c->architecture->name, c->dims.head == HEAD_CLASSES ? "classify and " : "");
}

status cards_open_generative(cards *all, const char *id, card **out, error *err)
{
	TRY(cards_open(all, id, out, err));
	status s = check_generates(*out, err);
	if (s != STATUS_OK) {
		cards_release(*out);
		*out = NULL;
	}
	return s;
}

const char *cards_problem(const card *c)
{
	return c->problem[0] ? c->problem : c->unloadable ? c->load_problem : NULL;
}

void cards_note_damage(cards *all)
{
	for (const card *c = all->first; c; c = c->next)
		if (c->unloadable)
			store_note_damage(all->store, cards_table(c), c->id, c->load_problem);
}

status cards_keep_weights(cards *all, const card *c, error *err)
{
	card **known = find_card(all, c->id);
	if (*known) /* not always c: the table may have dropped it meanwhile */
		(*known)->weights = c->weights;
	return store_dtype_put(all->store, c->id, cards_dtype_name(c->weights), err);
}

void cards_forget(cards *all, const char *id)
{
	card **link = find_card(all, id);
	if (*link)
		cards_release(unlink_card(all, link));
}

/* The row of a finished folder. What it is sealed with already stays. */
static status describe(store_model *row, const char *id, const char *folder, const char *owned_by, error *err)
{
	card c = {.references = 1};
	manifest *about = NULL;
	*row = (store_model){.created = clock_unix()};
	snprintf(row->id, sizeof row->id, "%s", id);
	snprintf(row->owned_by, sizeof row->owned_by, "%s", owned_by);
	snprintf(c.folder, sizeof c.folder, "%s", folder);
	status s = fill(&c, err);
	if (s == STATUS_OK)
		s = manifest_open_folder(&about, folder, err);
	if (s == STATUS_OK) {
		snprintf(row->architecture, sizeof row->architecture, "%s", c.architecture->name);
		row->parameters = c.parameters;
	}
	if (about && strcmp(manifest_id(about), id) == 0)
		row->created = json_integer_value(json_object_get(manifest_about(about), "created"));
	manifest_free(about);
	json_decref(c.config);
	json_decref(c.class_names);
	free(c.parsed);
	tokenizer_free(c.tokenizer);
	return s;
}

status cards_seal(const char *id, const char *folder, const char *owned_by, error *err)
{
	store_model row;
	TRY(describe(&row, id, folder, owned_by, err));
	return store_model_seal(&row, folder, err);
}

status cards_add(cards *all, const char *id, const char *folder, const char *owned_by, error *err)
{
	store_model row;
	TRY(describe(&row, id, folder, owned_by, err));
	return store_model_add(all->store, &row, folder, err);
}

status cards_new(cards **out, store *s)
{
	*out = memory_new(1, sizeof **out);
	if (!*out)
		return STATUS_NOMEM;
	(*out)->store = s;
	return STATUS_OK;
}

void cards_free(cards *all)
{
	if (!all)
		return;
	while (all->first)
		cards_release(unlink_card(all, &all->first));
	free(all);
}
