/* served_model.h - a loaded model with the tokenizer, state pool and plans that serve it.
 *
 * Everything that reads tokens is one operation, served_model_step, on B rows. A row is a session's slot and its next
 * tokens. A decode step has B rows of one token. A step of prompts has rows of any lengths, stored one after the other
 * (`start` in ops.h); a stream's next token is such a row, too. Both run on the smallest plan that holds the step;
 * plans are compiled on first use and kept:
 *
 *   decode    1|2|4|8|…|max_batch rows
 *   prompts   1|4|16|64|…|max_batch rows of 16|64|256|512|… tokens in total; at most backend.prompt_tokens
 *             (on a host 256 for each of up to four threads, and max_batch more for streams)
 *
 * A device also runs and records the first ones (served_model_prepare) while the model is loaded, so that the first
 * requests do not wait for that. In idle turns after it, plans for prompts beside streams follow.
 *
 * Plans have variants, with and without a log and low-rank adapters. A step runs whole, or cut into parts of its rows
 * that run in parallel (served_part.h, thread_choice.h). On the CPU a step runs with its own numbers of rows and tokens
 * and computes logits only for rows that need them. A device that records plans pads: a padding row has length 0, reads
 * nothing and changes nothing.
 *
 * A step reads tokens and then samples the next ones. It is one upload (inputs and sampling settings share one block),
 * one run of linked plans, which a device replays as one recording, and one download of the sampled tokens. Where the
 * backend has `fetch`, the download does not wait for later work. The next decode step can then be issued before the
 * host has the tokens of the last one. Its first node gathers each row's id from the tokens just sampled or from the
 * uploaded ids.
 *
 * After a step the logits are in the plan's device memory until its next step. Single rows are copied from there.
 *
 * No token depends on the batch. The matrices are panels (panel.h), and a row's product with them has the same bits
 * whatever other rows exist. Every other op works on one row or one sequence at a time. A session's logits therefore
 * have the same bits alone and in any batch. For additive models the division into pieces changes no bit either;
 * softmax attention sums a long piece in another order than single tokens.
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_SERVED_MODEL_H
#define ENGINE_SERVE_SERVED_MODEL_H

#include "engine/model/states.h"
#include "engine/serve/sample_plan.h"
#include "engine/serve/scheduler.h"
#include "engine/serve/statepool.h"
#include "engine/serve/thread_choice.h"

enum {
	SERVED_MODEL_PARTS = 16,    /* maximum number of parts of a step */
	SERVED_MODEL_HOST_ROWS = 64 /* maximum number of rows of logits that are sampled from the host */
};

typedef struct served_plan served_plan;
typedef struct read_pass read_pass;
typedef struct served_model_loading served_model_loading;

/* Progress of served_model_prepare; starts zeroed. */
typedef struct served_preparation {
	bool joined;    /* prepare steps that read prompts beside streams; set by the caller */
	bool sampling;  /* the plans that sample from the host's logits are prepared */
	int rows;       /* rows of the last step that was compiled (not joined: of the last decode step) */
	int64_t tokens; /* tokens of the last step of prompts that was compiled */
	served_plan *plan;
	int runs; /* runs of this plan that remain */
	size_t bytes;
	bool done;
} served_preparation;

struct served_model {
	served_model *next; /* link of the scheduler's list */
	char id[SCHEDULER_ID_BYTES];
	uint64_t last_used; /* time on the scheduler's clock; the idle model with the lowest is unloaded first */
	dtype weights;
	model *model; /* NULL while the weights are being read */
	tokenizer *tokenizer;
	statepool *pool;
	/* Times that steps have taken lately (scheduler_shares.c); 0: not known. */
	uint64_t step_ns;   /* a decode step of few rows, the least */
	uint64_t row_ns;    /* one row more in a decode step, the median */
	uint64_t token_ns;  /* one token more in a step of prompts, the median */
	uint64_t prompt_ns; /* a step of prompts divided by its tokens, the least */
	int host_rows;      /* rows of host_logits */
	float *host_logits; /* [host_rows][vocab] on the device: uploaded from the host */
	char *host_tokens;  /* device address of the tokens sampled from them, then of the settings */
	sample_plan *from_host, *one_from_host; /* plans for all rows and for one */
	char *blocks[SERVED_MODEL_PARTS]; /* device blocks, one for each part of a step: its inputs and sampled tokens
	                                   * (served_part.h); NULL: not needed so far */
	bool way_is_fixed;                /* for tests: every step uses `way`, without measurement */
	thread_way way;
	int users; /* slots in use */
	int max_batch;
	int64_t log_floats;   /* log floats for each token; 0: the model has no explainer, or reads a source and is read
	                       * again to explain */
	bool any_pieces;      /* bits do not depend on the pieces of a prompt */
	bool has_adapters;    /* sessions may start from the state of an adapter */
	struct lora_bank *lora; /* low-rank adapters of sessions (lora_bank.h); NULL: none so far */
	unsigned apart_until; /* number of the step of prompts up to which streams decode in steps of their own */
	state_piece *pieces;  /* for served_model_pieces */
	int64_t chunk, short_chunk; /* most tokens of a prompt that a step reads; and while generations decode */
	served_plan *plans;
	read_pass *passes;             /* idle plans of passes */
	bool generations_wait;         /* generations wait while a pass runs, so its steps are short */
	uint64_t hash;                 /* hash of configuration and weights */
	served_model_loading *loading; /* NULL: loading is complete */
	served_preparation joined;     /* progress with plans after loading */
};

