/* event_message.c - a struct followed by its arrays, each aligned to 8 bytes. */
#include "engine/daemon/generation/event_message.h"

#include <stdlib.h>
#include <string.h>

static size_t aligned(size_t bytes)
{
	return (bytes + 7) & ~(size_t)7;
}

/* Copy `from` to *at and move *at past it. */
static const void *copy_array(char **at, const void *from, size_t bytes)
{
	void *copy = *at;
	if (bytes)
		memcpy(copy, from, bytes);
	*at += aligned(bytes);
	return copy;
}

event_message *event_message_new(const generation_event *e, void *owner, void (*done)(task *t))
{
	size_t n = (size_t)e->n_tokens, tokens = n * sizeof *e->tokens, logprobs = n * sizeof *e->logprobs;
	size_t top = e->logprobs ? n * (size_t)e->n_top * sizeof *e->top : 0,
	       alpha = (size_t)e->n_alpha * sizeof *e->alpha;
	event_message *m = malloc(aligned(sizeof *m) + aligned(tokens) + aligned(logprobs) + aligned(top) +
	                          aligned(alpha) + aligned(e->text_bytes));
	if (!m)
		return NULL;
	*m = (event_message){.task.done = done, .owner = owner, .event = *e};
	char *at = (char *)m + aligned(sizeof *m);
	m->event.tokens = copy_array(&at, e->tokens, tokens);
	if (e->logprobs) {
		m->event.logprobs = copy_array(&at, e->logprobs, logprobs);
		m->event.top = copy_array(&at, e->top, top);
	}
	m->event.alpha = copy_array(&at, e->alpha, alpha);
	m->event.text = copy_array(&at, e->text, e->text_bytes);
	return m;
}

void event_message_keep_top(event_message *m, int n)
{
	generation_event *e = &m->event;
	if (n < 0)
		e->logprobs = NULL;
	if (!e->logprobs || n == e->n_top)
		return;
	token_logprob *top = (token_logprob *)(uintptr_t)e->top; /* in this block */
	for (int i = 1; i < e->n_tokens; i++)
		memmove(top + i * n, top + i * e->n_top, (size_t)n * sizeof *top);
	e->n_top = n;
}
