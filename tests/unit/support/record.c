#include "tests/unit/support/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

text_record record_at(const dataset *d, uint64_t seed, int64_t epoch, int64_t i)
{
	static text_record records[4];
	static unsigned next;
	text_record *r = &records[next++ % 4];
	assert_int_equal(dataset_record(d, seed, epoch, i, r, NULL), STATUS_OK);
	return *r;
}
