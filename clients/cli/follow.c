#include "clients/cli/follow.h"

#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clients/cli/source.h"

enum { PATIENCE_SECONDS = 120, LINE_PERCENT = 10, PAUSE_MS = 500 };
enum { STEADY_SECONDS = 5, FIRST_PAUSE_MS = 250, LONGEST_PAUSE_MS = 4000 };

/* --- to the end ------------------------------------------------------------------------------------------------ */

/* On a terminal the line is drawn again, else there is one for each tenth. */
static void draw(const cli *c, const progress *p, int *printed)
{
	int percent = progress_percent(p);
	text line = {0};

	if (c->json || (!c->err.tty && percent < *printed + LINE_PERCENT))
		return;
	*printed = percent;
	progress_line(p, c->err.tty ? terminal_of(stderr).width - 1 : 120, &line);
	fprintf(stderr, c->err.tty ? "\r\x1b[K%s" : "%s\n", text_get(&line));
	fflush(stderr);
	text_free(&line);
}

static bool has_ended(const json_t *job)
{
	static const char *const active[] = {"queued",      "running",    "validating",
	                                     "in_progress", "finalizing", "cancelling"};
	const char *status = json_string_value(json_object_get(job, "status"));
	bool ended = true;

	for (size_t i = 0; status && i < sizeof(active) / sizeof(active[0]); i++)
		ended = ended && strcmp(status, active[i]) != 0;
	return ended;
}

json_t *follow_wait(cli *c, const char *path, const char *id,
                    void (*take)(progress *p, const json_t *job, long long time))
{
	struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
	time_t good = time(NULL);
	int printed = -LINE_PERCENT;
	progress p;

	progress_init(&p);
	for (;; nanosleep(&pause, NULL)) {
		json_t *job = http_json(c->http, "GET", http_path(c->http, path, id), NULL);
		const int status = http_get_problem(c->http)->status;

		if (!job && ((status != 0 && status != 503) || time(NULL) - good > PATIENCE_SECONDS)) {
			cli_complain(c);
			return NULL;
		}
		if (!job)
			continue;
		good = time(NULL);
		take(&p, job, (long long)good);
		draw(c, &p, &printed);
		if (has_ended(job)) {
			if (c->err.tty && !c->json)
				fputc('\n', stderr);
			return job;
		}
		json_decref(job);
	}
}

/* --- events ------------------------------------------------------------------------------------------------------ */

/* An event's number is its id, or for a response its sequence_number. */
static bool follow_take_event(void *context, const char *id, const json_t *event, const char *raw)
{
	follow_stream *s = context;
	const json_t *number = json_object_get(event, "sequence_number");

	if (json_is_integer(number))
		snprintf(s->last_id, sizeof(s->last_id), "%lld", (long long)json_integer_value(number));
	else
		snprintf(s->last_id, sizeof(s->last_id), "%s", id);
	s->received = true;
	return s->each(s->context, id, event, raw);
}

http_end follow_events(cli *c, const char *path, const char *id, follow_stream *s)
{
	int pause_ms = FIRST_PAUSE_MS;
	time_t good = time(NULL);

	for (;;) {
		const time_t started = time(NULL);
		s->received = false;
		const http_end end =
		    http_stream(c->http, "GET", http_path(c->http, path, id), NULL, s->last_id, follow_take_event, s);

		if (end != HTTP_LOST)
			return end;
		if (s->received || time(NULL) - started > STEADY_SECONDS) {
			good = time(NULL);
			pause_ms = FIRST_PAUSE_MS;
		}
		if (time(NULL) - good > PATIENCE_SECONDS)
			return end;
		if (!s->wait)
			poll(NULL, 0, pause_ms);
		else if (s->wait(s->context, pause_ms))
			return HTTP_INTERRUPTED;
		pause_ms = pause_ms < LONGEST_PAUSE_MS ? 2 * pause_ms : LONGEST_PAUSE_MS;
	}
}

/* --- the beginning ----------------------------------------------------------------------------------------------- */

static json_t *create(cli *c, const char *path, json_t *request)
{
	json_t *job = http_json(c->http, "POST", path, json_incref(request));

	if (!job)
		cli_complain(c);
	return job;
}

int follow_created(cli *c, const char *noun, json_t *created, int (*follow)(cli *c, const char *id))
{
	const char *id = json_string_value(json_object_get(created, "id"));
	int status = CLI_OK;

	if (!id) {
		status = cli_fail("the service's answer has no id");
	} else if (!options_flag(&c->options, "detach")) {
		cli_note(c, "Created %s: %s", noun, id);
		status = follow(c, id);
	} else if (c->json) {
		cli_print_json(created);
	} else {
		printf("%s\n", id);
	}
	json_decref(created);
	return status;
}

int follow_create(cli *c, const follow_kind *k, json_t *request, const char *file)
{
	const bool remote = strcmp(file, "-") != 0 && access(file, R_OK) != 0;
	source corpus = {0};
	json_t *job = NULL;

	if (remote && json_object_set_new(request, k->member, json_string(file)) == 0)
		job = create(c, k->path, request);
	if (!remote && source_open(&corpus, file, NULL) && source_send(c, &corpus, k->purpose) &&
	    json_object_set_new(request, k->member, json_string(corpus.id)) == 0)
		job = create(c, k->path, request);
	if (!remote && !job)
		source_take_back(c, &corpus);
	if (!remote)
		source_close(&corpus);

	if (!job)
		return CLI_FAILED;
	return follow_created(c, k->noun, job, k->follow);
}
