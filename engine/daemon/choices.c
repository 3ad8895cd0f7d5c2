/* Who may touch what: a set and its choices belong to the loop, except for the fields marked executor, which
 * it touches through the tasks `start` and `control` and in the scheduler's callbacks. Grants go the
 * same way as everything else: the loop collects them in `pending`, and when `control` is not under way
 * moves them to `handed` and submits it. So no field is ever shared, and a grant costs one task however
 * many choices it is for. */
#include "engine/daemon/choices.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/idempotency.h"
#include "engine/daemon/tokens.h"

typedef struct choice {
	choices *set;
	int index;
	/* executor */
	task ended_task;
	generation *running; /* NULL before and after */
	int64_t credit;      /* events it may still send; set by the loop before `start` */
	int64_t handed;      /* with `control`: credits to add */
	bool starved;        /* an event could not be passed on for want of memory */
	/* loop */
	int64_t granted, pending; /* credits given and not used; of these, not handed over yet */
	bool ended;
	text_stream text;   /* logprobs: the tokens sampled, */
	int64_t text_bytes; /* and the characters they make */
	int32_t *ids;       /* alpha: the whole sequence so far, */
	int64_t *offsets;   /* and the bytes of text before each token and after the last */
	int64_t n_ids, ids_capacity;
	text_stream sequence;
	/* executor until ended_task is delivered, then loop */
	generation_result result;
} choice;

struct choices {
	choices_plan plan;
	stream *stream;
	choice *items;
	int n, ended, turn;
	int64_t granted; /* sum over the choices */
	bool start_done, cancelled, control_under_way;
	bool control_cancels; /* handed over with `control` */
	error error;          /* the first that matters to the client */
	/* executor until start is done */
	task start;
	bool start_cancelled; /* while it waited for its model */
	device *device;
	int started;
	error start_error;
	int32_t *prefix; /* alpha: what the session had read before */
	int64_t n_prefix;
	/* executor until the only choice of a session has ended */
	session_change change;
	task control;
	/* loop, at the end */
	session_settlement settlement;
};

/* One event on its way to the loop; its arrays follow it. */
typedef struct event_message {
	task task;
	choice *choice;
	size_t text_bytes;
	int n_tokens, n_top, n_alpha;
	bool has_logprobs;
	double time_ms;
	const char *text;
	int32_t *tokens;
	token_logprob *logprobs, *top;
	alpha_weight *alpha;
} event_message;

static void try_finish(choices *c);

/* --- dealing credits -------------------------------------------------------------- */

static void run_control(task *t, device *d)
{
	choices *c = TASK_OWNER(t, choices, control);
	(void)d;
	c->start_cancelled |= c->control_cancels;
	for (int i = 0; i < c->n; i++) {
		choice *x = &c->items[i];
		x->credit += x->handed;
		if (x->running && x->handed)
			generation_grant(x->running, x->handed);
		x->handed = 0;
		if (x->running && c->control_cancels)
			generation_cancel(x->running);
	}
}

static void send_control(choices *c);

static void control_done(task *t)
{
	choices *c = TASK_OWNER(t, choices, control);
	bool more = c->cancelled && !c->control_cancels;
	c->control_under_way = false;
	for (int i = 0; i < c->n; i++)
		more |= c->items[i].pending > 0;
	if (more && (!c->start_done || c->ended < c->started))
		send_control(c);
	else
		try_finish(c);
}

static void send_control(choices *c)
{
	if (c->control_under_way)
		return; /* control_done sends what has come together */
	for (int i = 0; i < c->n; i++) {
		c->items[i].handed = c->items[i].pending;
		c->items[i].pending = 0;
	}
	c->control_under_way = true;
	c->control_cancels = c->cancelled;
	c->control = (task){.run = run_control, .done = control_done};
	executor_control(c->stream->engine->executor, &c->control);
}

/* Deal what the peer has granted; true when somebody got something. */
static bool deal(choices *c)
{
	int live = c->n - c->ended;
	int64_t left = stream_ready(c->stream) - c->granted;
	bool any = false;
	for (int i = 0; i < c->n && left > 0 && live > 0; i++) {
		choice *x = &c->items[c->turn];
		c->turn = (c->turn + 1) % c->n;
		if (x->ended || x->granted > CHOICES_WINDOW / 2)
			continue;
		int64_t give = left / live > 0 ? left / live : 1;
		if (give > CHOICES_WINDOW - x->granted)
			give = CHOICES_WINDOW - x->granted;
		x->granted += give;
		x->pending += give;
		c->granted += give;
		left -= give;
		any = true;
	}
	return any;
}

