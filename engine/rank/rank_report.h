/* rank_report.h - what rank 0 says of a run: one JSON object a line on stdout.
 *
 *   {"report": "started" | "progress" | "evaluated" | "saved" | "ended", "progress": {…}, …}
 *
 * progress: the numbers of train_progress under their names (train_progress_write). "started" says of several ranks how
 * their "gradients" are summed (device_sums.h); "evaluated" has the "preview" of
 * what the model wrote, where it can write; "saved" the "error" for which there is no checkpoint, or, of an engine's
 * job, the "checkpoint" as its ledger has it; "ended" whether the run is "finished", or the "error" (status, param,
 * message) that ended it, or neither where it was stopped. */
#ifndef ENGINE_RANK_RANK_REPORT_H
#define ENGINE_RANK_RANK_REPORT_H

#include "engine/train/trainer.h"

typedef struct rank_report rank_report;

/* What the reader says on stdin, a byte each. "g" and "l" answer an evaluation: go on; "l": its row is late, so no
 * checkpoint may be saved yet. "w": all rows have been written since. "s": save and stop. The end of stdin: stop at
 * once. */
typedef enum rank_wish { WISH_NONE, WISH_SAVE, WISH_STOP } rank_wish;

/* asks: there is such a reader, and each evaluation waits for its answer. */
rank_report *rank_report_new(bool asks);
void rank_report_free(rank_report *r);

/* What has been asked so far; does not wait. */
rank_wish rank_report_wish(rank_report *r);
/* Is there an evaluation that the reader has not answered? */
bool rank_report_waits(const rank_report *r);
/* Does the reader lack rows of evaluations? As of the last rank_report_wish. */
bool rank_report_rows_missing(const rank_report *r);

/* At most ten times a second; the others are always said. False, all: the reader has gone. */
bool rank_report_progress(rank_report *r, const train_progress *p);
bool rank_report_started(rank_report *r, const train_progress *p, const char *sums);
bool rank_report_evaluated(rank_report *r, const train_progress *p, json_t *preview);
bool rank_report_saved(rank_report *r, const train_progress *p, json_t *row, const error *err);
bool rank_report_ended(rank_report *r, const train_progress *p, bool finished, const error *err);

#endif
