/* prompt.c - libedit and not GNU readline, whose licence would become this program's.
 *
 * While a line is edited the terminal sends no signals: Ctrl-C and Ctrl-Z are keys, bound to functions. Otherwise the
 * kernel would throw away what was typed ahead, and SIGINT, which is blocked for the answers, would end no line.
 *
 * Between two lines the terminal is cooked: Ctrl-C stops an answer. Keys typed then are read when the next line is
 * edited, so the cooked terminal has no end-of-file character: the kernel would replace Ctrl-D with a NUL. */
#include "clients/cli/prompt.h"

#include <histedit.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli.h"

enum { HISTORY_LINES = 1000 };
static const char fence[] = "\"\"\"";

struct prompt {
	EditLine *edit;
	History *history;
	char *file; /* the history file, or NULL */
	const char *shown;
	bool given_up;
};

/* --- the history's file ------------------------------------------------------------------------ */

/* malloc'ed, its folder made; NULL: the history is not kept. */
static char *history_file(void)
{
	const char *asked = getenv("ADDITIVE_HISTORY"), *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	text folder = {0};

	if (asked)
		return *asked ? strdup(asked) : NULL;
	if (state && *state)
		text_format(&folder, "%s/additive", state);
	else if (home && *home)
		text_format(&folder, "%s/.local/state/additive", home);
	if (folder.used == 0 || !cli_make_folder(text_get(&folder)) || !text_string(&folder, "/history"))
		text_free(&folder);
	return folder.data;
}

static void remember(prompt *p, const char *line)
{
	HistEvent event;

	if (*line && p->history)
		history(p->history, &event, H_ENTER, line);
}

/* --- life ------------------------------------------------------------------------------------------ */

static char *show_prompt(EditLine *edit)
{
	prompt *p;

	el_get(edit, EL_CLIENTDATA, &p);
	return (char *)(uintptr_t)p->shown;
}

/* Ctrl-C */
static unsigned char give_up(EditLine *edit, wint_t key)
{
	prompt *p;

	(void)key;
	el_get(edit, EL_CLIENTDATA, &p);
	p->given_up = true;
	return CC_NEWLINE;
}

/* Ctrl-Z: libedit's handler gives the terminal back, stops the process, and takes the terminal again. */
static unsigned char suspend(EditLine *edit, wint_t key)
{
	(void)key;
	el_set(edit, EL_SETTY, "-x", "eof=^D", NULL);
	kill(0, SIGTSTP);
	el_set(edit, EL_SETTY, "-x", "eof=", NULL);
	return CC_REDISPLAY;
}

static void open_history(prompt *p)
{
	HistEvent event;

	p->history = history_init();
	if (!p->history)
		return;
	history(p->history, &event, H_SETSIZE, HISTORY_LINES);
	history(p->history, &event, H_SETUNIQUE, 1);
	p->file = history_file();
	if (p->file)
		history(p->history, &event, H_LOAD, p->file); /* there may be none yet */
	el_set(p->edit, EL_HIST, history, p->history);
}

prompt *prompt_new(void)
{
	prompt *p = calloc(1, sizeof(*p));

	if (p)
		p->edit = el_init("additive", stdin, stdout, stderr);
	if (!p || !p->edit) {
		cli_fail("cannot edit lines on this terminal");
		free(p);
		return NULL;
	}
	el_set(p->edit, EL_CLIENTDATA, p);
	el_set(p->edit, EL_PROMPT, show_prompt);
	el_set(p->edit, EL_EDITOR, "emacs");
	el_set(p->edit, EL_SIGNAL, 1);                                        /* a resize, a stop and its end */
	el_wset(p->edit, EL_ADDFN, L"give-up", L"give up the line", give_up); /* el_set leaks copies */
	el_set(p->edit, EL_BIND, "^C", "give-up", NULL);
	el_wset(p->edit, EL_ADDFN, L"suspend", L"stop the process", suspend);
	el_set(p->edit, EL_BIND, "^Z", "suspend", NULL);
	el_set(p->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
	el_set(p->edit, EL_BIND, "^@", "em-set-mark", NULL); /* libedit binds disabled keys of the terminal, all NUL */
	el_set(p->edit, EL_SETTY, "-d", "-isig", NULL);
	el_set(p->edit, EL_SETTY, "-x", "eof=", NULL);
	open_history(p);
	el_source(p->edit, NULL); /* the user's .editrc */
	return p;
}

void prompt_free(prompt *p)
{
	HistEvent event;

	if (!p)
		return;
	if (p->history && p->file)
		history(p->history, &event, H_SAVE, p->file);
	if (p->history)
		history_end(p->history);
	el_end(p->edit);
	free(p->file);
	free(p);
}

/* --- reading ------------------------------------------------------------------------------------------ */

/* el_gets alone shows the prompt first, and then takes the terminal out of its cooked mode. */
void prompt_ready(prompt *p)
{
	el_set(p->edit, EL_PREP_TERM, 1);
}

/* Append a line without its newline. */
static prompt_end read_line(prompt *p, const char *shown, text *out)
{
	int n = 0;

	p->shown = shown;
	p->given_up = false;
	prompt_ready(p);
	const char *line = el_gets(p->edit, &n);
	if (p->given_up) {
		puts("^C");
		return PROMPT_GIVEN_UP;
	}
	if (!line || n <= 0) {
		putchar('\n');
		return PROMPT_END;
	}
	size_t begin = out->used, bytes = (size_t)n - (line[n - 1] == '\n');
	text_append(out, line, bytes);
	remember(p, text_get(out) + begin);
	return PROMPT_LINE;
}

static bool ends_with(const text *t, const char *end)
{
	size_t n = strlen(end);

	return t->used >= n && strcmp(text_get(t) + t->used - n, end) == 0;
}

static void prompt_cut(text *t, size_t bytes)
{
	t->used -= bytes;
	t->data[t->used] = '\0';
}

/* Read the text after the opening fence, up to a line that ends with one. */
static prompt_end read_fenced(prompt *p, text *out)
{
	text rest = {0};

	text_string(&rest, text_get(out) + strlen(fence));
	text_clear(out);
	text_append(out, text_get(&rest), rest.used);
	text_free(&rest);
	while (!ends_with(out, fence)) {
		if (out->used > 0)
			text_string(out, "\n");
		prompt_end end = read_line(p, "... ", out);
		if (end != PROMPT_LINE)
			return end;
	}
	prompt_cut(out, strlen(fence));
	if (ends_with(out, "\n"))
		prompt_cut(out, 1);
	return PROMPT_TEXT;
}

prompt_end prompt_read(prompt *p, text *out)
{
	text_clear(out);
	prompt_end end = read_line(p, ">>> ", out);
	if (end != PROMPT_LINE)
		return end;
	if (strncmp(text_get(out), fence, strlen(fence)) == 0)
		return read_fenced(p, out);
	while (ends_with(out, "\\")) {
		prompt_cut(out, 1);
		text_string(out, "\n");
		if ((end = read_line(p, "... ", out)) != PROMPT_LINE)
			return end;
		end = PROMPT_TEXT;
	}
	return end;
}
