/* record.h - return a record of a dataset by value. */
#ifndef TESTS_UNIT_SUPPORT_RECORD_H
#define TESTS_UNIT_SUPPORT_RECORD_H

#include "engine/text/dataset.h"

/* Valid until the fourth call after this one. */
text_record record_at(const dataset *d, uint64_t seed, int64_t epoch, int64_t i);

#endif