static void on_credit(stream *s)
{
	choices *c = s->context;
	if (deal(c))
		send_control(c);
}

static void on_cancel(stream *s)
{
	choices *c = s->context;
	if (idempotency_detached(s)) { /* it goes on: its repeat gets the answer */
		on_credit(s);
		return;
	}
	c->cancelled = true;
	send_control(c);
}

/* --- the scheduler's callbacks: executor thread ------------------------------------ */

static size_t aligned(size_t bytes)
{
	return (bytes + 7) & ~(size_t)7;
}

static void deliver_event(task *t);

static event_message *copy_event(choice *x, const generation_event *e)
{
	size_t n = (size_t)e->n_tokens, n_top = e->logprobs ? n * (size_t)e->n_top : 0, n_alpha = (size_t)e->n_alpha;
	size_t tokens = aligned(n * sizeof *e->tokens), logprobs = aligned(n * sizeof *e->logprobs),
	       top = aligned(n_top * sizeof *e->top), alpha = aligned(n_alpha * sizeof *e->alpha);
	event_message *m = malloc(aligned(sizeof *m) + tokens + logprobs + top + alpha + e->text_bytes);
	if (!m)
		return NULL;
	*m = (event_message){.task.done = deliver_event,
	                     .choice = x,
	                     .text_bytes = e->text_bytes,
	                     .n_tokens = e->n_tokens,
	                     .n_top = e->n_top,
	                     .n_alpha = e->n_alpha,
	                     .has_logprobs = e->logprobs,
	                     .time_ms = e->time_ms};
	char *at = (char *)m + aligned(sizeof *m);
	m->tokens = memcpy(at, e->tokens, n * sizeof *e->tokens);
	m->logprobs = (token_logprob *)(at += tokens);
	if (e->logprobs)
		memcpy(at, e->logprobs, n * sizeof *e->logprobs);
	m->top = (token_logprob *)(at += logprobs);
	if (n_top)
		memcpy(at, e->top, n_top * sizeof *e->top);
	m->alpha = (alpha_weight *)(at += top);
	if (n_alpha)
		memcpy(at, e->alpha, n_alpha * sizeof *e->alpha);
	m->text = at += alpha;
	if (e->text_bytes)
		memcpy(at, e->text, e->text_bytes);
	return m;
}

static int64_t on_event(void *context, const generation_event *e)
{
	choice *x = context;
	event_message *m = copy_event(x, e);
	if (m) {
		executor_post(x->set->stream->engine->executor, &m->task);
	} else {
		x->starved = true; /* a stream with a hole is worth nothing */
		generation_cancel(x->running);
	}
	return --x->credit;
}

static void deliver_end(task *t);

static void on_finished(void *context, const generation_result *r)
{
	choice *x = context;
	choices *c = x->set;
	x->running = NULL;
	x->result = *r;
	if (x->starved) {
		x->result.status = STATUS_NOMEM;
		x->result.error = (error)ERROR_INIT;
	}
	if (c->plan.session)
		sessions_look(&c->change, c->device, c->plan.ticket.id, true);
	x->ended_task = (task){.done = deliver_end};
	executor_post(c->stream->engine->executor, &x->ended_task);
}

/* --- starting: executor thread -------------------------------------------------------- */

/* What the session has read so far, for the offsets of its tokens. */
static status copy_prefix(choices *c, session *x, error *err)
{
	const int32_t *ids;
	const float *scores;
	if (!x || c->plan.request.n_alpha == 0)
		return STATUS_OK;
	TRY(scheduler_session_log(x, &ids, &scores, &c->n_prefix, err));
	c->prefix = memory_new((size_t)c->n_prefix, sizeof *c->prefix);
	if (!c->prefix) {
		c->n_prefix = 0;
		return STATUS_NOMEM;
	}
	if (c->n_prefix)
		memcpy(c->prefix, ids, (size_t)c->n_prefix * sizeof *ids);
	return STATUS_OK;
}

static status start_all(choices *c, device *d, error *err)
{
	served_model *m;
	session *x = NULL;
	if (c->start_cancelled)
		return error_set(err, STATUS_CANCELLED, NULL, "cancelled");
	TRY(cards_model(c->plan.card, d, &m, err));
	if (c->plan.session) {
		TRY(sessions_redeem(&c->plan.ticket, d, m, &x, err));
		TRY(copy_prefix(c, x, err));
	}
	for (int i = 0; i < c->n; i++) {
		choice *item = &c->items[i];
		const choices_prompt *prompt = &c->plan.prompts[i / c->plan.samples];
		generation_request r = c->plan.request;
		r.prompt = prompt->ids;
		r.n_prompt = (int64_t)prompt->count;
		r.sampling.seed += (uint64_t)i;
		r.event = on_event;
		r.finished = on_finished;
		r.context = item;
		r.credit = item->credit;
		TRY(scheduler_generate(device_scheduler(d), m, x, &r, &item->running, err));
		c->started++;
	}
	return STATUS_OK;
}

