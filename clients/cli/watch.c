/* watch.c - the event stream drives the display. SIGINT and SIGWINCH are blocked and come through a descriptor that the
 * request also waits for, so no handler and no global is needed. */
#include "clients/cli/watch.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "clients/cli/progress.h"
#include "clients/cli/show.h"

enum { PATIENCE_SECONDS = 120, STEADY_SECONDS = 5, FIRST_PAUSE_MS = 250, LONGEST_PAUSE_MS = 4000, LINE_PERCENT = 10 };

typedef struct watch {
	cli *c;
	int signals; /* descriptor */
	char last_id[SSE_ID_BYTES];
	progress progress;
	int printed_percent; /* without a terminal: of the latest line */
	double printed_valid;
	bool drawn; /* a progress line is on the screen */
	bool received; /* the running stream has brought something */
} watch;

/* --- display ------------------------------------------------------------------------- */

static void erase(watch *w)
{
	if (w->drawn)
		fputs("\r\x1b[K", stderr);
	w->drawn = false;
}

static void draw(watch *w)
{
	text line = {0};
	bool tty = w->c->err.tty;

	progress_line(&w->progress, tty ? terminal_of(stderr).width - 1 : 120, &line);
	if (tty) {
		fprintf(stderr, "\r\x1b[K%s", text_get(&line));
		w->drawn = true;
	} else {
		fprintf(stderr, "%s\n", text_get(&line));
	}
	fflush(stderr);
	text_free(&line);
}

/* Without a terminal, only what is worth a line in a log. */
static bool worth_drawing(watch *w)
{
	int percent = progress_percent(&w->progress);
	double valid = w->progress.valid_loss;
	bool news = percent >= w->printed_percent + LINE_PERCENT || (percent == 100 && w->printed_percent < 100) ||
	            (!isnan(valid) && !(valid == w->printed_valid));

	if (!w->c->err.tty && !news)
		return false;
	w->printed_percent = percent;
	w->printed_valid = valid;
	return true;
}

static void print_message(watch *w, const json_t *event)
{
	const json_t *message = json_object_get(event, "message");
	text line = {0};

	if (!json_is_string(message))
		return;
	erase(w);
	terminal_escape(&line, json_string_value(message), json_string_length(message), false);
	fprintf(stderr, "%s\n", text_get(&line));
	text_free(&line);
}

/* What the model writes, and how far it is from knowing only how often each byte occurs. */
static void print_preview(watch *w, const json_t *data)
{
	const json_t *prompt = show_get(data, "preview.prompt"), *written = show_get(data, "preview.text");
	double bits = json_number_value(json_object_get(data, "bits_per_byte"));
	double alone = json_number_value(json_object_get(data, "byte_entropy"));
	text line = {0};

	if (!json_is_string(prompt) || !json_is_string(written))
		return;
	erase(w);
	terminal_escape(&line, json_string_value(prompt), json_string_length(prompt), false);
	text_string(&line, " > ");
	terminal_escape(&line, json_string_value(written), json_string_length(written), false);
	fprintf(stderr, "step %lld, %.3f bits/byte (frequencies of bytes alone: %.3f): %s\n",
	        (long long)json_integer_value(json_object_get(data, "step")), bits, alone, text_get(&line));
	text_free(&line);
}

static bool take_event(void *context, const char *id, const json_t *event, const char *raw)
{
	watch *w = context;
	const char *type = json_string_value(json_object_get(event, "type"));

	snprintf(w->last_id, sizeof(w->last_id), "%s", id);
	w->received = true;
	if (w->c->json) {
		puts(raw);
		return fflush(stdout) == 0;
	}
	const json_t *data = json_object_get(event, "data");
	progress_update(&w->progress, data);
	progress_estimate(&w->progress, data, json_integer_value(json_object_get(event, "created_at")));
	if (!type || strcmp(type, "metrics") != 0)
		print_message(w, event);
	else
		print_preview(w, data);
	if (w->progress.step >= 0 && worth_drawing(w))
		draw(w);
	return true;
}

/* --- the end ----------------------------------------------------------------------------- */

