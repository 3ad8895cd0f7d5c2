#include "engine/daemon/generation/methods.h"

#include "engine/daemon/generation/carried_state.h"
#include "engine/daemon/generation/completions.h"
#include "engine/daemon/generation/generation.h"
#include "engine/daemon/sessions/session_task.h"

static json_t *session_prompts_read_object(choices *c)
{
	const choices_plan *p = choices_get_plan(c);
	json_t *object = sessions_object(p->session);
	const bool complete = !p->snapshot[0] ||
	                      json_object_set_new(object, "snapshot", json_string(p->snapshot)) == 0;
	if (!object || (complete && carried_state_add(p, object)))
		return object;
	json_decref(object);
	return NULL;
}

static status prepare_create(stream *s, choices_plan *spec, error *err)
{
	TRY(catalog_open_generative(generation_room_of(s)->catalog,
	                            json_string_value(json_object_get(s->params, "model")), &spec->model, err));
	const json_t *source = json_object_get(s->params, "source");
	if (source && !spec->model->dims.source)
		return error_set(err, STATUS_INVALID, "source", "this model reads no source");
	spec->prompt.sources = source;
	TRY(completions_read_prompts(spec, s->params, json_object_get(s->params, "prompt"), err));
	spec->sampling.request.n_logprobs = -1;
	sampling_default(&spec->sampling.request.sampling);
	spec->answer.result = session_prompts_read_object;
	spec->all_or_nothing = true;
	return session_task_make(s, generation_room_of(s)->sessions, spec->model, &spec->session, &spec->ticket, err);
}

void session_prompts_create(stream *s)
{
	error err = ERROR_INIT;
	const json_t *prompt = json_object_get(s->params, "prompt");
	bool empty = !prompt || (json_is_string(prompt) && json_string_length(prompt) == 0);
	if (empty && !json_object_get(s->params, "source")) {
		session_task_create(s, generation_room_of(s)->sessions);
		return;
	}
	choices *c = choices_new(s);
	status result = c ? prepare_create(s, choices_get_plan(c), &err) : STATUS_NOMEM;
	if (result == STATUS_OK) {
		choices_begin(c);
		return;
	}
	choices_free(c);
	error_set(&err, result, NULL, "%s", status_text(result));
	stream_error(s, &err, NULL);
}

void session_prompts_append(stream *s)
{
	error err = ERROR_INIT;
	choices *c = choices_new(s);
	if (!c) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	choices_plan *spec = choices_get_plan(c);
	spec->session = sessions_take(generation_room_of(s)->sessions, s, s->target, &spec->ticket, &spec->model);
	if (!spec->session) {
		choices_free(c);
		return;
	}
	spec->prompt.field = "text";
	status ended = carried_state_read(spec, s->params, &err);
	if (ended == STATUS_OK)
		ended = completions_read_prompts(spec, s->params, json_object_get(s->params, "text"), &err);
	if (ended != STATUS_OK) {
		sessions_release(generation_room_of(s)->sessions, spec->session);
		choices_free(c);
		error_set(&err, ended, NULL, "%s", status_text(ended));
		stream_error(s, &err, NULL);
		return;
	}
	spec->sampling.request.n_logprobs = -1;
	sampling_default(&spec->sampling.request.sampling);
	spec->answer.result = session_prompts_read_object;
	spec->all_or_nothing = true;
	if (completions_begin_snapshot(s, c))
		choices_begin(c);
}
