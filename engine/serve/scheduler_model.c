/* scheduler_model.c - the loaded models. A list: there are a handful. */
#include <assert.h>
#include <string.h>

#include "engine/serve/scheduler_state.h"

void scheduler_model_touch(scheduler *s, served_model *m)
{
	m->last_used = ++s->clock;
}

static served_model *find(const scheduler *s, const char *id)
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
	served_model_free(m);
}

/* Unload the idle model that was used the longest ago. */
static status make_room(scheduler *s, error *err)
{
	served_model *oldest = NULL;
	for (served_model *m = s->models; m; m = m->next)
		if (m->users == 0 && (!oldest || m->last_used < oldest->last_used))
			oldest = m;
	if (!oldest)
		return error_set(err, STATUS_BUSY, NULL, "all %d models that may be loaded at once are in use",
		                 s->limits.max_models);
	unload(s, oldest);
	return STATUS_OK;
}

status scheduler_model(scheduler *s, const char *id, const char *folder, dtype weights, served_model **out, error *err)
{
	served_model *m = find(s, id);
	*out = NULL;
	if (m && model_weights(m->model) != weights) {
		TRY(scheduler_model_unload(s, id, err));
		m = NULL;
	}
	if (!m) {
		if (strlen(id) >= SCHEDULER_ID_BYTES)
			return error_set(err, STATUS_INVALID, "model", "a model's id has at most %d bytes",
			                 SCHEDULER_ID_BYTES - 1);
		if (s->n_models >= s->limits.max_models)
			TRY(make_room(s, err));
		int64_t slots = (int64_t)s->limits.max_sessions + s->limits.max_generations;
		TRY(served_model_open(&m, id, folder, weights, s->backend, s->limits.max_batch, slots, err));
		m->next = s->models;
		s->models = m;
		s->n_models++;
	}
	scheduler_model_touch(s, m);
	*out = m;
	return STATUS_OK;
}

status scheduler_model_unload(scheduler *s, const char *id, error *err)
{
	served_model *m = find(s, id);
	if (m && m->users > 0)
		return error_set(err, STATUS_CONFLICT, "model", "the model is in use by %d sessions or requests",
		                 m->users);
	if (m)
		unload(s, m);
	return STATUS_OK;
}

bool scheduler_model_loaded(const scheduler *s, const char *id)
{
	return find(s, id) != NULL;
}

void scheduler_model_free_all(scheduler *s)
{
	while (s->models)
		unload(s, s->models);
}
