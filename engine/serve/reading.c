#include "engine/serve/reading.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/explain/outputs.h"

struct reading {
	reading *next; /* the model's list */
	plan *plan;
	outputs *outputs; /* NULL without a log */
	const served_model *model;
	reading_form form;
	int64_t capacity;       /* tokens */
	int32_t *tokens, *mask; /* [capacity] on the host */
	reading_piece piece;    /* that is being read; its ids only in reading_begin */
	int64_t floats;         /* of a token in the log */
	int64_t logged;         /* tokens of the piece */
	size_t touched;         /* of the plan's memory; before its inputs are written */
	bool fed;
	int cursor;  /* of the plan */
	int64_t row; /* of its node */
	int logits;  /* its node that makes them; -1: none does */
	bool wants;  /* coefficients */
};

bool reading_by_pieces(const served_model *m, reading_form form)
{
	const model_dims *d = model_dimensions(m->model);
	return !form.attribution && !form.source && d->causal && d->head != HEAD_CLASSES;
}

/* --- plans ------------------------------------------------------------------------ */

static void reading_free(reading *r)
{
	if (!r)
		return;
	outputs_free(r->outputs);
	plan_free(r->plan);
	free(r->tokens);
	free(r->mask);
	free(r);
}

void reading_free_all(served_model *m)
{
	while (m->readings) {
		reading *r = m->readings;
		m->readings = r->next;
		reading_free(r);
	}
}

static bool is_kept(const served_model *m, int64_t tokens, reading_form form)
{
	return tokens <= READING_KEPT_TOKENS && form.rows <= READING_KEPT_ROWS &&
	       !model_dimensions(m->model)->reads_padding && !form.log;
}

static int64_t capacity_for(const served_model *m, int64_t tokens, reading_form form)
{
	int64_t capacity = READING_LEAST_TOKENS, most = model_dimensions(m->model)->source;
	while (capacity < tokens)
		capacity *= 2;
	if (form.source && capacity > most)
		capacity = most;
	const int64_t segment = reading_by_pieces(m, form) ? 0 : model_dimensions(m->model)->segment;
	if (segment && capacity > segment)
		capacity = segment;
	return is_kept(m, tokens, form) ? capacity : tokens;
}

static bool is_like(const reading *r, int64_t capacity, reading_form form)
{
	return r->capacity == capacity && r->form.logits == form.logits && r->form.rows == form.rows &&
	       r->form.embedding == form.embedding && r->form.log == form.log && r->form.masked == form.masked &&
	       r->form.attribution == form.attribution && r->form.share == form.share && r->form.source == form.source;
}

static forward_spec source_spec(const reading *r, const served_model *m)
{
	return (forward_spec){.phase = PHASE_ENCODE,
	                      .batch = 1,
	                      .slots = statepool_capacity(m->pool),
	                      .source = r->capacity,
	                      .source_masked = true};
}

static forward_spec spec_of(const reading *r, const served_model *m)
{
	bool pieces = reading_by_pieces(m, r->form);
	return (forward_spec){.phase = pieces ? PHASE_STEP : PHASE_SCORE,
	                      .batch = 1,
	                      .length = r->capacity,
	                      .slots = pieces ? statepool_capacity(m->pool) : 0,
	                      .masked = !pieces || r->form.masked,
	                      .explain = r->form.log,
	                      .attribution = r->form.attribution,
	                      .share = r->form.share,
	                      .logits = r->form.attribution ? LOGITS_LAST : r->form.logits,
	                      .rows = r->form.rows,
	                      .embedding = r->form.embedding};
}

static status fill(reading *r, const served_model *m, error *err)
{
	const forward_spec spec = r->form.source ? source_spec(r, m) : spec_of(r, m);
	r->tokens = memory_new((size_t)r->capacity, sizeof *r->tokens);
	r->mask = memory_new((size_t)r->capacity, sizeof *r->mask);
	if (!r->tokens || !r->mask)
		return STATUS_NOMEM;
	TRY(model_plan(&r->plan, m->model, &spec, NULL, spec.slots ? statepool_data(m->pool) : NULL, err));
	r->logits = r->form.attribution ? plan_node_of(r->plan, port_find(plan_graph(r->plan), PORT_LOGITS)) : -1;
	return r->form.log ? outputs_new(&r->outputs, m->model, r->plan, READING_LOG_TOKENS) : STATUS_OK;
}

