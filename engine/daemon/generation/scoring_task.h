/* scoring_task.h - a scoring of the scheduler (serve/scheduler.h) for a stream, or for a job. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_SCORING_TASK_H
#define ENGINE_DAEMON_GENERATION_SCORING_TASK_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/executor.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

typedef struct scoring_task scoring_task;
struct scoring_task {
	/* Of the caller, until `finished`: */
	engine *engine; /* without a stream */
	stream *stream; /* cancels the scoring; its watch and context are used meanwhile; NULL: there is none */
	model_entry *model;
	scoring_request request; /* without finished and context */
	/* The scoring has ended, or could not begin: result, and error where it is not STATUS_OK. Once. */
	void (*finished)(scoring_task *t);
	status result;
	error error;
	/* Its own: `control` cancels it on the executor; `finished` waits for its return. */
	task start, ended, control;
	scoring *scoring; /* executor thread; NULL: not begun, or ended */
	bool cancelled;   /* executor thread */
	bool started, over, control_under_way;
};

void scoring_task_submit(scoring_task *t);
/* Between that and `finished`: end it soon, with STATUS_CANCELLED if it is not over. */
void scoring_task_cancel(scoring_task *t);

#endif
