/* served_model.h - a loaded model with the tokenizer, state pool and plans that serve it.
 *
 * Everything that reads tokens is one operation, served_model_step: B rows, each a
 * session's slot and its next few tokens. A decode step is B rows of one token; a step of prompts has rows of any
 * lengths, one behind the other (`start` in ops.h). Both run on the smallest plan that holds the step, made on
 * first use and kept:
 *
 *   decode    1|2|4|8|…|max_batch rows
 *   prompts   1|4|16|64 rows of 16|64|256 tokens in all, and 256 for each of up to four threads
 *
 * each in two variants, with and without a log. A step runs as a whole or cut into parts of its rows that run at the
 * same time (served_part.h, thread_choice.h). On the CPU a step runs with its own numbers of rows and tokens, and
 * computes logits only for the rows that want them. A device that records plans pads: a padding row has length 0, reads
 * nothing and changes nothing.
 *
 * A step reads tokens and then samples the next ones: one upload (all inputs and sampling settings lie in one block),
 * one run of linked plans, which a device replays as one recording, and one download of the sampled tokens. Where the
 * backend has `fetch`, that download does not wait for later work, so a decode step can be issued before the host has
 * the tokens of the last one: its first node gathers each row's id from the tokens that the last step has sampled or
 * from the uploaded ids.
 *
 * After a step the logits lie on the device, in the plan, until the plan's next step; single rows are fetched from
 * there.
 *
 * No token depends on the batch: the matrices are panels (panel.h), and a row's product with them has the same bits
 * whatever other rows there are; every other op works on one row or one sequence at a time. So a session's logits have
 * the same bits alone and in any batch. The pieces in which its tokens are read change no bit of an additive model
 * either; softmax attention sums a long piece in another order than single tokens.
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_SERVED_MODEL_H
#define ENGINE_SERVE_SERVED_MODEL_H

#include "engine/serve/sample_plan.h"
#include "engine/serve/scheduler.h"
#include "engine/serve/statepool.h"
#include "engine/serve/thread_choice.h"

/* Maximal number of parts of a step. */
enum { SERVED_MODEL_PARTS = 16 };

typedef struct served_plan served_plan;
typedef struct reading reading;
typedef struct served_model_loading served_model_loading;

/* A beginning of prompts (prefixes.h). */
enum { PREFIXES_KEPT = 8 };
typedef struct prefix {
	int32_t *ids;
	int64_t n;      /* 0: none */
	session *state; /* NULL: not read yet */
	bool reading;
	uint64_t used; /* by the scheduler's clock */
	scheduler *scheduler;
} prefix;

struct served_model {
	served_model *next; /* the scheduler's list */
	char id[SCHEDULER_ID_BYTES];
	uint64_t last_used; /* the scheduler's clock; the lowest idle one is unloaded first */
	dtype weights;
	model *model; /* NULL while the weights are being read */
	tokenizer *tokenizer;
	statepool *pool;
	float *row;                       /* [vocab] on the device: logits uploaded from the host */
	sample_plan *from_row;            /* samples from `row` */
	char *row_token;                  /* on the device: the token that from_row samples, then its settings */
	char *blocks[SERVED_MODEL_PARTS]; /* on the device, by part of a step: its inputs and sampled tokens
	                                     (served_part.h); NULL: no step has been cut into so many parts */
	bool way_is_given;                /* for tests: every step runs in `way`, without measurement */
	thread_way way;
	int users; /* slots in use */
	int max_batch;
	int64_t log_floats; /* of one token, for explanations; 0: the model cannot be explained, or reads a source, with
	                     * which the whole sequence is read anew */
	prefix prefixes[PREFIXES_KEPT];
	bool any_pieces; /* no bit depends on the pieces in which a prompt is read, and short pieces cost little */
	served_plan *plans;
	reading *readings; /* the unused ones */
	bool waited_for;   /* generations wait for each step of a reading */
	uint64_t hash;     /* of configuration and weights */
	served_model_loading *loading; /* NULL: loading is complete */
};

/* Begin to load a folder onto b, with weights of a panel type, for up to `max_slots` states. Until loading is complete
 * only served_model_load and served_model_free are legal. */
status served_model_new(served_model **out, const char *id, const char *folder, dtype weights, backend *b,
                        int max_batch, int64_t max_slots, error *err);
/* Run the next step of loading, about a millisecond. *done: complete. After an error only served_model_free is legal.
 */
status served_model_load(served_model *m, bool *done, error *err);
void served_model_free(served_model *m);

/* A slot for a session, contents undefined. STATUS_BUSY, STATUS_NOMEM. */
status served_model_take(served_model *m, int32_t *slot, error *err);
void served_model_give(served_model *m, int32_t slot);

/* One row of a step: tokens for one state, and the places of their results. */
typedef struct served_row {
	int32_t slot;
	int64_t position; /* tokens this slot has read */
	position_policy policy;
	const int32_t *tokens;
	int64_t count; /* ≥ 1 */
	float *log;    /* [count][log_floats], or NULL */
	bool silent;   /* needs no logits; a step computes none if all rows are silent */
	int from;      /* ≥ 0: read the token that the last decode step sampled for that row; `tokens` is unused */
} served_row;

void served_model_free_plans(served_model *m);
/* Maximal rows of a step of prompts. */
int served_model_prompt_rows(const served_model *m);
/* Maximal tokens of a step of prompts, in all its rows; each row has up to SCHEDULER_PREFILL_CHUNK. */
int64_t served_model_prompt_tokens(const served_model *m);
/* The plan for a step of prompts, up to served_model_prompt_rows with `tokens` ≤ served_model_prompt_tokens, or
 * (tokens 0) for a decode step of up to max_batch rows; and for sampling after it with `adjusts` rows of tallies in
 * all. The first call for a shape compiles it. Touches no state. */
status served_model_plan(served_model *m, int rows, int64_t tokens, bool log, int64_t adjusts, served_plan **out,
                         error *err);
/* Issue a step: read the rows' tokens, then sample for each active row of `draws` [n_rows] (NULL: none). The step is
 * complete on return if the backend has no `fetch` or the plan has a log. After a failure the rows' states are
 * undefined. */
status served_model_step(served_model *m, served_plan *p, const served_row *rows, int n_rows, const sample_row *draws);
/* Device address of the step's sampled tokens, valid until the next step of the same kind (decode or prompts). */
const int32_t *served_model_sampled(const served_plan *p);
/* Does the plan write a log? */
bool served_plan_logs(const served_plan *p);
/* Device address of a row's logits after its last token, valid until the plan's next step. */
const float *served_model_logits(const served_plan *p, int row);

/* Sample from one row of logits on the host; prepare_row comes first, with the number of its adjusting rows:
 * STATUS_NOMEM. */
status served_model_prepare_row(served_model *m, int64_t adjusts, error *err);
status served_model_sample_row(served_model *m, const float *logits, const sample_row *row, int32_t *token);

#endif