/* A reading for so many tokens, which nothing else uses. */
static status take(reading **out, served_model *m, int64_t tokens, reading_form form, error *err)
{
	int64_t capacity = capacity_for(m, tokens, form);
	reading **link = &m->readings;
	while (*link && !is_like(*link, capacity, form))
		link = &(*link)->next;
	*out = *link;
	if (*out) {
		*link = (*out)->next;
		return STATUS_OK;
	}
	*out = memory_new(1, sizeof **out);
	if (!*out)
		return STATUS_NOMEM;
	**out = (reading){.capacity = capacity, .form = form, .floats = m->log_floats};
	status s = fill(*out, m, err);
	if (s != STATUS_OK) {
		reading_free(*out);
		*out = NULL;
	}
	return s;
}

/* Of a kind as many are kept as threads can run. */
void reading_end(served_model *m, reading *r)
{
	const bool keep = r && is_kept(m, r->capacity, r->form) && plan_bytes(r->plan) <= READING_KEPT_BYTES;
	int alike = 0;
	for (const reading *q = m->readings; q && keep; q = q->next)
		alike += is_like(q, r->capacity, r->form);
	if (!keep || (alike > 0 && alike >= model_backend(m->model)->threads)) {
		reading_free(r);
		return;
	}
	r->next = m->readings;
	m->readings = r;
}

/* --- one piece ------------------------------------------------------------------- */

/* Give the inputs the length of the piece; where that cannot be done, mask or length say it. */
static status shorten(reading *r)
{
	static const port_role roles[] = {PORT_TOKENS, PORT_POSITIONS,        PORT_MASK,
	                                  PORT_SOURCE, PORT_SOURCE_POSITIONS, PORT_SOURCE_MASK};
	plan_shape shapes[sizeof roles / sizeof *roles];
	int n = 0;
	for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
		value v = port_find(plan_graph(r->plan), roles[i]);
		if (v != VALUE_NONE)
			shapes[n++] = (plan_shape){v, SHAPE2(1, r->piece.count)};
	}
	status s = plan_reshape(r->plan, shapes, n, NULL);
	return s == STATUS_UNSUPPORTED ? STATUS_OK : s;
}

/* The rows that are wanted, the last of them repeated where the plan has room for more. */
static status feed_rows(const reading *r)
{
	int32_t *rows = memory_new((size_t)r->form.rows, sizeof *rows);
	if (!rows)
		return STATUS_NOMEM;
	for (int64_t i = 0; i < r->form.rows; i++)
		rows[i] = r->piece.rows[i < r->piece.n_rows ? i : r->piece.n_rows - 1];
	status s = feed_write(r->plan, PORT_LAST, rows);
	free(rows);
	return s;
}

static status feed(reading *r)
{
	const model_dims *d = model_dimensions(r->model->model);
	r->fed = true;
	int32_t first = (int32_t)r->piece.first, count = (int32_t)r->piece.count;
	int32_t last = (int32_t)feed_row(d, r->piece.whole ? r->piece.whole : r->piece.ids, count);
	while (r->form.masked && !d->causal && last > 0 && r->piece.absent[last])
		last--; /* a head reads the last token that is there */
	for (int64_t i = 0; i < r->capacity; i++) {
		r->tokens[i] = i < count ? r->piece.ids[i] : 0;
		r->mask[i] = i < count && !(r->form.masked && r->piece.absent[i]);
	}
	TRY(shorten(r));
	TRY(feed_write(r->plan, PORT_TOKENS, r->tokens));
	TRY(feed_write(r->plan, PORT_MASK, r->mask));
	TRY(feed_write(r->plan, PORT_SOURCE, r->tokens));
	TRY(feed_write(r->plan, PORT_SOURCE_MASK, r->mask));
	TRY(feed_positions(r->plan, d, POSITION_CLAMP, first)); /* rows behind the piece may be past the end */
	TRY(feed_write(r->plan, PORT_SLOT, &r->piece.slot));
	TRY(feed_write(r->plan, PORT_POSITION, &first));
	TRY(feed_write(r->plan, PORT_LENGTH, &count));
	TRY(feed_write(r->plan, PORT_FACTOR, &r->piece.factor));
	return r->form.rows ? feed_rows(r) : feed_write(r->plan, PORT_LAST, &last);
}

