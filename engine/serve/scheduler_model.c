/* scheduler_model.c - the list of loaded models (there are few), and the model being loaded.
 *
 * One model is loaded at a time. Loading two at once would delay the first and not speed up the second. */
#include <assert.h>
#include <string.h>

#include "engine/serve/scheduler_state.h"

void scheduler_model_touch(scheduler *s, served_model *m)
{
	m->last_used = ++s->clock;
}

static served_model *scheduler_model_find(const scheduler *s, const char *id)
{
	served_model *m = s->models;
	while (m && strcmp(m->id, id) != 0)
		m = m->next;
	return m;
}

static void unload(scheduler *s, served_model *m)
{
	served_model **link = &s->models;
	while (*link != m)
		link = &(*link)->next;
	*link = m->next;
	s->n_models--;
	s->turn = 0;
	assert(!s->ahead || s->ahead->model != m);
	prefixes_free(&s->prefixes, m);
	served_model_free(m);
}

/* Unload the least recently used idle model. False: there is none. */
static bool make_room(scheduler *s)
{
	served_model *oldest = NULL;
	for (served_model *m = s->models; m; m = m->next)
		if (m->users == 0 && (!oldest || m->last_used < oldest->last_used))
			oldest = m;
	if (oldest)
		unload(s, oldest);
	return oldest;
}

bool scheduler_model_loading(const scheduler *s, const char *id)
{
	return s->loading && strcmp(s->loading->id, id) == 0;
}

void scheduler_model_abandon(scheduler *s)
{
	served_model_free(s->loading);
	s->loading = NULL;
}

static status scheduler_model_begin(scheduler *s, const char *id, const char *folder, dtype weights, error *err)
{
	if (strlen(id) >= SCHEDULER_ID_BYTES)
		return error_set(err, STATUS_INVALID, "model", "a model's id has at most %d bytes",
		                 SCHEDULER_ID_BYTES - 1);
	if (s->n_models >= s->limits.max_models && !make_room(s))
		return error_set(err, STATUS_BUSY, NULL, "all %d models that may be loaded at once are in use",
		                 s->limits.max_models);
	/* Score tasks are limited by max_generations, too. */
	int64_t slots = (int64_t)s->limits.max_sessions + 2 * (int64_t)s->limits.max_generations;
	return served_model_new(&s->loading, id, folder, weights, s->backend, s->limits.max_batch, slots, err);
}

/* Load for one step; a complete model joins the list. */
static status go_on(scheduler *s, error *err)
{
	bool done;
	status result = served_model_load(s->loading, &done, err);
	if (result != STATUS_OK) {
		scheduler_model_abandon(s);
		return result;
	}
	if (done) {
		s->loading->next = s->models;
		s->models = s->loading;
		s->loading = NULL;
		s->n_models++;
	}
	return STATUS_OK;
}

status scheduler_model_step(scheduler *s, const char *id, const char *folder, dtype weights, served_model **out,
                            error *err)
{
	served_model *m = scheduler_model_find(s, id);
	*out = NULL;
	if (m && m->weights != weights) {
		TRY(scheduler_model_unload(s, id, err));
		m = NULL;
	}
	if (!m && s->loading && (!scheduler_model_loading(s, id) || s->loading->weights != weights))
		return STATUS_OK; /* another model is being loaded */
	if (!m) {
		status result = s->loading ? go_on(s, err) : scheduler_model_begin(s, id, folder, weights, err);
		if (result == STATUS_NOMEM && make_room(s)) {
			if (err)
				*err = (error)ERROR_INIT;
			return STATUS_OK; /* the next call begins again */
		}
		TRY(result);
		m = scheduler_model_find(s, id);
	}
	if (m)
		scheduler_model_touch(s, m);
	*out = m;
	return STATUS_OK;
}

status scheduler_model(scheduler *s, const char *id, const char *folder, dtype weights, served_model **out, error *err)
{
	if (!scheduler_model_loading(s, id) || s->loading->weights != weights)
		scheduler_model_abandon(s);
	do
		TRY(scheduler_model_step(s, id, folder, weights, out, err));
	while (!*out);
	return STATUS_OK;
}

status scheduler_model_check_idle(const scheduler *s, const char *id, error *err)
{
	const served_model *m = scheduler_model_find(s, id);
	if (scheduler_model_loading(s, id))
		return error_set(err, STATUS_CONFLICT, "model", "the model is being loaded");
	if (m && m->users > 0)
		return error_set(err, STATUS_CONFLICT, "model", "the model is in use by %d sessions or requests",
		                 m->users);
	return STATUS_OK;
}

status scheduler_model_unload(scheduler *s, const char *id, error *err)
{
	TRY(scheduler_model_check_idle(s, id, err));
	served_model *m = scheduler_model_find(s, id);
	if (m)
		unload(s, m);
	return STATUS_OK;
}

bool scheduler_model_loaded(const scheduler *s, const char *id)
{
	return scheduler_model_find(s, id) != NULL;
}

bool scheduler_prefix_ready(scheduler *s, const char *id, const generation_request *r, prefix_wait *w)
{
	served_model *m = scheduler_model_find(s, id);
	return !m || prefixes_ready(&s->prefixes, m, r, w);
}

bool scheduler_prepare(scheduler *s)
{
	served_model *m = s->models;
	while (m && m->joined.done)
		m = m->next;
	if (m && served_model_prepare(m, &m->joined) != STATUS_OK)
		m->joined.done = true; /* the device is lost, which the owner notices */
	return m;
}

void scheduler_model_free_all(scheduler *s)
{
	scheduler_model_abandon(s);
	while (s->models)
		unload(s, s->models);
}
