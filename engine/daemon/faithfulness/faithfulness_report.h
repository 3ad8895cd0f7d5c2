/* faithfulness_report.h - evaluations as JSON. Any thread: it takes long, and the pool does it. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_REPORT_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_REPORT_H

#include "engine/daemon/faithfulness/faithfulness_text.h"

/* ExplainEvaluationRow of each row. New reference; NULL: out of memory. */
json_t *faithfulness_report_rows(const faithfulness_settings *s, const model_entry *m, const faithfulness_row *rows,
                                 int64_t n);
/* A row again from such an object; its `text` stays as it is. STATUS_CORRUPT, NOMEM. */
status faithfulness_report_read(const faithfulness_settings *s, const json_t *object, faithfulness_row *out);

/* ExplainEvaluation of all rows, at least one, those of a text together. settings: that object, borrowed. New
 * reference; NULL: out of memory. */
json_t *faithfulness_report_make(const faithfulness_settings *s, const json_t *settings, const model_entry *m,
                                 const faithfulness_row *rows, int64_t n, const faithfulness_cost *cost);

#endif
