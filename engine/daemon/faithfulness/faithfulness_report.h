/* faithfulness_report.h - evaluations as JSON. Any thread; slow, so it runs on the pool. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_REPORT_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_REPORT_H

#include "engine/daemon/faithfulness/faithfulness_text.h"

/* Return the ExplainEvaluationRow of each row. New reference; NULL: out of memory. */
json_t *faithfulness_report_rows(const faithfulness_settings *s, const model_entry *m, const faithfulness_row *rows,
                                 int64_t n);
/* Restore a row from such an object; its `text` is unchanged. STATUS_CORRUPT, STATUS_NOMEM. */
status faithfulness_report_read(const faithfulness_settings *s, const json_t *object, faithfulness_row *out);

/* Return the ExplainEvaluation of all rows, at least one; the rows of a text are consecutive. settings: its JSON,
 * borrowed. New reference; NULL: out of memory. */
json_t *faithfulness_report_make(const faithfulness_settings *s, const json_t *settings, const model_entry *m,
                                 const faithfulness_row *rows, int64_t n, const faithfulness_cost *cost);

#endif