status reading_begin(reading **out, served_model *m, reading_form form, const reading_piece *p, error *err)
{
	status s = take(out, m, p->count, form, err);
	if (s == STATUS_OK) {
		(*out)->piece = *p;
		(*out)->logged = 0;
		(*out)->cursor = 0;
		(*out)->row = 0;
		(*out)->wants = false;
		(*out)->fed = false;
		(*out)->model = m;
		s = form.attribution ? STATUS_OK : feed(*out);
	}
	return s == STATUS_OK
	           ? s
	           : error_set(err, s, NULL, "%lld tokens could not be read: %s", (long long)p->count, status_text(s));
}

static status read_log(reading *r)
{
	int64_t left = r->piece.count - r->logged, n = left < READING_LOG_TOKENS ? left : READING_LOG_TOKENS;
	TRY(outputs_read(r->outputs, r->logged, n, r->piece.log + r->logged * r->floats));
	r->logged += n;
	return STATUS_OK;
}

status reading_step(reading *r, bool *done)
{
	int nodes = plan_node_count(r->plan), node = r->cursor;
	*done = false;
	if (!r->fed) {
		bool whole;
		const size_t bytes = r->model->waited_for ? READING_TOUCHED_LESS : READING_TOUCHED_BYTES;
		TRY(plan_touch(r->plan, bytes, &r->touched, &whole));
		return whole ? feed(r) : STATUS_OK;
	}
	TRY(r->cursor < nodes ? plan_step_rows(r->plan, &r->cursor, &r->row, READING_WORK) : read_log(r));
	r->wants = node == r->logits && r->cursor > node;
	*done = r->cursor == nodes && (!r->form.log || r->logged == r->piece.count);
	return STATUS_OK;
}

status reading_values(const reading *r, float *out)
{
	const bool logits = r->form.logits || r->form.attribution;
	value v = port_find(plan_graph(r->plan), logits ? PORT_LOGITS : PORT_EMBEDDING);
	if (!r->form.rows)
		return plan_read(r->plan, v, out);
	const model *m = r->model->model;
	const int64_t count = r->piece.n_rows * model_dimensions(m)->outputs;
	return model_backend(m)->download(model_backend(m), out, plan_data(r->plan, v), (size_t)count * sizeof *out);
}

status reading_logits(const reading *r, int64_t row, float *out)
{
	const int64_t vocab = model_dimensions(r->model->model)->outputs;
	backend *b = model_backend(r->model->model);
	const float *all = plan_data(r->plan, port_find(plan_graph(r->plan), PORT_LOGITS));
	return b->download(b, out, all + row * vocab, (size_t)vocab * sizeof *out);
}

bool reading_wants_coefficients(const reading *r)
{
	return r->wants;
}

status reading_write_coefficients(reading *r, const float *coefficients)
{
	r->wants = false;
	return feed_write(r->plan, PORT_COEFFICIENTS, coefficients);
}

status reading_parts(const served_model *m, const reading *r, port_role role, int64_t count, float *out)
{
	value v = port_find(plan_graph(r->plan), role);
	memset(out, 0, (size_t)count * sizeof *out);
	if (v == VALUE_NONE)
		return STATUS_OK;
	backend *b = model_backend(m->model);
	return b->download(b, out, plan_data(r->plan, v), (size_t)count * sizeof *out);
}
