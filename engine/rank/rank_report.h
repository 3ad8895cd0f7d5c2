/* rank_report.h - rank 0's reports on a run: one JSON object a line on stdout.
 *
 *   {"report": "started" | "progress" | "evaluated" | "saved" | "ended", "progress": {…}, …}
 *
 * progress: the numbers of train_progress under their names (train_progress_write). "started" has "gradients" with
 * several ranks: how they are summed (device_sums.h). "evaluated" has "preview", the model's text, if it can generate.
 * "saved" has the "error" that prevented the checkpoint, or, for an engine's job, the "checkpoint" in the form of the
 * ledger. "ended" has "finished", or the "error" (status, param, message) that ended the run, or neither if it was
 * stopped. */
#ifndef ENGINE_RANK_RANK_REPORT_H
#define ENGINE_RANK_RANK_REPORT_H

#include "engine/train/trainer.h"

typedef struct rank_report rank_report;

/* Requests of the reader on stdin, a byte each. "g" and "l" answer an evaluation: continue; "l": its row is late, so no
 * checkpoint may be saved yet. "w": all rows have been written since. "s": save and stop. The end of stdin: stop at
 * once. */
typedef enum rank_wish { WISH_NONE, WISH_SAVE, WISH_STOP } rank_wish;

/* asks: there is such a reader, and each evaluation waits for its answer. */
rank_report *rank_report_new(bool asks);
void rank_report_free(rank_report *r);

/* The request received so far; does not wait. */
rank_wish rank_report_wish(rank_report *r);
/* True if the reader has not answered an evaluation yet. */
bool rank_report_waits(const rank_report *r);
/* True if the reader lacks rows of evaluations, as of the last rank_report_wish. */
bool rank_report_rows_missing(const rank_report *r);

/* At most ten times a second; the others are always said. False, all: the reader has gone. */
bool rank_report_progress(rank_report *r, const train_progress *p);
bool rank_report_started(rank_report *r, const train_progress *p, const char *sums);
bool rank_report_evaluated(rank_report *r, const train_progress *p, json_t *preview);
bool rank_report_saved(rank_report *r, const train_progress *p, json_t *row, const error *err);
bool rank_report_ended(rank_report *r, const train_progress *p, bool finished, const error *err);

#endif