static bool prepare_start(task *t, device *d)
{
	return cards_prepare(TASK_OWNER(t, choices, start)->plan.card, d);
}

static void run_start(task *t, device *d)
{
	choices *c = TASK_OWNER(t, choices, start);
	c->device = d;
	status s = start_all(c, d, &c->start_error);
	if (s == STATUS_OK)
		return;
	error_set(&c->start_error, s, NULL, "%s", status_text(s));
	if (c->plan.session && c->started == 0)
		sessions_look(&c->change, d, c->plan.ticket.id, false);
	for (int i = 0; i < c->started; i++)
		if (c->items[i].running)
			generation_cancel(c->items[i].running);
}

/* --- events: loop thread -------------------------------------------------------------- */

static json_t *number(float logprob)
{
	return json_real(logprob > -9999 ? logprob : -9999); /* OpenAI's word for minus infinity */
}

/* NULL when not all of it could be built. */
static json_t *whole_or_none(json_t *document, bool whole)
{
	if (whole)
		return document;
	json_decref(document);
	return NULL;
}

static json_t *top_object(const event_message *m, int token)
{
	const tokenizer *t = m->choice->set->plan.card->tokenizer;
	json_t *object = json_object();
	bool whole = object;
	for (int j = 0; whole && j < m->n_top; j++) {
		const token_logprob *p = &m->top[token * m->n_top + j];
		if (p->token < 0)
			continue;
		json_t *name = tokens_name(t, p->token);
		whole = name && json_object_set_new(object, json_string_value(name), number(p->logprob)) == 0;
		json_decref(name);
	}
	return whole_or_none(object, whole);
}

/* OpenAI's log-probabilities of completions. */
static json_t *logprobs_object(const event_message *m)
{
	choice *x = m->choice;
	const tokenizer *t = x->set->plan.card->tokenizer;
	json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array();
	bool whole = true;
	for (int i = 0; i < m->n_tokens; i++) {
		whole &= json_array_append_new(tokens, tokens_name(t, m->tokens[i])) == 0;
		whole &= json_array_append_new(values, number(m->logprobs[i].logprob)) == 0;
		whole &= json_array_append_new(tops, top_object(m, i)) == 0;
		whole &= json_array_append_new(offsets, json_integer(x->text_bytes)) == 0;
		x->text_bytes += tokens_advance(t, &x->text, m->tokens[i]);
	}
	return whole_or_none(json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values,
	                               "top_logprobs", tops, "text_offset", offsets),
	                     whole);
}

/* The answer cannot be made whole: end it with an error. */
static void give_up(choices *c)
{
	if (c->error.status != STATUS_OK)
		return;
	error_set(&c->error, STATUS_NOMEM, NULL, "out of memory");
	c->cancelled = true;
	send_control(c);
}

/* The sequence goes on with this token. */
static void add_id(choice *x, int32_t id)
{
	if (x->n_ids + 1 >= x->ids_capacity) {
		size_t capacity = 2 * (size_t)x->ids_capacity + 256;
		int32_t *ids = realloc(x->ids, capacity * sizeof *ids);
		if (ids)
			x->ids = ids;
		int64_t *offsets = ids ? realloc(x->offsets, capacity * sizeof *offsets) : NULL;
		if (!offsets) {
			give_up(x->set);
			return;
		}
		x->offsets = offsets;
		x->ids_capacity = (int64_t)capacity;
		x->offsets[0] = 0;
	}
	x->ids[x->n_ids] = id;
	x->offsets[x->n_ids + 1] =
	    x->offsets[x->n_ids] + tokens_advance(x->set->plan.card->tokenizer, &x->sequence, id);
	x->n_ids++;
}

static json_t *alpha_array(const event_message *m)
{
	const choice *x = m->choice;
	const tokenizer *t = x->set->plan.card->tokenizer;
	json_t *all = json_array();
	bool whole = all;
	for (int i = 0; whole && i < m->n_alpha; i++) {
		const alpha_weight *a = &m->alpha[i];
		bool known = a->position < x->n_ids;
		json_int_t offset = known ? x->offsets[a->position] : -1;
		json_t *text = known ? tokens_text(t, x->ids, a->position + 1) : tokens_text(t, &a->token, 1);
		whole = json_array_append_new(all, json_pack("{s:{s:i, s:o, s:I}, s:f}", "token", "id", (int)a->token,
		                                             "text", text, "offset", offset, "weight",
		                                             (double)a->weight)) == 0;
	}
	return whole_or_none(all, whole);
}

