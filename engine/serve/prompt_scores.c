/* prompt_scores.c - readings of up to `most` tokens, whose logits take up to 16 MiB. The alternative, one decode step
 * per token, took two to four times as long. */
#include "engine/serve/prompt_scores.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"

struct prompt_scores {
	session *session;
	const int32_t *ids;
	int64_t count; /* prompt tokens */
	int64_t most;  /* maximum tokens of a piece */
	int n_top;
	read_pass *pass;       /* reads the current piece; NULL: not started */
	bool is_read;          /* the current piece has been read */
	int64_t first, piece;  /* tokens before the piece, and in it */
	int64_t scored, taken; /* tokens scored and taken; the first token has no score and counts as both */
	token_logprob *scores; /* [most] for the tokens that follow those of the piece */
	token_logprob *top;    /* [most][n_top] */
};

status prompt_scores_new(prompt_scores **out, session *x, const int32_t *ids, int64_t count, int n_top)
{
	prompt_scores *p = *out = memory_new(1, sizeof *p);
	if (!p)
		return STATUS_NOMEM;
	*p = (prompt_scores){.session = x, .ids = ids, .count = count, .n_top = n_top, .scored = 1, .taken = 1};
	p->most = read_pass_scored_piece(x->model);
	p->scores = memory_new((size_t)p->most, sizeof *p->scores);
	p->top = memory_new((size_t)(p->most * n_top), sizeof *p->top);
	if (p->scores && p->top)
		return STATUS_OK;
	prompt_scores_free(p);
	*out = NULL;
	return STATUS_NOMEM;
}

void prompt_scores_free(prompt_scores *p)
{
	if (!p)
		return;
	read_pass_end(p->session->model, p->pass);
	free(p->scores);
	free(p->top);
	free(p);
}

static status prompt_scores_begin(prompt_scores *p, error *err)
{
	session *x = p->session;
	const int64_t left = p->count - p->first;
	p->piece = model_dims_piece(model_dimensions(x->model->model), x->tokens, left, p->most);
	p->is_read = false;
	const read_pass_piece piece = {.ids = p->ids + p->first,
	                               .count = p->piece,
	                               .first = x->tokens,
	                               .slot = x->slot,
	                               .log = x->log ? x->log + x->tokens * x->model->log_floats : NULL};
	return read_pass_begin(&p->pass, x->model, (read_pass_form){.logits = LOGITS_ALL, .log = x->log}, &piece, err);
}

/* Score the token that the next row of logits predicts; the row stays in the session. */
static status prompt_scores_score(prompt_scores *p)
{
	session *x = p->session;
	const int64_t row = p->scored - 1 - p->first;
	TRY(read_pass_logits(p->pass, row, x->logits));
	if (p->scored < p->count)
		p->scores[row] = sampler_logprob(x->logits, model_dimensions(x->model->model)->outputs,
		                                 p->ids[p->scored], p->top + row * p->n_top, p->n_top);
	p->scored++;
	return STATUS_OK;
}

/* Finish a piece that has been read and scored. */
static void prompt_scores_end(prompt_scores *p)
{
	session *x = p->session;
	token_history_append(&x->history, p->ids + p->first, p->piece);
	x->tokens += p->piece;
	x->device_logits = NULL;
	p->first += p->piece;
	if (p->first == p->count)
		p->scored = p->count;
	read_pass_end(x->model, p->pass);
	p->pass = NULL;
}

static status prompt_scores_read(prompt_scores *p, error *err)
{
	if (!p->pass)
		return prompt_scores_begin(p, err);
	if (!p->is_read)
		return read_pass_step(p->pass, &p->is_read);
	TRY(prompt_scores_score(p));
	if (p->scored - 1 == p->first + p->piece)
		prompt_scores_end(p);
	return STATUS_OK;
}

status prompt_scores_step(prompt_scores *p, uint64_t slice_ns, int64_t *n_read, error *err)
{
	const uint64_t began = clock_ns();
	do {
		status s = prompt_scores_read(p, err);
		p->session->lost |= s == STATUS_DEVICE;
		TRY(s);
		*n_read = p->first;
	} while (!prompt_scores_waiting(p) && p->first < p->count && clock_ns() - began < slice_ns);
	return STATUS_OK;
}

bool prompt_scores_waiting(const prompt_scores *p)
{
	return !p->pass && p->taken < p->scored;
}

int prompt_scores_take(prompt_scores *p, int most, const int32_t **tokens, const token_logprob **scores,
                       const token_logprob **top)
{
	const int64_t left = p->scored - p->taken, at = p->taken - 1 - (p->first - p->piece);
	const int n = left < most ? (int)left : most;
	*tokens = p->ids + p->taken;
	*scores = p->scores + at;
	*top = p->top + at * p->n_top;
	p->taken += n;
	return n;
}

bool prompt_scores_all_taken(const prompt_scores *p)
{
	return p->taken == p->count && p->first == p->count;
}
