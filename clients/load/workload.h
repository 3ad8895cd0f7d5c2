/* workload.h - the requests of a run. All follow from the options and the seed.
 *
 * There are few distinct requests, so that the undisturbed answer of each can be fetched first: every prompt with every
 * limit of tokens. Sessions follow a few scripts, the first `turns` cases from some case on (sessions.h). */
#ifndef CLIENTS_LOAD_WORKLOAD_H
#define CLIENTS_LOAD_WORKLOAD_H

#include <stdint.h>

#include "clients/load/answer.h"

enum { WORKLOAD_PROMPTS = 16, WORKLOAD_PROMPT_BYTES = 32, WORKLOAD_MAX_LIMITS = 8 };

/* Random numbers (SplitMix64). */
uint64_t random_next(uint64_t *state);
double random_unit(uint64_t *state); /* in [0, 1) */

typedef struct workload_case {
	int number, prompt;
	long long max_tokens;
	char *body;      /* the request, JSON */
	answer expected; /* the undisturbed answer */
	bool known;      /* there is one */
} workload_case;

typedef struct workload {
	workload_case *cases;
	int n;
} workload;

typedef struct workload_options {
	const char *model;
	bool chat, sessions; /* bodies of chat completions, or of generations in a session; neither: of completions */
	const char *prompts; /* lines, each a prompt; NULL: words made from the seed */
	const long long *max_tokens; /* [n_limits] */
	int n_limits;
	double temperature;
	uint64_t seed;
} workload_options;

/* False: out of memory, or a prompt is not valid UTF-8. */
bool workload_make(workload *w, const workload_options *o);
void workload_free(workload *w);

#endif
