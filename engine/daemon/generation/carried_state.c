/* generations end ─▶ executor: export the session ─▶ pool: checksum, seal, text ─▶ loop: settle the session and answer
 */
#include "engine/daemon/generation/carried_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/daemon/generation/choices_private.h"
#include "engine/daemon/generation/generation.h"

/* --- the request ------------------------------------------------------------------- */

static int64_t least_bytes(const model_entry *m)
{
	return m->state_bytes + m->dims.outputs * (int64_t)sizeof(float);
}

bool carried_state_fits(const model_entry *m)
{
	return !m->dims.source && least_bytes(m) <= CARRIED_STATE_BYTES;
}

status carried_state_read(choices_plan *p, const json_t *params, error *err)
{
	const json_t *given = json_object_get(params, "state");
	p->state.given = json_is_object(given) ? json_object_get(given, "blob") : json_is_string(given) ? given : NULL;
	p->state.returned = json_is_true(json_object_get(params, "return_state"));
	if ((p->state.given || p->state.returned) && !p->session && p->model->dims.source)
		return error_set(err, STATUS_INVALID, p->state.given ? "state" : "return_state",
		                 "a model that reads a source has its states in sessions only");
	const int64_t bytes = least_bytes(p->model);
	if (p->state.returned && bytes > CARRIED_STATE_BYTES)
		return error_set(err, STATUS_TOO_LARGE, "return_state",
		                 "a state of this model has %lld bytes, an answer at most %d: use a session",
		                 (long long)bytes, CARRIED_STATE_BYTES);
	return STATUS_OK;
}

/* Return the field of a completion that needs more than one sequence, or NULL. */
static const char *find_several(const choices_plan *p)
{
	return p->prompt.n > 1                    ? "prompt"
	       : p->sampling.search.beams > 1     ? "num_beams"
	       : p->answer.best                   ? "best_of"
	       : p->sampling.samples > 1          ? "n"
	       : p->answer.echo                   ? "echo"
	       : p->answer.n_prompt_logprobs >= 0 ? "prompt_logprobs"
	                                          : NULL;
}

status carried_state_begin(stream *s, choices_plan *p, error *err)
{
	const char *several = find_several(p);
	const session_options o = {.policy = POSITION_ERROR, .explain = p->sampling.request.n_alpha > 0};
	if (!p->state.given && !p->state.returned)
		return STATUS_OK;
	if (several)
		return error_set(err, STATUS_INVALID, several, "cannot be used with state or return_state");
	TRY(sessions_add_hidden(generation_room_of(s)->sessions, p->model, &o, &p->session, err));
	p->state.hidden = true;
	p->ticket = (session_ticket){.options = o, .create = true};
	snprintf(p->ticket.id, sizeof p->ticket.id, "%s", sessions_id(p->session));
	return STATUS_OK;
}

status choices_decode_state(choices *c, error *err)
{
	const json_t *given = c->plan.state.given;
	const size_t length = json_string_length(given);
	session_transfer *t = &c->plan.ticket.import;
	if (length / 4 * 3 > CARRIED_STATE_BYTES + (1 << 10))
		return error_set(err, STATUS_TOO_LARGE, "state", "a state in a request has at most %d bytes",
		                 CARRIED_STATE_BYTES);
	status result = sealed_text_read(json_string_value(given), length, &generation_room_of(c->stream)->state_key,
	                                 &t->blob, &t->bytes, err);
	if (result == STATUS_CORRUPT)
		snprintf(err->param, sizeof err->param, "state");
	t->temporary = true;
	if (result == STATUS_OK && t->bytes == 0)
		result = error_set(err, STATUS_CORRUPT, "state", "too short to be a session state");
	return result;
}

/* --- the answer -------------------------------------------------------------------- */

bool carried_state_add(const choices_plan *p, json_t *result)
{
	return !p->state.answer || json_object_set(result, "state", p->state.answer) == 0;
}

/* Executor thread. */
static bool prepare_export(task *x, device *d)
{
	choices *c = TASK_OWNER(x, choices, export);
	scheduler *s = device_scheduler(d);
	session *live = s ? scheduler_session_find(s, c->plan.ticket.id) : NULL;
	status result = live ? scheduler_session_export_step(s, live, &c->exported, &c->export_error) : STATUS_DEVICE;
	c->exported_too_large = result == STATUS_OK && c->exported.bytes > CARRIED_STATE_BYTES;
	if (c->exported_too_large && !c->plan.state.optional)
		result = error_set(&c->export_error, STATUS_TOO_LARGE, "return_state",
		                   "the state has %zu bytes, an answer at most %d: use a session", c->exported.bytes,
		                   CARRIED_STATE_BYTES);
	error_settle(&c->export_error, result);
	return result != STATUS_OK || c->exported.done || c->exported_too_large;
}

/* The session may have read one more token. */
static void run_export(task *x, device *d)
{
	choices *c = TASK_OWNER(x, choices, export);
	session_ticket_look(&c->change, d, c->plan.ticket.id);
}

static void pool_write(uv_work_t *work)
{
	choices *c = work->data;
	scheduler_transfer_seal(&c->exported);
	c->state_text =
	    sealed_text_write(c->exported.blob, c->exported.bytes, &generation_room_of(c->stream)->state_key);
}

static void written(uv_work_t *work, int cancelled)
{
	choices *c = work->data;
	char hash[17];
	(void)cancelled; /* cannot be cancelled */
	snprintf(hash, sizeof hash, "%016" PRIx64, scheduler_transfer_model(&c->exported));
	if (c->state_text)
		c->plan.state.answer =
		    json_pack("{s:s, s:s, s:s, s:I}", "blob", c->state_text, "model", c->plan.model->id, "hash", hash,
		              "tokens", (json_int_t)c->change.info.tokens);
	if (!c->plan.state.answer)
		error_set(&c->error, STATUS_NOMEM, NULL, "out of memory");
	choices_settle(c);
}

static void exported(task *x)
{
	choices *c = TASK_OWNER(x, choices, export);
	if (c->export_error.status != STATUS_OK || c->exported_too_large) {
		c->error = c->export_error;
		choices_settle(c);
		return;
	}
	c->read.data = c;
	if (uv_queue_work(c->stream->net->loop, &c->read, pool_write, written) == 0)
		return;
	error_set(&c->error, STATUS_NOMEM, NULL, "out of memory");
	choices_settle(c);
}

void choices_export(choices *c)
{
	c->export = (task){.prepare = prepare_export, .run = run_export, .done = exported};
	executor_control(c->executor, &c->export);
}
