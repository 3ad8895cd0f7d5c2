/* rank_training.h - one job's run over several processes: `mpirun -n RANKS additive-train --plan FILE` (engine/rank),
 * which the loop starts, listens to and stops. The plan and its reports are those of training.h; nothing of it is on
 * the executor. The processes end when the engine does. Loop thread. */
#ifndef ENGINE_DAEMON_JOBS_RANK_TRAINING_H
#define ENGINE_DAEMON_JOBS_RANK_TRAINING_H

#include "engine/daemon/jobs/training.h"
#include "engine/daemon/requests/engine.h"
#include "engine/recipe/corpus.h"

typedef struct rank_training rank_training;

/* Why this machine cannot have such a run; NULL: it can. */
const char *rank_training_obstacle(void);

/* request: the stored one; files: what it names. p must stay until ENDED, request and files are read at once.
 * Processes that cannot be started end the run (STATUS_UNAVAILABLE). STATUS_NOMEM, and errors of file_write. */
status rank_training_begin(rank_training **out, engine *e, training_plan *p, int64_t ranks, const json_t *request,
                           const corpus *files, error *err);
/* As training_stop. */
void rank_training_stop(rank_training *t, bool save, bool rows_written);
/* After ENDED. */
void rank_training_free(rank_training *t);

#endif
