/* answer.h - one answer to a request for text: what arrived, and whether it may be so.
 *
 * Answers are streams of server-sent events in the form of OpenAI's completions or chat completions. Zero-initialise;
 * free with answer_free. */
#ifndef CLIENTS_LOAD_ANSWER_H
#define CLIENTS_LOAD_ANSWER_H

#include "clients/cli/sse.h"

/* The end of a request. */
typedef enum outcome {
	OUTCOME_COMPLETE, /* the whole stream arrived */
	OUTCOME_LEFT,     /* this client closed the connection */
	OUTCOME_REFUSED,  /* 409, 429 or 503: busy, or overloaded */
	OUTCOME_FAILED,   /* another error, before or within the stream */
	OUTCOME_LOST      /* the connection failed */
} outcome;
enum { OUTCOMES = OUTCOME_LOST + 1 };
/* "complete", "left", … */
const char *outcome_name(outcome o);

typedef struct answer {
	sse events;
	text text;             /* generated so far */
	int n_events;          /* with text */
	int finishes;          /* finish reasons */
	char finish[16];       /* the last one */
	long long tokens;      /* as its usage says; -1: it does not */
	long long position;    /* tokens of its session after it; -1: it has none */
	bool done, after_done; /* [DONE] arrived; something arrived after it */
	bool failed;           /* an event is an error */
	char reason[200];      /* its message, or that of an answer with an error status */
	char problem[200];     /* the first rule that the answer breaks; "": none */
} answer;

void answer_begin(answer *a);
/* Record the first rule that is broken. Returns false. */
bool answer_object(answer *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Take bytes of the body. *texts: the number of events with text among them. False: too large, or no memory. */
bool answer_feed(answer *a, const char *bytes, size_t n, int *texts);
/* Check the rules of a stream: one finish reason, one [DONE], and no more tokens than max_tokens. Compare the text with
 * that of the undisturbed answer (NULL: unknown), of which an incomplete stream has the beginning. False: `problem` says
 * which rule is broken. */
bool answer_check(answer *a, outcome how, long long max_tokens, const answer *expected);
void answer_free(answer *a);

#endif
