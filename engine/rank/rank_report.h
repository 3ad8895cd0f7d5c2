/* rank_report.h - rank 0's reports of a run: one JSON object per line on stdout.
 *
 *   {"report": "started" | "progress" | "evaluated" | "saved" | "ended", "progress": {…}, …}
 *
 * progress: the numbers of train_progress under their names (train_progress_write).
 *
 *   started     with several ranks, how their "gradients" are summed (device_sums.h)
 *   evaluated   "preview": the text that the model generated, if it can
 *   saved       "error" if there is no checkpoint; or, for an engine's job, "checkpoint", its row in the ledger
 *   ended       "finished"; or the "error" (status, param, message) that ended the run; neither if it was stopped */
#ifndef ENGINE_RANK_RANK_REPORT_H
#define ENGINE_RANK_RANK_REPORT_H

#include "engine/train/trainer.h"

typedef struct rank_report rank_report;

/* Commands on stdin, one byte each. "g" and "l" answer an evaluation: continue; "l" means that its row is late, so no
 * checkpoint may be saved yet. "w": all rows are written. "s": save and stop. End of file: stop at once. */
typedef enum rank_wish { WISH_NONE, WISH_SAVE, WISH_STOP } rank_wish;

/* asks: a reader answers each evaluation, and the run waits for it. */
rank_report *rank_report_new(bool asks);
void rank_report_free(rank_report *r);

/* Return the command received so far; does not wait. */
rank_wish rank_report_wish(rank_report *r);
/* True if the reader has not answered an evaluation. */
bool rank_report_waits(const rank_report *r);
/* True if the reader lacks rows of evaluations, as of the last rank_report_wish. */
bool rank_report_rows_missing(const rank_report *r);

/* Report progress, at most ten times a second; other reports are always sent. All return false if the reader is
 * gone. */
bool rank_report_progress(rank_report *r, const train_progress *p);
bool rank_report_started(rank_report *r, const train_progress *p, const char *sums);
bool rank_report_evaluated(rank_report *r, const train_progress *p, json_t *preview);
bool rank_report_saved(rank_report *r, const train_progress *p, json_t *row, const error *err);
bool rank_report_ended(rank_report *r, const train_progress *p, bool finished, const error *err);

#endif
