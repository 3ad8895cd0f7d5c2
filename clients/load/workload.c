#include "clients/load/workload.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t random_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

double random_unit(uint64_t *state)
{
	return (double)(random_next(state) >> 11) * 0x1p-53;
}

/* Words of random letters. Lengths are spread evenly over powers of two, from 8 bytes on. */
static bool make_prompt(text *out, uint64_t *random)
{
	const size_t bytes = (size_t)(8 * pow(WORKLOAD_PROMPT_BYTES / 8, random_unit(random)));
	while (out->used < bytes) {
		const uint64_t r = random_next(random);
		const char letter = r % 6 == 0 ? ' ' : (char)('a' + (r >> 8) % 26);
		if (!text_append(out, &letter, 1))
			return false;
	}
	return true;
}

static char *make_body(const workload_options *o, json_t *prompt, long long max_tokens, uint64_t seed)
{
	json_t *body =
	    json_pack("{s:s*, s:f, s:I, s:b, s:{s:b}}", "model", o->sessions ? NULL : o->model, "temperature",
	              o->temperature, "seed", (json_int_t)seed, "stream", 1, "stream_options", "include_usage", 1);
	json_object_set_new(body, o->chat ? "max_completion_tokens" : "max_tokens", json_integer(max_tokens));
	if (o->chat)
		json_object_set_new(body, "messages", json_pack("[{s:s, s:O}]", "role", "user", "content", prompt));
	else
		json_object_set(body, "prompt", prompt);
	char *dump = body ? json_dumps(body, JSON_COMPACT) : NULL;
	json_decref(body);
	return dump;
}

/* Add the cases of a prompt (taken over), one for each limit. */
static bool add_prompt(workload *w, const workload_options *o, json_t *prompt)
{
	const int at = w->n / o->n_limits;
	workload_case *cases = realloc(w->cases, (size_t)(w->n + o->n_limits) * sizeof *cases);
	bool ok = cases && prompt;
	w->cases = cases ? cases : w->cases;
	for (int i = 0; ok && i < o->n_limits; i++) {
		workload_case *c = &w->cases[w->n];
		*c = (workload_case){.number = w->n, .prompt = at, .max_tokens = o->max_tokens[i]};
		c->body = make_body(o, prompt, c->max_tokens, o->seed + (uint64_t)at);
		ok = c->body != NULL;
		w->n += ok;
	}
	json_decref(prompt);
	return ok;
}

static bool add_lines(workload *w, const workload_options *o)
{
	for (const char *line = o->prompts; *line;) {
		const size_t n = strcspn(line, "\r\n");
		if (n > 0 && !add_prompt(w, o, json_stringn(line, n)))
			return false;
		line += n + strspn(line + n, "\r\n");
	}
	return true;
}

bool workload_make(workload *w, const workload_options *o)
{
	uint64_t random = o->seed;
	bool ok = true;
	*w = (workload){0};
	if (o->prompts)
		return add_lines(w, o);
	for (int i = 0; ok && i < WORKLOAD_PROMPTS; i++) {
		text prompt = {0};
		ok = make_prompt(&prompt, &random) && add_prompt(w, o, json_stringn(text_get(&prompt), prompt.used));
		text_free(&prompt);
	}
	return ok;
}

void workload_free(workload *w)
{
	for (int i = 0; i < w->n; i++) {
		free(w->cases[i].body);
		answer_free(&w->cases[i].expected);
	}
	free(w->cases);
	*w = (workload){0};
}
