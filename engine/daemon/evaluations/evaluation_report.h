/* evaluation_report.h - evaluations as JSON. Any thread: it takes long, and the pool does it. */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_REPORT_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_REPORT_H

#include "engine/daemon/evaluations/evaluation_text.h"

/* ExplainEvaluationRow of each row. New reference; NULL: out of memory. */
json_t *evaluation_report_rows(const evaluation_settings *s, const model_entry *m, const evaluation_row *rows,
                               int64_t n);
/* A row again from such an object; its `text` stays as it is. STATUS_CORRUPT, NOMEM. */
status evaluation_report_read(const evaluation_settings *s, const json_t *object, evaluation_row *out);

/* ExplainEvaluation of all rows, at least one, those of a text together. settings: that object, borrowed. New
 * reference; NULL: out of memory. */
json_t *evaluation_report_make(const evaluation_settings *s, const json_t *settings, const model_entry *m,
                               const evaluation_row *rows, int64_t n, const evaluation_cost *cost);

#endif
