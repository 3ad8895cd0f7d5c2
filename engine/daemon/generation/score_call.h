/* score_call.h - runs a score task of the scheduler (serve/scheduler.h) for a stream or for a job. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_SCORE_CALL_H
#define ENGINE_DAEMON_GENERATION_SCORE_CALL_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/net/stream.h"

typedef struct score_call score_call;
struct score_call {
	/* Set by the caller: */
	fleet *fleet;
	int device;     /* the device of the session that is explained, or FLEET_ANY; then the one in use */
	stream *stream; /* its end cancels the score task; its watch and context are used until then; NULL: no stream */
	model_entry *model;
	score_task_request request; /* score_call_submit sets its callback, and from a stream its owner and priority */
	/* Called once, when the score task has ended or could not start; `result` is set, and `error` unless STATUS_OK.
	 */
	void (*finished)(score_call *t);
	status result;
	error error;
	/* Private. `control` cancels the score task on the executor; `finished` waits until it has returned. */
	task start, ended, control;
	score_task *scoring; /* executor thread; NULL: not running */
	char owner[2 * STREAM_OWNER_BYTES];
	bool cancelled;      /* executor thread */
	bool started, over, control_under_way;
};

/* Submit the score task. The caller keeps t until `finished`. */
void score_call_submit(score_call *t);
/* Cancel a submitted score task. `finished` is called soon, with STATUS_CANCELLED if the score task was still running.
 */
void score_call_cancel(score_call *t);

#endif
