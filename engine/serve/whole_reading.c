#include "engine/serve/whole_reading.h"

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/explain/explain.h"
#include "engine/explain/outputs.h"
#include "engine/model/feed.h"

struct whole_reading {
	plan *plan;
	outputs *outputs;
	int cursor;                      /* of the plan */
	int64_t tokens, floats, fetched; /* fetched: rows of the log */
	float *log;
};

void whole_reading_free(whole_reading *w)
{
	if (!w)
		return;
	outputs_free(w->outputs);
	plan_free(w->plan);
	free(w);
}

static status prepare(whole_reading *w, const model *m, const int32_t *tokens, error *err)
{
	forward_spec spec = {.batch = 1, .length = w->tokens, .explain = true, .logits = LOGITS_NONE};
	TRY(model_plan(&w->plan, m, &spec, NULL, NULL, err));
	TRY(outputs_new(&w->outputs, m, w->plan, WHOLE_READING_TOKENS));
	TRY(feed_write(w->plan, PORT_TOKENS, tokens));
	return feed_positions(w->plan, model_dimensions(m), POSITION_ERROR, 0);
}

status whole_reading_new(whole_reading **out, served_model *m, const int32_t *tokens, int64_t n, float *log, error *err)
{
	*out = NULL;
	whole_reading *w = memory_new(1, sizeof *w);
	if (!w)
		return error_set(err, STATUS_NOMEM, NULL, "no memory for reading %lld tokens", (long long)n);
	*w = (whole_reading){.tokens = n, .floats = m->log_floats, .log = log};
	status s = prepare(w, m->model, tokens, err);
	if (s != STATUS_OK) {
		whole_reading_free(w);
		return error_set(err, s, NULL, "%lld tokens could not be read: %s", (long long)n, status_text(s));
	}
	*out = w;
	return STATUS_OK;
}

/* Run the plan's next node or, when all have run, fetch rows of the log. */
static status advance(whole_reading *w)
{
	int64_t left = w->tokens - w->fetched, n = left < WHOLE_READING_TOKENS ? left : WHOLE_READING_TOKENS;
	if (w->cursor < plan_node_count(w->plan))
		return plan_step(w->plan, &w->cursor);
	TRY(outputs_read(w->outputs, w->fetched, n, w->log + w->fetched * w->floats));
	w->fetched += n;
	return STATUS_OK;
}

status whole_reading_step(whole_reading *w, bool *done)
{
	uint64_t began = clock_ns();
	do
		TRY(advance(w));
	while (w->fetched < w->tokens && clock_ns() - began < WHOLE_READING_SLICE_NS);
	*done = w->fetched == w->tokens;
	return STATUS_OK;
}
