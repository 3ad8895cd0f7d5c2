/* interactive.c - SIGINT is blocked and comes through a descriptor for which an answer also waits; at the prompt Ctrl-C
 * is a key. */
#include "clients/cli/interactive.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "clients/cli/prompt.h"
#include "proto/nearest.h"

enum { BUSY_PAUSE_MS = 50, BUSY_MOST_MS = 5000 };

typedef struct conversation {
	cli *c;
	const generate_what *what;
	char *session; /* NULL before the first text */
	bool borrowed; /* --session: it stays open in the end */
	bool started;  /* a chat: the system's message was sent */
	bool ends_line;
	int signals; /* descriptor */
} conversation;

static const char help[] = "What you type continues the text, and the model goes on from there.\n"
                           "  an empty line   let the model go on\n"
                           "  LINE\\           the text goes on in the next line\n"
                           "  \"\"\" … \"\"\"       a text of several lines, or one that begins with a slash\n"
                           "  /new            begin a new text\n"
                           "  /help           this text\n"
                           "  /exit, Ctrl-D   leave\n"
                           "  Ctrl-C          stop the answer, or give up the line\n";

static const char chat_help[] = "What you type is your message, and the model answers.\n"
                                "  LINE\\           the message goes on in the next line\n"
                                "  \"\"\" … \"\"\"       a message of several lines, or one that begins with a slash\n"
                                "  /new            begin a new conversation\n"
                                "  /help           this text\n"
                                "  /exit, Ctrl-D   leave\n"
                                "  Ctrl-C          stop the answer, or give up the line\n";

/* --- answers ------------------------------------------------------------------------------ */

static bool take_interrupt(void *context)
{
	conversation *t = context;
	struct signalfd_siginfo info;
	bool interrupted = false;

	while (read(t->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
		interrupted = true;
	return interrupted;
}

/* An answer that was stopped leaves its session busy for a moment. After a request that was refused for this, wait as
 * long as the refusal says; false: it was another failure, or the waits come to more than BUSY_MOST_MS. */
static bool wait_while_busy(const cli *c, int64_t *waited_ms)
{
	const http_problem *p = http_get_problem(c->http);
	int64_t ms = p->retry_after > 0 ? p->retry_after * INT64_C(1000) : BUSY_PAUSE_MS;
	const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

	if (strcmp(p->code, "session_busy") != 0 || *waited_ms + ms > BUSY_MOST_MS)
		return false;
	*waited_ms += ms;
	nanosleep(&pause, NULL);
	return true;
}

static void answer(conversation *t, const char *string)
{
	bool ended_line = t->ends_line;
	int64_t waited_ms = 0;
	http_end end;

	generate_what what = {.session = t->session,
	                      .text = string,
	                      .chat = t->what->chat,
	                      .system = t->started ? NULL : t->what->system};

	t->ends_line = string ? string[strlen(string) - 1] == '\n' : ended_line; /* and then as the answer does */

	http_wake_on(t->c->http, t->signals, take_interrupt, t);
	do
		end = generate_stream(t->c, &what, &t->ends_line);
	while (end == HTTP_FAILED && wait_while_busy(t->c, &waited_ms));
	http_wake_on(t->c->http, -1, NULL, NULL);
	if (end != HTTP_FAILED && end != HTTP_LOST) {
		t->started = true;
		return;
	}
	t->ends_line = ended_line;
	cli_complain(t->c);
}

static void say(conversation *t, const char *string)
{
	text whole = {0};

	if (!*string && (!t->session || t->what->chat))
		return;
	if (!t->session) {
		t->session = generate_open_session(t->c, t->what->model);
		t->ends_line = true;
	}
	if (!t->session)
		return;
	if (!t->ends_line && *string && !t->what->chat)
		text_string(&whole, "\n");
	text_string(&whole, string);
	answer(t, whole.used ? text_get(&whole) : NULL);
	text_free(&whole);
}

/* --- commands ------------------------------------------------------------------------------- */

static void delete_session(cli *c, const char *session)
{
	json_t *answer;
	int64_t waited_ms = 0;

	do
		answer = http_json(c->http, "DELETE", http_path(c->http, "/v1/sessions/%s", session), NULL);
	while (!answer && wait_while_busy(c, &waited_ms));
	if (!answer && http_get_problem(c->http)->status != 404)
		cli_complain(c);
	json_decref(answer);
}

static void close_session(conversation *t)
{
	bool keep = t->borrowed || options_flag(&t->c->options, "new-session");

	if (t->session && keep)
		cli_note(t->c, "The session stays open. Go on with: additive generate --session %s", t->session);
	else if (t->session)
		delete_session(t->c, t->session);
	free(t->session);
	t->session = NULL;
	t->started = false;
}

static void begin_anew(conversation *t)
{
	if (t->borrowed) {
		cli_fail("a --session has one text; leave, and start with --model for another");
		return;
	}
	close_session(t);
}

/* False: leave. */
static bool obey(conversation *t, const char *line)
{
	static const char *const words[] = {"/new", "/help", "/exit", "/bye", "/quit"};
	nearest near = nearest_of(line);

	if (strcmp(line, "/exit") == 0 || strcmp(line, "/bye") == 0 || strcmp(line, "/quit") == 0)
		return false;
	if (strcmp(line, "/new") == 0) {
		begin_anew(t);
	} else if (strcmp(line, "/help") == 0 || strcmp(line, "/?") == 0) {
		fputs(t->what->chat ? chat_help : help, stdout);
	} else {
		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
			nearest_offer(&near, words[i]);
		const char *meant = nearest_found(&near);
		cli_fail(meant ? "unknown command: %s (did you mean %s?)" : "unknown command: %s. /help lists them",
		         line, meant);
	}
	return true;
}

static void converse(conversation *t, prompt *p)
{
	text typed = {0};

	for (bool on = true; on;) {
		prompt_ready(p);
		take_interrupt(t); /* from after the last answer: not for the next one */
		prompt_end end = prompt_read(p, &typed);

		if (end == PROMPT_END)
			on = false;
		else if (end == PROMPT_LINE && text_get(&typed)[0] == '/')
			on = obey(t, text_get(&typed));
		else if (end != PROMPT_GIVEN_UP)
			say(t, text_get(&typed));
	}
	text_free(&typed);
}

int interactive_run(cli *c, const generate_what *what)
{
	conversation t = {.c = c,
	                  .what = what,
	                  .session = what->session ? strdup(what->session) : NULL,
	                  .borrowed = what->session,
	                  .ends_line = true};
	sigset_t signals;
	prompt *p = prompt_new();

	if (!p) {
		free(t.session);
		return CLI_FAILED;
	}
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	t.signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	cli_note(c, what->chat
	                ? "Type a message; the model answers. /help says more, Ctrl-D leaves."
	                : "Type the beginning of a text; the model continues it. /help says more, Ctrl-D leaves.");
	converse(&t, p);
	prompt_free(p);
	close_session(&t);
	if (t.signals >= 0)
		close(t.signals);
	return CLI_OK;
}
