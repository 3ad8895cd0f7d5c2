/* scheduler_state.h - what scheduler.c, scheduler_model.c and scheduler_session.c share. */
#ifndef ENGINE_SERVE_SCHEDULER_STATE_H
#define ENGINE_SERVE_SCHEDULER_STATE_H

#include "engine/serve/generation.h"

struct scheduler {
	backend *backend;
	scheduler_limits limits;
	bool closing; /* being freed: nothing new begins */

	served_model *models;
	int n_models;
	uint64_t clock; /* counts uses, for the least recently used model */

	session *sessions;
	int n_sessions;

	generation *first, *last;
	int n_generations;
	uint64_t serial; /* of the next generation */

	int turn;                 /* whose is next: the i-th model's decode step, or (n_models) the prefill */
	generation **batch;       /* [max_batch] */
	served_row *rows;         /* [max_batch] */
	sample_row *draws;        /* [max_batch] what each of the batch wants sampled … */
	int32_t *tokens;          /* [max_batch] … and gets */
	bool failed;              /* the device, while logits were fetched */
	scheduler_stats counters; /* the four that only grow */
};

/* A model has been used now. */
void scheduler_model_touch(scheduler *s, served_model *m);
/* Free every model; none is in use any more. */
void scheduler_model_free_all(scheduler *s);
void scheduler_session_free_all(scheduler *s);

#endif
