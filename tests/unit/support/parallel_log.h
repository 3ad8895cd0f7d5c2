/* parallel_log.h - the log of a sequence, computed by the parallel form in one call, to compare with. */
#ifndef TESTS_UNIT_SUPPORT_PARALLEL_LOG_H
#define TESTS_UNIT_SUPPORT_PARALLEL_LOG_H

#include "engine/explain/explain.h"
#include "engine/model/model.h"

/* Return the data of *out, to be freed; *out needs the model for its configuration. */
float *parallel_log(const model *m, const int32_t *ids, int64_t n, explain_log *out);

#endif
