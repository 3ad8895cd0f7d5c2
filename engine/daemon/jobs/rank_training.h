/* rank_training.h - one job's run over several processes: `mpirun -n RANKS additive-train --plan FILE` (engine/rank).
 *
 * The loop starts and stops the processes and reads their reports. Plan and reports are those of training.h; nothing
 * runs on the executor. The processes end when the engine does. Loop thread. */
#ifndef ENGINE_DAEMON_JOBS_RANK_TRAINING_H
#define ENGINE_DAEMON_JOBS_RANK_TRAINING_H

#include "engine/daemon/jobs/training.h"
#include "engine/daemon/queue/job_queue.h"
#include "engine/recipe/corpus.h"

typedef struct rank_training rank_training;

/* Return why this machine cannot run several processes; NULL: it can. */
const char *rank_training_obstacle(void);

/* Start a run. request: the stored request; files: the files that it names. p is borrowed until ENDED; request and
 * files are read before the function returns. If the processes cannot be started, the run ends with STATUS_UNAVAILABLE.
 * STATUS_NOMEM, and errors of file_write. */
status rank_training_begin(rank_training **out, const job_parts *parts, training_plan *p, int64_t ranks,
                           const json_t *request, const corpus *files, error *err);
/* Like training_stop. */
void rank_training_stop(rank_training *t, bool save, bool rows_written);
/* Free; only after ENDED. */
void rank_training_free(rank_training *t);

#endif