/* Start loading a folder onto b, with weights in a type that panels support, for up to `max_slots` states. Until
 * loading is complete only served_model_load and served_model_free are legal. */
status served_model_new(served_model **out, const char *id, const char *folder, dtype weights, backend *b,
                        int max_batch, int64_t max_slots, error *err);
/* Load for about a millisecond, or prepare a plan. *done: complete. After an error only served_model_free is legal. */
status served_model_load(served_model *m, bool *done, error *err);
void served_model_free(served_model *m);

/* Take a slot for a session; its contents are undefined. STATUS_BUSY, STATUS_NOMEM. */
status served_model_take(served_model *m, int32_t *slot, error *err);
void served_model_give(served_model *m, int32_t slot);

/* List the pieces of a slot after `tokens` tokens (state_list_pieces). Borrowed until the next call. */
const state_piece *served_model_pieces(const served_model *m, int64_t tokens, bool source, int *n);

/* One row of a step: the tokens for one state and where its results go. */
typedef struct served_row {
	int32_t slot;
	int64_t position; /* tokens that this slot has read */
	position_policy policy;
	const served_adapter *adapter; /* the state before position 0; NULL: empty */
	int32_t entry;                 /* place of its low-rank adapter in the bank; 0: none */
	const int32_t *tokens;
	int64_t count; /* ≥ 1 */
	float *log;    /* [count][log_floats], or NULL */
	bool silent;   /* needs no logits; a step without logits runs if all rows are silent */
	int from;      /* ≥ 0: read the token that the last decode step sampled for that row; `tokens` is unused. -1:
	                * read `tokens` */
} served_row;

/* Prepare the next plan that the first requests of its size would wait for: compile it, or run it, or run and record
 * it. The sizes are decode steps of 1|2|4|…|max_batch rows, and prompts of one row with up to SCHEDULER_PREFILL_CHUNK
 * tokens, smallest first. With p->joined they are steps of prompts of 4|16|64 rows, with up to as many tokens.
 * p->done: all are prepared; or they take 64 MiB and a quarter of the memory of the weights; or one cannot be compiled
 * or run. A backend that does not record needs none. No step is in flight, and no state changes. STATUS_DEVICE: the
 * device is lost. */
status served_model_prepare(served_model *m, served_preparation *p);
/* Free all plans of steps. The model has no step in flight. */
void served_model_free_plans(served_model *m);
/* Return the maximum rows of prompts in a step. */
int served_model_prompt_rows(const served_model *m);
/* Return the maximum tokens of prompts in a step, in all rows. Each row has at most served_model.chunk. */
int64_t served_model_prompt_tokens(const served_model *m);
/* Return the maximum tokens of a step of prompts, with those of streams. */
int64_t served_model_step_tokens(const served_model *m);
/* Return the plan for up to max_batch rows: of a step of prompts (`tokens` ≤ served_model_step_tokens) or, with tokens
 * 0, of a decode step. lora: rows may have entries. It also samples with `adjusts` rows of tallies in total. The first
 * call for a shape compiles it. No state changes. */
status served_model_plan(served_model *m, int rows, int64_t tokens, bool log, bool lora, int64_t adjusts,
                         served_plan **out, error *err);
/* Issue a step: read the rows' tokens, then sample for each active row of `draws` [n_rows] (NULL: none). The step is
 * complete on return if the backend has no `fetch` or the plan writes a log. STATUS_DEVICE, STATUS_NOMEM: the rows'
 * states are undefined then, unless served_plan_has_changed returns false. */
status served_model_step(served_model *m, served_plan *p, const served_row *rows, int n_rows, const sample_row *draws);
/* False if the last step on p failed before it changed a state or logits. */
bool served_plan_has_changed(const served_plan *p);
/* Return the device address of the sampled tokens. Valid until the next step of the same kind (decode or prompts). */
const int32_t *served_model_sampled(const served_plan *p);
/* True if the plan writes a log. */
bool served_plan_logs(const served_plan *p);
/* Return the device address of a row's logits after its last token. Valid until the plan's next step. */
const float *served_model_logits(const served_plan *p, int row);

/* Sample from n rows of logits on the host, at most SERVED_MODEL_HOST_ROWS and m->host_rows.
 * served_model_prepare_rows comes first, with the number of adjustments of all rows. STATUS_NOMEM. */
status served_model_prepare_rows(served_model *m, int n, int64_t adjusts, error *err);
status served_model_sample_rows(served_model *m, const float *const *logits, const sample_row *rows, int n,
                                int32_t *tokens);

#endif
