#include "clients/load/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TICK_NS = 1000000000, NS_OF_MS = 1000000 };

typedef enum reader { READER_PLAIN, READER_SLOW, READER_LEAVES } reader;

/* A request in flight. */
typedef struct ticket {
	struct ticket *next; /* in the list of tickets that are not in use */
	long long number;
	workload_case *c; /* NULL: an operation on a session that generates nothing */
	seat *seat;       /* NULL: a request without a session */
	reader reader;
	int key;
	uint64_t due;
	bool failed;      /* sent alone: no answer, */
	char reason[200]; /* for this reason */
} ticket;

typedef struct run {
	const load_options *options;
	load_report *report;
	driver *driver;
	workload workload;
	sessions *sessions; /* NULL: none */
	ticket *spare;
	uint64_t random, began;
	uint64_t *rests; /* [options.clients] ring of the times at which resting clients continue, in order */
	int first_rest, n_rests;
	bool prepares; /* expected answers are fetched */
} run;

static ticket *new_ticket(run *r)
{
	ticket *t = r->spare;
	if (t)
		r->spare = t->next;
	else
		t = malloc(sizeof *t);
	return t;
}

static void spare(run *r, ticket *t)
{
	t->next = r->spare;
	r->spare = t;
}

/* --- results ------------------------------------------------------------------------- */

static void take_gap(void *context, uint64_t ns)
{
	run *r = context;
	if (!r->prepares)
		histogram_add(&r->report->gap, ns);
}

static double seconds_of(const run *r, uint64_t ns)
{
	return ns > r->began ? (double)(ns - r->began) * 1e-9 : 0;
}

static void write_history(const run *r, const ticket *t, outcome how, int status, const driver_times *times,
                          const answer *a)
{
	static const char *const readers[] = {"plain", "slow", "leaves"};
	json_t *line = json_pack(
	    "{s:I, s:s, s:i, s:s, s:s, s:i, s:f, s:f, s:o, s:f, s:i, s:I, s:s*, s:s*}", "request",
	    (json_int_t)t->number, "operation", t->seat ? operation_name(sessions_operation(t->seat)) : "generate",
	    "key", t->key, "reader", readers[t->reader], "outcome", outcome_name(how), "status", status, "due",
	    seconds_of(r, t->due), "sent", seconds_of(r, times->sent), "first",
	    times->first ? json_real(seconds_of(r, times->first)) : json_null(), "ended", seconds_of(r, times->ended),
	    "events", a->n_events, "tokens", (json_int_t)a->tokens, "reason", a->reason[0] ? a->reason : NULL,
	    "problem", a->problem[0] ? a->problem : NULL);
	if (t->c)
		json_object_set_new(line, "case", json_integer(t->c->number));
	json_dumpf(line, r->options->history, JSON_COMPACT);
	fputc('\n', r->options->history);
	json_decref(line);
}

/* Keep the first few texts that differ. */
static void keep(char kept[LOAD_SHOWN][300], int *n, const ticket *t, const char *what)
{
	for (int i = 0; i < *n; i++)
		if (strcmp(strchr(kept[i], ':') + 2, what) == 0)
			return;
	if (*n < LOAD_SHOWN)
		snprintf(kept[(*n)++], sizeof kept[0], "request %lld: %s", t->number, what);
}

/* Let a client rest: its next request would probably end in the same way. */
static void rest(run *r, uint64_t now)
{
	if (r->n_rests < r->options->clients)
		r->rests[(r->first_rest + r->n_rests++) % r->options->clients] =
		    now + (uint64_t)LOAD_REST_MS * NS_OF_MS;
}

static void count(run *r, const ticket *t, outcome how, const driver_times *times, const answer *a)
{
	load_report *out = r->report;
	out->outcomes[how]++;
	out->events += a->n_events;
	out->tokens += a->tokens > 0 ? a->tokens : 0;
	if (how != OUTCOME_COMPLETE || !t->c)
		return;
	if (r->options->n_keys > 0)
		out->keys[t->key].complete++;
	if (t->reader != READER_PLAIN)
		return;
	if (times->first)
		histogram_add(&out->first, times->first - t->due);
	if (times->first && r->options->n_keys > 0)
		histogram_add(&out->keys[t->key].first, times->first - t->due);
	histogram_add(&out->whole, times->ended - t->due);
}

/* The end of a request that was sent alone. */
static void take_expected(ticket *t, outcome how, answer *a)
{
	t->failed = how != OUTCOME_COMPLETE || a->problem[0];
	if (t->failed)
		snprintf(t->reason, sizeof t->reason, "%s", a->problem[0] ? a->problem : a->reason);
	if (!t->c)
		return;
	t->c->expected = *a;
	*a = (answer){0};
}

