#include "tests/unit/support/parallel_log.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>

#include "engine/explain/outputs.h"
#include "engine/model/feed.h"

float *parallel_log(const model *m, const int32_t *ids, int64_t n, explain_log *out)
{
	plan *p;
	outputs *o;
	forward_spec spec = {.batch = 1, .length = n, .explain.log = true, .out.logits = LOGITS_NONE};
	explain_log_init(out, model_architecture(m), model_config(m), NULL, n);
	float *data = malloc((size_t)(n * out->floats) * sizeof *data);
	assert_non_null(data);
	assert_int_equal(model_plan(&p, m, &spec, NULL, NULL, NULL), STATUS_OK);
	assert_int_equal(outputs_new(&o, m, p, ATTENTION_OF_TOKENS, false, n), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(outputs_read(o, 0, n, data), STATUS_OK);
	outputs_free(o);
	plan_free(p);
	out->data = data;
	return data;
}
