/* choices_private.h - shared by the files choices*.c. Private to engine/daemon/generation.
 *
 * Threads: the loop owns a set and its choices, except the fields marked executor. The executor uses those in the tasks
 * `start` and `control` and in the scheduler's callbacks. The loop collects grants in `pending`. While `control` is not
 * submitted, it moves them to `handed` and submits it. No two threads therefore share a field, and a grant costs one
 * task for any number of choices. */
#ifndef ENGINE_DAEMON_GENERATION_CHOICES_PRIVATE_H
#define ENGINE_DAEMON_GENERATION_CHOICES_PRIVATE_H

#include "engine/daemon/generation/admission.h"
#include "engine/daemon/generation/choice_events.h"
#include "engine/daemon/generation/choices.h"
#include "engine/text/call_reader.h"

typedef struct choice {
	choices *set;
	/* executor */
	task ended_task;
	generation *running; /* NULL before and after */
	int64_t credit;      /* events that may still be sent; set by the loop before `start` */
	int64_t handed;      /* with `control`: credits to add */
	bool starved;        /* an event was lost, because there was no memory to copy it */
	/* loop */
	int64_t granted, pending; /* credits given and not used; those not handed over */
	bool ended;
	double logprob;             /* sum over the sampled tokens, for choices_score */
	int64_t n_scored, n_tokens; /* sampled tokens; all delivered tokens */
	choice_events events;
	call_reader *calls; /* divides the answer into text and calls; NULL: it is a text */
	/* executor until ended_task is delivered, then loop */
	generation_result result;
} choice;

struct choices {
	choices_plan plan;
	stream *stream;
	choice *items;
	int n, ended;    /* choices; those that have ended */
	int turn;        /* the choice that receives credit next */
	int64_t granted; /* sum over the choices */
	bool start_done, cancelled, control_under_way;
	bool control_cancels, control_expires; /* `control` includes the cancellation; because the time is over */
	char owner[2 * STREAM_OWNER_BYTES];    /* its owner in the shares of slots and steps */
	error error;          /* the first error, which is answered */
	admitted place;
	int at;             /* number of its device in the fleet */
	int units;          /* generations counted there; 0: the set is on no device yet */
	executor *executor; /* that of the device; any thread */
	/* executor until start is done */
	uv_work_t read; /* on the pool, before start */
	task start;
	bool start_cancelled; /* cancelled before its model was loaded */
	prefix_wait prefix_wait; /* for the states on the disk with which prompts begin */
	int prefix_next;         /* the prompt that waits; earlier ones are ready */
	size_t snapshot_moved;   /* plan.snapshot of a session that is not durable: bytes copied, */
	int64_t snapshot_tokens; /* and its tokens once it is complete, otherwise -1 */
	device *device;
	served_adapter *adapter; /* plan.adapter; NULL: none, or its model is not loaded yet */
	int started;
	error start_error;
	int32_t *prefix; /* alpha: the tokens that the session had read before */
	int64_t n_prefix;
	/* executor until the only choice of a session has ended */
	session_change change;
	task control;
	/* at the end: the export of the session's state, for the answer */
	task export;
	session_transfer exported;
	error export_error;
	bool exported_too_large;
	char *state_text;
	session_settlement settlement;
};

/* choices_run.c: the executor's thread. The task `start`. */
bool choices_prepare_start(task *t, device *d);
void choices_run_start(task *t, device *d);

/* choices.c: `done` of an event_message whose owner is a choice. */
void choices_deliver_event(task *t);

/* choices_end.c: `done` of a choice's ended_task. */
void choices_deliver_end(task *t);
/* Free the set after its answer, once every choice has ended. */
void choices_try_finish(choices *c);
void choices_settle(choices *c);
/* Leave the device and admission. */
void choices_leave(choices *c);

/* carried_state.c. Pool thread: decode the given state into the plan's ticket. STATUS_CORRUPT, STATUS_TOO_LARGE
 * "state". */
status choices_decode_state(choices *c, error *err);
/* carried_state.c: export the session's state for the answer, then settle the session. */
void choices_export(choices *c);

/* choices_credit.c: the loop's thread. */
extern const stream_watch choices_credit_watch;
/* Divide the peer's credit among the choices; true if a choice received some. */
bool choices_credit_deal(choices *c);
/* Pass pending credits and a cancellation to the executor. */
void choices_credit_send(choices *c);
/* Record the time since which the stream has had no credit. It has stalled since its last CREDIT frame, which shows
 * that the peer reads. */
void choices_credit_look(choices *c);
/* For admission: cancel a stalled set. */
void choices_credit_evict(admitted *x);

#endif