static void take_end(void *context, void *request, outcome how, int status, const driver_times *times, answer *a)
{
	run *r = context;
	ticket *t = request;
	load_report *out = r->report;
	if (t->c)
		answer_check(a, how, t->c->max_tokens, r->options->compare && !r->prepares ? &t->c->expected : NULL);
	if (t->seat)
		sessions_ended(r->sessions, t->seat, how, status, a);
	if (r->prepares) {
		take_expected(t, how, a);
		return;
	}
	if (a->problem[0]) {
		out->violations++;
		keep(out->problems, &out->n_problems, t, a->problem);
	}
	if (how != OUTCOME_COMPLETE && how != OUTCOME_LEFT && a->reason[0])
		keep(out->reasons, &out->n_reasons, t, a->reason);
	count(r, t, how, times, a);
	if (how == OUTCOME_LOST || how == OUTCOME_REFUSED || (how == OUTCOME_FAILED && status != 404))
		rest(r, times->ended);
	if (r->options->history)
		write_history(r, t, how, status, times, a);
	spare(r, t);
}

/* --- expected answers ---------------------------------------------------------------- */

static const char *key(const run *r, int n)
{
	return r->options->n_keys > 0 ? r->options->keys[n] : NULL;
}

/* The request of a case without a session. */
static driver_request plain_request(const run *r, const workload_case *c)
{
	return (driver_request){.method = "POST",
	                        .path = r->options->workload.chat ? "/v1/chat/completions" : "/v1/completions",
	                        .body = c->body,
	                        .streams = true};
}

/* Send a request alone, and wait for its answer. */
static bool ask_alone(run *r, driver_request *request, ticket *t, char problem[300])
{
	request->key = key(r, 0);
	if (!driver_begin(r->driver, request, t))
		return false;
	while (driver_in_flight(r->driver) > 0) {
		driver_run(r->driver, driver_clock_ns() + TICK_NS);
		if (!r->options->tick(r->options->context))
			driver_stop(r->driver);
	}
	if (t->failed)
		snprintf(problem, 300, "an undisturbed request failed: %s", t->reason[0] ? t->reason : "interrupted");
	return !t->failed;
}

/* Send the requests of all scripts, one after another. */
static bool rehearse(run *r, ticket *t, char problem[300])
{
	driver_request request = {0};
	char ignored[300];
	for (int i = 0; i < SESSIONS_SCRIPTS; i++)
		while ((t->seat = sessions_rehearse(r->sessions, i, &request, &t->c)))
			if (!ask_alone(r, &request, t, problem)) {
				if ((t->seat = sessions_abandon(r->sessions, &request, &t->c)))
					ask_alone(r, &request, t, ignored);
				return false;
			}
	return true;
}

/* Fetch the expected answers. */
static bool fetch_expected(run *r, char problem[300])
{
	driver_request request = {0};
	ticket t = {0};
	const int n = r->sessions ? 0 : r->options->compare ? r->workload.n : 1;
	r->prepares = true;
	for (int i = 0; i < n; i++) {
		t.c = &r->workload.cases[i];
		request = plain_request(r, t.c);
		if (!ask_alone(r, &request, &t, problem))
			return false;
	}
	if (r->sessions && !rehearse(r, &t, problem))
		return false;
	r->prepares = false;
	return true;
}

/* --- the run ------------------------------------------------------------------------- */

static reader draw_reader(run *r)
{
	const double u = random_unit(&r->random);
	return u < r->options->slow                       ? READER_SLOW
	       : u < r->options->slow + r->options->leave ? READER_LEAVES
	                                                  : READER_PLAIN;
}

typedef enum sent { SENT, SENT_NONE /* no seat is idle */, SENT_FAILED } sent;

/* Send the next request. closing: as in sessions_next. */
static sent begin(run *r, uint64_t due, bool closing)
{
	driver_request request = {0};
	ticket *t = new_ticket(r);
	if (!t)
		return SENT_FAILED;
	*t = (ticket){.number = r->report->requests, .due = due};
	if (r->sessions) {
		t->seat = sessions_next(r->sessions, &r->random, closing, &request, &t->c);
	} else {
		t->c = &r->workload.cases[random_next(&r->random) % (uint64_t)r->workload.n];
		request = plain_request(r, t->c);
	}
	if (r->sessions && !t->seat) {
		spare(r, t);
		return SENT_NONE;
	}
	t->reader = t->c ? draw_reader(r) : READER_PLAIN;
	t->key = r->options->n_keys > 0 ? (int)(t->number % r->options->n_keys) : 0;
	request.key = key(r, t->key);
	request.slow = t->reader == READER_SLOW;
	request.leave_after = t->reader == READER_LEAVES ? 1 + (int)(random_next(&r->random) % 8) : 0;
	if (!driver_begin(r->driver, &request, t)) {
		spare(r, t);
		return SENT_FAILED;
	}
	r->report->requests++;
	return SENT;
}

static uint64_t next_arrival(run *r, uint64_t after)
{
	const double u = 1 - random_unit(&r->random);
	return after + (uint64_t)(-log(u) / r->options->rate * 1e9);
}

/* Let the requests in flight make progress until `until`, and tick. False: the run is to end. */
static bool proceed(run *r, uint64_t until, uint64_t *ticked)
{
	const uint64_t next = *ticked + TICK_NS;
	driver_run(r->driver, until < next ? until : next);
	const uint64_t now = driver_clock_ns();
	if (now < next)
		return true;
	*ticked = now;
	r->report->in_flight = driver_in_flight(r->driver);
	r->report->seconds = seconds_of(r, now);
	return r->options->tick(r->options->context);
}

