/* rank_run.h - one rank's run: its data, its model, the steps, and what rank 0 alone does: checkpoints, reports, the
 * model.
 *
 * A stop (SIGTERM, SIGINT) ends the run at the last finished step, which rank 0 saves; where another rank is lost, it
 * does so too. mpirun sends SIGTERM to the others when a rank ends, and kills them a moment later. */
#ifndef ENGINE_RANK_RANK_RUN_H
#define ENGINE_RANK_RANK_RUN_H

#include "engine/rank/mpi_ranks.h"
#include "engine/rank/rank_report.h"

/* From now on the signals wait for a run. Before there are threads. */
void rank_run_hold_signals(void);

typedef struct rank_run_options {
	ranks *ranks;
	const json_t *document; /* rank_plan.h; borrowed */
	backend *backend;
	const char *sums;    /* the way gradients are summed (device_sums.h); "" */
	rank_report *report; /* rank 0 only; else NULL */
} rank_run_options;

/* A run that fails ends the devices' group (device_sums.h) before rank 0 saves.
 *
 * STATUS_OK: the model is in its folder, or all ranks have stopped after the same step, which the reader of the reports
 * has asked for and rank 0 has saved. STATUS_CANCELLED: cut short; rank 0 has saved what was done, or said why not. */
status rank_run(const rank_run_options *o, error *err);

#endif
