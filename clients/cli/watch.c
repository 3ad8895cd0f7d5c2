/* watch.c - the event stream drives the display. Signals are blocked and read from a descriptor that the request also
 * waits for, so no handler and no global is needed. A job that is watched late sends all its events at once, and a
 * drawing is larger than an event. Updates soon after a drawing are therefore drawn when SIGALRM comes. */
#include "clients/cli/watch.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "clients/cli/curve.h"
#include "clients/cli/field_names.h"
#include "clients/cli/follow.h"
#include "clients/cli/footer.h"
#include "clients/cli/progress.h"
#include "clients/cli/show.h"

enum { LINE_PERCENT = 10 };
enum { CURVE_ROWS = 8, CURVE_LEAST_HEIGHT = 2 * CURVE_ROWS, DRAW_PAUSE_MS = 50 };

typedef struct watch {
	cli *c;
	int signals; /* descriptor */
	progress progress;
	int printed_percent; /* without a terminal: of the latest line */
	double printed_valid;
	curve *curve;       /* NULL: none is drawn */
	footer footer;      /* curve and progress line on the screen */
	bool drawing_waits; /* for SIGALRM */
	struct timespec drawn;
} watch;

/* --- display ------------------------------------------------------------------------- */

static void erase(watch *w)
{
	footer_erase(&w->footer, stderr, terminal_of(stderr).width);
}

static void draw_on_terminal(watch *w)
{
	const terminal t = terminal_of(stderr);
	text lines = {0};

	if (w->curve && t.height >= CURVE_LEAST_HEIGHT)
		curve_draw(w->curve, t.width - 1, CURVE_ROWS, t.utf8, &lines);
	progress_line(&w->progress, t.width - 1, &lines);
	footer_draw(&w->footer, stderr, t.width, &lines);
	text_free(&lines);
	w->drawing_waits = false;
	clock_gettime(CLOCK_MONOTONIC, &w->drawn);
}

static void draw(watch *w)
{
	text line = {0};

	if (w->c->err.tty) {
		draw_on_terminal(w);
		return;
	}
	progress_line(&w->progress, 120, &line);
	fprintf(stderr, "%s\n", text_get(&line));
	fflush(stderr);
	text_free(&line);
}

/* Now, or DRAW_PAUSE_MS after the drawing before. */
static void draw_soon(watch *w)
{
	const struct itimerval pause = {.it_value = {.tv_usec = DRAW_PAUSE_MS * 1000L}};
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	const long long ms = (now.tv_sec - w->drawn.tv_sec) * 1000LL + (now.tv_nsec - w->drawn.tv_nsec) / 1000000;
	if (!w->c->err.tty || ms >= DRAW_PAUSE_MS)
		draw(w);
	else if (!w->drawing_waits)
		w->drawing_waits = setitimer(ITIMER_REAL, &pause, NULL) == 0;
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
	text line = {0}, translated = {0};

	if (!json_is_string(message))
		return;
	erase(w);
	field_names_translate(w->c, json_string_value(message), &translated);
	terminal_escape(&line, text_get(&translated), translated.used, false);
	fprintf(stderr, "%s\n", text_get(&line));
	text_free(&translated);
	text_free(&line);
}

/* Show the generated text, and how much better the model is than one that only knows byte frequencies. */
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

	(void)id;
	if (w->c->json) {
		puts(raw);
		return fflush(stdout) == 0;
	}
	const json_t *data = json_object_get(event, "data");
	progress_update(&w->progress, data);
	progress_estimate(&w->progress, data, json_integer_value(json_object_get(event, "created_at")));
	const json_t *train = json_object_get(data, "train_loss"), *valid = json_object_get(data, "valid_loss");

	if (w->curve)
		curve_add(w->curve, json_integer_value(json_object_get(data, "step")),
		          json_is_number(train) ? json_number_value(train) : NAN,
		          json_is_number(valid) ? json_number_value(valid) : NAN);
	if (!type || strcmp(type, "metrics") != 0)
		print_message(w, event);
	else
		print_preview(w, data);
	if (w->progress.step >= 0 && worth_drawing(w))
		draw_soon(w);
	return true;
}

/* --- the end ----------------------------------------------------------------------------- */

static void print_failure(const cli *c, const json_t *job)
{
	const char *message = json_string_value(show_get(job, "error.message"));
	text line = {0}, translated = {0};

	field_names_translate(c, message ? message : "", &translated);
	terminal_escape(&line, text_get(&translated), translated.used, false);
	text_free(&translated);
	cli_fail("the job failed: %s", text_get(&line));
	text_free(&line);
}

static int print_end(watch *w, const char *id)
{
	json_t *job = http_json(w->c->http, "GET", http_path(w->c->http, "/v1/fine_tuning/jobs/%s", id), NULL);
	const char *status = json_string_value(json_object_get(job, "status"));
	const char *model = json_string_value(json_object_get(job, "fine_tuned_model"));
	const char *made = model ? model : json_string_value(show_get(job, "additive.adapter"));
	bool succeeded = status && strcmp(status, "succeeded") == 0;

	if (!job)
		return cli_complain(w->c);
	progress_update(&w->progress, json_object_get(job, "additive"));
	if (w->c->json) {
		cli_print_json(job);
	} else {
		if (w->c->err.tty && w->progress.step >= 0) {
			draw(w);
			footer_leave(&w->footer, stderr);
		}
		if (succeeded && made)
			printf("%s\n", made);
		else if (status && strcmp(status, "failed") == 0)
			print_failure(w->c, job);
		else if (!succeeded)
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
	bool interrupted = false, drawn = w->footer.n > 0, redraw = false;

	while (read(w->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		interrupted = interrupted || info.ssi_signo == SIGINT;
		redraw = redraw || (info.ssi_signo == SIGALRM && w->drawing_waits) ||
		         (info.ssi_signo != SIGALRM && info.ssi_signo != SIGINT && drawn);
		if (info.ssi_signo == SIGCONT) /* the shell has written below */
			footer_forget(&w->footer);
	}
	if (redraw && !interrupted)
		draw(w);
	return interrupted;
}

static bool interrupted_within(void *context, int ms)
{
	const watch *w = context;
	struct pollfd wait = {.fd = w->signals, .events = POLLIN};

	return poll(&wait, 1, ms) > 0 && take_signals(context);
}

/* NULL: no curve is wanted, or there is no memory for one. */
static curve *new_curve(const cli *c)
{
	curve *made =
	    c->json || c->err.height == 0 || options_flag(&c->options, "no-curve") ? NULL : malloc(sizeof(*made));

	if (made)
		curve_init(made);
	return made;
}

int watch_job(cli *c, const char *id)
{
	static const int taken[] = {SIGINT, SIGWINCH, SIGALRM, SIGCONT};
	watch w = {.c = c, .printed_percent = -LINE_PERCENT, .printed_valid = NAN, .curve = new_curve(c)};
	follow_stream stream = {.each = take_event, .wait = interrupted_within, .context = &w};
	sigset_t signals, before;
	int status;

	progress_init(&w.progress);
	sigemptyset(&signals);
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
		sigaddset(&signals, taken[i]);
	sigprocmask(SIG_BLOCK, &signals, &before);
	w.signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	http_wake_on(c->http, w.signals, take_signals, &w);
	http_end end = follow_events(c, "/v1/fine_tuning/jobs/%s/events?stream=true", id, &stream);
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
	free(w.curve);
	setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	/* One that came meanwhile has been taken. */
	struct timespec none = {0};
	while (sigtimedwait(&signals, NULL, &none) > 0)
		;
	sigprocmask(SIG_SETMASK, &before, NULL);
	return status;
}