/* True if a client can send a request. Otherwise *from is when the next one has rested. */
static bool client_is_free(run *r, uint64_t now, uint64_t *from)
{
	for (; r->n_rests > 0 && r->rests[r->first_rest] <= now; r->n_rests--)
		r->first_rest = (r->first_rest + 1) % r->options->clients;
	*from = r->n_rests > 0 ? r->rests[r->first_rest] : UINT64_MAX;
	return driver_in_flight(r->driver) + r->n_rests < r->options->clients;
}

/* Send requests by the plan until the run is over, then wait for those in flight. */
static bool issue(run *r)
{
	const load_options *o = r->options;
	const uint64_t over = o->seconds > 0 ? r->began + (uint64_t)(o->seconds * 1e9) : UINT64_MAX;
	uint64_t due = r->began, ticked = r->began;
	bool more = true;
	while (more || driver_in_flight(r->driver) > 0) {
		const uint64_t now = driver_clock_ns();
		uint64_t from;
		const bool free = client_is_free(r, now, &from), planned = o->rate == 0 || due <= now;
		sent b = SENT_NONE;
		more = more && now < over && (o->requests == 0 || r->report->requests < o->requests);
		if (more && free && planned)
			b = begin(r, o->rate > 0 ? due : now, false);
		if (b == SENT_FAILED)
			return false;
		if (b == SENT) {
			due = o->rate > 0 ? next_arrival(r, due) : now;
			continue;
		}
		from = free && !planned ? due : from;
		uint64_t until = more ? over : UINT64_MAX;
		until = more && from < until ? from : until;
		if (!proceed(r, until, &ticked)) {
			driver_stop(r->driver);
			return true;
		}
	}
	return true;
}

static void give_up(run *r)
{
	load_report *out = r->report;
	driver_stop(r->driver);
	out->violations++;
	if (out->n_problems < LOAD_SHOWN)
		snprintf(out->problems[out->n_problems++], sizeof out->problems[0], "%lld sessions could not be closed",
		         sessions_left(r->sessions));
}

/* Close the sessions that are open. */
static bool close_sessions(run *r)
{
	uint64_t ticked = driver_clock_ns(), closed = ticked; /* when the latest session was closed */
	long long left = sessions_left(r->sessions);
	for (sent b = SENT; b == SENT || driver_in_flight(r->driver) + r->n_rests > 0;) {
		const uint64_t now = driver_clock_ns();
		uint64_t from;
		b = client_is_free(r, now, &from) ? begin(r, now, true) : SENT_NONE;
		if (b == SENT_FAILED)
			return false;
		if (sessions_left(r->sessions) < left)
			closed = now;
		left = sessions_left(r->sessions);
		if (now - closed > (uint64_t)LOAD_CLOSE_MS * NS_OF_MS) {
			give_up(r);
			return true;
		}
		if (b == SENT || driver_in_flight(r->driver) + r->n_rests == 0)
			continue;
		if (!proceed(r, from, &ticked)) {
			driver_stop(r->driver);
			return true;
		}
		b = SENT; /* a session whose request has ended may be open */
	}
	return true;
}

static bool perform(run *r, const http *h, char problem[300])
{
	const load_options *o = r->options;
	const driver_listener listener = {take_gap, take_end, r};
	snprintf(problem, 300, "out of memory");
	if (!workload_make(&r->workload, &o->workload)) {
		snprintf(problem, 300, "a prompt is not valid UTF-8");
		return false;
	}
	if (r->workload.n == 0) {
		snprintf(problem, 300, "there is no prompt");
		return false;
	}
	if (o->sessions.n > 0 && !(r->sessions = sessions_new(&r->workload, &o->sessions)))
		return false;
	r->rests = calloc((size_t)o->clients, sizeof *r->rests);
	r->report->keys = calloc((size_t)o->n_keys + 1, sizeof *r->report->keys);
	r->driver = driver_new(h, &listener);
	if (!r->rests || !r->report->keys || !r->driver || !fetch_expected(r, problem))
		return false;
	r->began = driver_clock_ns();
	bool ok = issue(r);
	r->report->seconds = seconds_of(r, driver_clock_ns());
	if (ok && r->sessions) {
		ok = close_sessions(r);
		r->report->opened = sessions_opened(r->sessions);
		r->report->unknown = sessions_unknown(r->sessions);
	}
	return ok;
}

bool load_run(const http *h, const load_options *o, load_report *report, char problem[300])
{
	run r = {.options = o, .report = report, .random = o->workload.seed};
	*report = (load_report){0};
	const bool ok = perform(&r, h, problem);
	driver_free(r.driver);
	sessions_free(r.sessions);
	free(r.rests);
	workload_free(&r.workload);
	for (ticket *t = r.spare, *next; t; t = next) {
		next = t->next;
		free(t);
	}
	return ok;
}

void load_report_free(load_report *r)
{
	free(r->keys);
	r->keys = NULL;
}