static json_t *event_object(const event_message *m)
{
	choice *x = m->choice;
	json_t *tokens = json_array();
	bool whole = true;
	for (int i = 0; i < m->n_tokens; i++)
		whole &= json_array_append_new(tokens, json_integer(m->tokens[i])) == 0;
	json_t *object = json_pack("{s:i, s:s%, s:o, s:f}", "index", x->index, "text", m->text, m->text_bytes, "tokens",
	                           tokens, "time_ms", m->time_ms);
	if (m->has_logprobs)
		whole &= json_object_set_new(object, "logprobs", logprobs_object(m)) == 0;
	if (m->n_alpha)
		whole &= json_object_set_new(object, "alpha", alpha_array(m)) == 0;
	for (int i = 0; x->set->plan.request.n_alpha && i < m->n_tokens; i++)
		add_id(x, m->tokens[i]);
	return whole_or_none(object, whole);
}

/* Nearly every event is a text and a token: written here, without a document. */
enum { PLAIN_TEXT = 256, PLAIN_TOKENS = 8, PLAIN_BYTES = 128 + 6 * PLAIN_TEXT + 12 * PLAIN_TOKENS };

static char *put_text(char *at, const char *text)
{
	size_t n = strlen(text);
	memcpy(at, text, n);
	return at + n;
}

static char *put_number(char *at, uint64_t n)
{
	char digits[20];
	int i = 0;
	do
		digits[i++] = (char)('0' + n % 10);
	while (n /= 10);
	while (i > 0)
		*at++ = digits[--i];
	return at;
}

/* The characters of a JSON string. */
static char *put_escaped(char *at, const char *text, size_t bytes)
{
	static const char hex[] = "0123456789abcdef";
	for (size_t i = 0; i < bytes; i++) {
		unsigned char c = (unsigned char)text[i];
		if (c == '"' || c == '\\') {
			*at++ = '\\';
			*at++ = (char)c;
		} else if (c < ' ') {
			at = put_text(at, "\\u00");
			*at++ = hex[c >> 4];
			*at++ = hex[c & 15];
		} else {
			*at++ = (char)c;
		}
	}
	return at;
}

static void send_plain(const event_message *m)
{
	char json[PLAIN_BYTES];
	uint64_t us = m->time_ms > 0 ? (uint64_t)(m->time_ms * 1000 + 0.5) : 0;
	char *at = put_number(put_text(json, "{\"index\":"), (uint64_t)m->choice->index);
	at = put_escaped(put_text(at, ",\"text\":\""), m->text, m->text_bytes);
	at = put_text(at, "\",\"tokens\":[");
	for (int i = 0; i < m->n_tokens; i++)
		at = put_number(i > 0 ? put_text(at, ",") : at, (uint64_t)m->tokens[i]);
	at = put_number(put_text(at, "],\"time_ms\":"), us / 1000);
	*at++ = '.';
	for (uint64_t unit = 100; unit > 0; unit /= 10)
		*at++ = (char)('0' + us / unit % 10);
	*at++ = '}';
	stream_event_text(m->choice->set->stream, json, (size_t)(at - json));
}

static void deliver_event(task *t)
{
	event_message *m = (event_message *)t;
	choice *x = m->choice;
	choices *c = x->set;
	x->granted--;
	c->granted--;
	if (c->error.status != STATUS_OK)
		; /* given up */
	else if (m->text_bytes <= PLAIN_TEXT && m->n_tokens <= PLAIN_TOKENS && !m->has_logprobs &&
	         !c->plan.request.n_alpha)
		send_plain(m);
	else
		stream_event(c->stream, event_object(m));
	free(m);
	if (x->granted <= CHOICES_WINDOW / 2 && deal(c))
		send_control(c);
}

/* --- ends: loop thread ---------------------------------------------------------------- */

void choices_free(choices *c)
{
	if (!c)
		return;
	choices_plan *p = &c->plan;
	for (int i = 0; p->prompts && i < p->n_prompts; i++)
		free(p->prompts[i].ids);
	free(p->prompts);
	free(p->request.sampling.bias);
	cards_release(p->card);
	for (int i = 0; c->items && i < c->n; i++) {
		free(c->items[i].ids);
		free(c->items[i].offsets);
	}
	free(c->items);
	free(c->prefix);
	free(c->change.blob);
	free(c);
}