static void print_failure(const json_t *job)
{
	const char *message = json_string_value(show_get(job, "error.message"));
	text line = {0};

	terminal_escape(&line, message ? message : "", message ? strlen(message) : 0, false);
	cli_fail("the job failed: %s", text_get(&line));
	text_free(&line);
}

static int print_end(watch *w, const char *id)
{
	json_t *job = http_json(w->c->http, "GET", http_path(w->c->http, "/v1/fine_tuning/jobs/%s", id), NULL);
	const char *status = json_string_value(json_object_get(job, "status"));
	const char *model = json_string_value(json_object_get(job, "fine_tuned_model"));
	bool succeeded = status && strcmp(status, "succeeded") == 0;

	if (!job)
		return cli_complain(w->c);
	progress_update(&w->progress, json_object_get(job, "additive"));
	if (w->c->json) {
		cli_print_json(job);
	} else {
		if (w->c->err.tty && w->progress.step >= 0) {
			draw(w);
			fputc('\n', stderr);
			w->drawn = false;
		}
		if (succeeded)
			printf("%s\n", model ? model : "");
		else if (status && strcmp(status, "failed") == 0)
			print_failure(job);
		else
			cli_fail("the job is %s", status ? status : "in an unknown state");
		fflush(stdout);
	}
	json_decref(job);
	return succeeded ? CLI_OK : CLI_FAILED;
}

/* --- the loop ------------------------------------------------------------------------------ */

/* Signals have come. True: Ctrl-C. */
static bool take_signals(void *context)
{
	watch *w = context;
	struct signalfd_siginfo info;
	bool interrupted = false;

	while (read(w->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		interrupted = interrupted || info.ssi_signo == SIGINT;
		if (info.ssi_signo == SIGWINCH && w->drawn)
			draw(w);
	}
	return interrupted;
}

static bool interrupted_within(watch *w, int ms)
{
	struct pollfd wait = {.fd = w->signals, .events = POLLIN};

	return poll(&wait, 1, ms) > 0 && take_signals(w);
}

/* Give up when for PATIENCE_SECONDS no attempt has lasted or brought anything. */
static http_end follow(watch *w, const char *id)
{
	int pause_ms = FIRST_PAUSE_MS;
	time_t good = time(NULL);

	for (;;) {
		time_t begun = time(NULL);
		w->received = false;
		http_end end = http_stream(w->c->http, "GET",
		                           http_path(w->c->http, "/v1/fine_tuning/jobs/%s/events?stream=true", id),
		                           NULL, w->last_id, take_event, w);

		if (end != HTTP_LOST)
			return end;
		if (w->received || time(NULL) - begun > STEADY_SECONDS) {
			good = time(NULL);
			pause_ms = FIRST_PAUSE_MS;
		}
		if (time(NULL) - good > PATIENCE_SECONDS)
			return end;
		if (interrupted_within(w, pause_ms))
			return HTTP_INTERRUPTED;
		pause_ms = pause_ms < LONGEST_PAUSE_MS ? 2 * pause_ms : LONGEST_PAUSE_MS;
	}
}

int watch_job(cli *c, const char *id)
{
	watch w = {.c = c, .printed_percent = -LINE_PERCENT, .printed_valid = NAN};
	sigset_t signals, before;
	int status;

	progress_init(&w.progress);
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGWINCH);
	sigprocmask(SIG_BLOCK, &signals, &before);
	w.signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	http_wake_on(c->http, w.signals, take_signals, &w);
	http_end end = follow(&w, id);
	http_wake_on(c->http, -1, NULL, NULL);
	erase(&w);
	if (end == HTTP_DONE) {
		status = print_end(&w, id);
	} else if (end == HTTP_INTERRUPTED) {
		cli_note(c, "\nThe job goes on. Look at it again with: additive jobs watch %s", id);
		status = CLI_INTERRUPTED;
	} else {
		status = end == HTTP_STOPPED ? CLI_FAILED : cli_complain(c);
	}
	if (w.signals >= 0)
		close(w.signals);
	/* A Ctrl-C that came meanwhile has been taken. */
	struct timespec none = {0};
	while (sigtimedwait(&signals, NULL, &none) > 0)
		;
	sigprocmask(SIG_SETMASK, &before, NULL);
	return status;
}
