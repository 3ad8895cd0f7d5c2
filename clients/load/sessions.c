#include "clients/load/sessions.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>


typedef enum seat_state { SEAT_EMPTY, SEAT_READY, SEAT_UNSURE, SEAT_CLOSING } seat_state;

struct seat {
	char id[64], path[96];
	seat_state state;
	operation operation; /* the latest */
	int script, turn;
	long long tokens; /* acknowledged */
	bool rehearses;
};

struct sessions {
	sessions_options options;
	char *open;           /* body of the request that opens a session */
	workload_case *steps; /* [SESSIONS_SCRIPTS][turns]; bodies are borrowed */
	seat *seats;          /* [n + 1]; the last one rehearses */
	seat **idle;          /* [n_idle], in any order */
	int n_idle, next_script;
	long long opened, unknown, left;
};

const char *operation_name(operation o)
{
	static const char *const names[OPERATIONS] = {"open", "turn", "look", "close"};
	return names[o];
}

sessions *sessions_new(workload *w, const sessions_options *o)
{
	sessions *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	const int steps = SESSIONS_SCRIPTS * o->turns;
	json_t *open =
	    json_pack("{s:s, s:b, s:s}", "model", o->model, "durable", o->durable, "position_policy", "wrap");
	s->options = *o;
	s->open = open ? json_dumps(open, JSON_COMPACT) : NULL;
	json_decref(open);
	s->steps = calloc((size_t)steps, sizeof *s->steps);
	s->seats = calloc((size_t)o->n + 1, sizeof *s->seats);
	s->idle = calloc((size_t)o->n, sizeof(seat *));
	if (!s->open || !s->steps || !s->seats || !s->idle) {
		sessions_free(s);
		return NULL;
	}
	for (int i = 0; i < steps; i++) {
		s->steps[i] = w->cases[i * 7 % w->n];
		s->steps[i].expected = (answer){0};
	}
	for (; s->n_idle < o->n; s->n_idle++)
		s->idle[s->n_idle] = &s->seats[s->n_idle];
	s->seats[o->n].rehearses = true;
	return s;
}

void sessions_free(sessions *s)
{
	if (!s)
		return;
	for (int i = 0; s->steps && i < SESSIONS_SCRIPTS * s->options.turns; i++)
		answer_free(&s->steps[i].expected);
	free(s->open);
	free(s->steps);
	free(s->seats);
	free(s->idle);
	free(s);
}

/* --- the next request ---------------------------------------------------------------- */

static void fill(sessions *s, seat *t, driver_request *out, workload_case **c)
{
	static const struct {
		const char *method, *path;
	} forms[OPERATIONS] = {{"POST", "/v1/sessions%s"},
	                       {"POST", "/v1/sessions/%s/generate"},
	                       {"GET", "/v1/sessions/%s"},
	                       {"DELETE", "/v1/sessions/%s"}};
	t->operation = t->state == SEAT_EMPTY    ? OPERATION_OPEN
	               : t->state == SEAT_UNSURE ? OPERATION_LOOK
	               : t->state == SEAT_READY  ? OPERATION_TURN
	                                         : OPERATION_CLOSE;
	*c = t->operation == OPERATION_TURN ? &s->steps[t->script * s->options.turns + t->turn] : NULL;
	const char *end = strchr(forms[t->operation].path, '%');
	snprintf(t->path, sizeof t->path, "%.*s%s%s", (int)(end - forms[t->operation].path), forms[t->operation].path,
	         t->operation == OPERATION_OPEN ? "" : t->id, end + 2);
	out->method = forms[t->operation].method;
	out->path = t->path;
	out->body = *c ? (*c)->body : t->operation == OPERATION_OPEN ? s->open : NULL;
	out->streams = *c != NULL;
}

