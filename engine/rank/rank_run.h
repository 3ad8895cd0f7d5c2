/* rank_run.h - one rank's run: its data, its model and the steps; rank 0 also makes checkpoints, reports and the model.
 *
 * A stop (SIGTERM, SIGINT) ends the run at the last finished step, which rank 0 saves. The same happens if another rank
 * is lost. mpirun sends SIGTERM to the others when a rank ends and kills them a moment later.
 *
 * With a sharded optimiser (train_options.shard_optimizer) rank 0 needs the others to save. A stop then ends the run
 * after the step in progress, if that ends within ten seconds. After the loss of a rank nothing is saved. */
#ifndef ENGINE_RANK_RANK_RUN_H
#define ENGINE_RANK_RANK_RUN_H

#include "engine/rank/mpi_ranks.h"
#include "engine/rank/rank_report.h"

/* Block the signals until a run polls them. Call before starting threads. */
void rank_run_hold_signals(void);
/* True if a run has polled one. */
bool rank_run_got_signal(void);

typedef struct rank_run_options {
	ranks *ranks;
	const json_t *document; /* rank_plan.h; borrowed */
	backend *backend;
	const char *sums;    /* method of summing gradients (device_sums.h), or "" */
	rank_report *report; /* on rank 0; otherwise NULL */
} rank_run_options;

/* A run that fails ends the devices' group (device_sums.h) before rank 0 saves.
 *
 * STATUS_OK: the model is in its folder; or all ranks stopped after the same step, as the reader of the reports
 * requested, and rank 0 has saved it. STATUS_CANCELLED: cut short; rank 0 has saved what was complete, or reported why
 * not. */
status rank_run(const rank_run_options *o, error *err);

#endif