/* What the client is told: why it could not start, or the first failure that is not our own cancelling of
 * the others. */
static void choose_error(choices *c)
{
	if (c->start_error.status != STATUS_OK)
		c->error = c->start_error;
	for (int i = 0; i < c->started && c->error.status == STATUS_OK; i++) {
		const generation_result *r = &c->items[i].result;
		if (r->status != STATUS_OK)
			error_set(&c->error, r->status, r->error.param, "%s",
			          r->error.status != STATUS_OK ? error_message(&r->error) : status_text(r->status));
	}
}

static json_t *settled_result(session_settlement *x)
{
	choices *c = TASK_OWNER(x, choices, settlement);
	return c->plan.result(c);
}

static void settled(session_settlement *x)
{
	choices_free(TASK_OWNER(x, choices, settlement));
}

static void settle(choices *c)
{
	c->settlement = (session_settlement){.stream = c->stream,
	                                     .entry = c->plan.session,
	                                     .ticket = &c->plan.ticket,
	                                     .making = c->plan.ticket.create,
	                                     .changed = c->started > 0,
	                                     .whole = c->plan.whole || c->stream->key,
	                                     .change = c->change,
	                                     .error = c->error,
	                                     .result = settled_result,
	                                     .settled = settled};
	c->change.blob = NULL;
	session_settle(&c->settlement);
}

static void try_finish(choices *c)
{
	if (!c->start_done || c->ended < c->started || c->control_under_way)
		return;
	choose_error(c);
	c->stream->watch = NULL;
	if (c->plan.session) {
		settle(c);
		return;
	}
	if (c->error.status == STATUS_OK)
		stream_result(c->stream, c->plan.result(c));
	else
		stream_error(c->stream, &c->error, NULL);
	choices_free(c);
}

static void deliver_end(task *t)
{
	choice *x = TASK_OWNER(t, choice, ended_task);
	choices *c = x->set;
	x->ended = true;
	c->ended++;
	c->granted -= x->granted;
	x->granted = x->pending = 0;
	if (c->start_done && c->ended < c->n && deal(c))
		send_control(c);
	try_finish(c);
}

static void start_done(task *t)
{
	choices *c = TASK_OWNER(t, choices, start);
	c->start_done = true;
	for (int i = 0; c->plan.request.n_alpha && i < c->n; i++) {
		const choices_prompt *prompt = &c->plan.prompts[i / c->plan.samples];
		for (int64_t j = 0; j < c->n_prefix; j++)
			add_id(&c->items[i], c->prefix[j]);
		for (size_t j = 0; j < prompt->count; j++)
			add_id(&c->items[i], prompt->ids[j]);
	}
	try_finish(c);
}

/* --- beginning -------------------------------------------------------------------------- */

static void refuse(choices *c, status why, const char *words)
{
	sessions *all = c->stream->engine->sessions;
	if (c->plan.session && c->plan.ticket.create)
		sessions_remove(all, c->plan.session, NULL);
	else if (c->plan.session)
		sessions_release(all, c->plan.session);
	stream_refuse(c->stream, why, NULL, NULL, "%s", words);
	choices_free(c);
}

choices *choices_new(stream *s)
{
	choices *c = memory_new(1, sizeof *c);
	if (c)
		c->stream = s;
	return c;
}

choices_plan *choices_get_plan(choices *c)
{
	return &c->plan;
}

void choices_begin(choices *c)
{
	static const stream_watch watch = {.credit = on_credit, .cancel = on_cancel};
	stream *s = c->stream;
	c->n = c->plan.n_prompts * c->plan.samples;
	c->items = memory_new((size_t)c->n, sizeof *c->items);
	s->context = c;
	if (!c->items) {
		refuse(c, STATUS_NOMEM, "out of memory");
		return;
	}
	for (int i = 0; i < c->n; i++) {
		c->items[i].set = c;
		c->items[i].index = i;
	}
	deal(c);
	for (int i = 0; i < c->n; i++) {
		c->items[i].credit = c->items[i].pending;
		c->items[i].pending = 0;
	}
	c->start = (task){.prepare = prepare_start, .run = run_start, .done = start_done};
	if (!executor_submit(s->engine->executor, &c->start)) {
		refuse(c, STATUS_BUSY, "too many requests are waiting");
		return;
	}
	s->watch = &watch;
	if (s->cancelled)
		on_cancel(s);
}

int choices_count(const choices *c)
{
	return c->n;
}

const generation_result *choices_result(const choices *c, int i)
{
	return &c->items[i].result;
}