seat *sessions_next(sessions *s, uint64_t *random, bool closing, driver_request *out, workload_case **c)
{
	seat *t = NULL;
	while (!t && s->n_idle > 0) {
		const int at = (int)(random_next(random) % (uint64_t)s->n_idle);
		t = s->idle[at];
		s->idle[at] = s->idle[--s->n_idle];
		if (closing && t->state == SEAT_EMPTY)
			t = NULL;
		else if (closing && t->state == SEAT_READY)
			t->state = SEAT_CLOSING;
	}
	if (t && t->state == SEAT_EMPTY)
		t->script = s->next_script++ % SESSIONS_SCRIPTS;
	if (t)
		fill(s, t, out, c);
	return t;
}

seat *sessions_rehearse(sessions *s, int n, driver_request *out, workload_case **c)
{
	seat *t = &s->seats[s->options.n];
	if (t->state == SEAT_EMPTY && t->turn == s->options.turns) {
		t->turn = 0;
		return NULL;
	}
	t->script = n;
	fill(s, t, out, c);
	return t;
}

seat *sessions_abandon(sessions *s, driver_request *out, workload_case **c)
{
	seat *t = &s->seats[s->options.n];
	if (t->state == SEAT_EMPTY)
		return NULL;
	t->state = SEAT_CLOSING;
	fill(s, t, out, c);
	return t;
}

/* --- its end --------------------------------------------------------------------------- */

static void opened(sessions *s, seat *t, outcome how, int status, const json_t *object, answer *a)
{
	const char *id = json_string_value(json_object_get(object, "id"));
	const bool complete = how == OUTCOME_COMPLETE;
	s->unknown += how == OUTCOME_LOST || status >= 500 || (complete && !id); /* there may be a session */
	if (complete && !id)
		answer_object(a, "a session without an id");
	if (!complete || !id)
		return;
	s->opened++;
	snprintf(t->id, sizeof t->id, "%s", id);
	t->tokens = 0;
	t->turn = 0;
	t->state = SEAT_READY;
}

static void turned(sessions *s, seat *t, outcome how, const answer *a)
{
	if (how == OUTCOME_COMPLETE && a->position >= 0) {
		t->tokens = a->position;
		t->state = ++t->turn == s->options.turns ? SEAT_CLOSING : SEAT_READY;
	} else if (how != OUTCOME_REFUSED) {
		t->state = SEAT_UNSURE;
	}
}

static void looked(sessions *s, seat *t, outcome how, int status, const json_t *object, answer *a)
{
	const json_t *tokens = json_object_get(object, "tokens");
	if (status == 404) {
		if (s->options.durable || !s->options.may_vanish)
			answer_object(a, "a session of %lld tokens is missing", t->tokens);
		t->state = SEAT_EMPTY;
		return;
	}
	if (how != OUTCOME_COMPLETE)
		return;
	if (!json_is_integer(tokens) || json_integer_value(tokens) < t->tokens)
		answer_object(a, "a session has %lld tokens, and %lld were acknowledged",
		              (long long)json_integer_value(tokens), t->tokens);
	t->state = SEAT_CLOSING;
}

void sessions_ended(sessions *s, seat *t, outcome how, int status, answer *a)
{
	const bool was_open = t->state != SEAT_EMPTY;
	json_t *object = t->operation == OPERATION_TURN ? NULL : json_loadb(text_get(&a->text), a->text.used, 0, NULL);
	switch (t->operation) {
	case OPERATION_OPEN:
		opened(s, t, how, status, object, a);
		break;
	case OPERATION_TURN:
		turned(s, t, how, a);
		break;
	case OPERATION_LOOK:
		looked(s, t, how, status, object, a);
		break;
	case OPERATION_CLOSE:
		t->state = how == OUTCOME_COMPLETE || status == 404 ? SEAT_EMPTY : SEAT_CLOSING;
		break;
	}
	json_decref(object);
	s->left += (t->state != SEAT_EMPTY) - was_open;
	if (!t->rehearses)
		s->idle[s->n_idle++] = t;
}

operation sessions_operation(const seat *t)
{
	return t->operation;
}

long long sessions_opened(const sessions *s)
{
	return s->opened;
}

long long sessions_left(const sessions *s)
{
	return s->left;
}

long long sessions_unknown(const sessions *s)
{
	return s->unknown;
}
