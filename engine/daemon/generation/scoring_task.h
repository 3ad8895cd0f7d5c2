/* scoring_task.h - a scoring of the scheduler (serve/scheduler.h) for a stream, or for a job. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_SCORING_TASK_H
#define ENGINE_DAEMON_GENERATION_SCORING_TASK_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/executor.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

typedef struct scoring_task scoring_task;
struct scoring_task {
	/* Set by the caller: */
	engine *engine; /* if there is no stream */
	stream *stream; /* its end cancels the scoring; its watch and context are used until then; NULL: no stream */
	model_entry *model;
	score_task_request request; /* without finished and context */
	/* Called once, when the scoring has ended or could not start; `result` is set, and `error` unless STATUS_OK. */
	void (*finished)(scoring_task *t);
	status result;
	error error;
	/* Private. `control` cancels the scoring on the executor; `finished` waits until it has returned. */
	task start, ended, control;
	score_task *scoring; /* executor thread; NULL: not running */
	bool cancelled;      /* executor thread */
	bool started, over, control_under_way;
};

void scoring_task_submit(scoring_task *t);
/* Cancel a submitted scoring. `finished` is called soon, with STATUS_CANCELLED if the scoring was still running. */
void scoring_task_cancel(scoring_task *t);

#endif
