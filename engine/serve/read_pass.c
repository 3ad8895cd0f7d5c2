#include "engine/serve/read_pass.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/explain/outputs.h"

/* form.both and models that read their tokens twice have several logs, stored one after the other; others have one. */
enum { SECTIONS = 4 };
static const struct {
	attention_place place;
	bool keys;
} sections[SECTIONS] = {{ATTENTION_OF_TOKENS, false},
                        {ATTENTION_OF_SOURCE, false},
                        {ATTENTION_TO_SOURCE, false},
                        {ATTENTION_TO_SOURCE, true}};

struct read_pass {
	read_pass *next; /* link of the model's list */
	plan *plan;
	outputs *outputs[SECTIONS]; /* NULL without a log */
	const served_model *model;
	read_pass_form form;
	int64_t capacity, source;             /* tokens; with form.both, source: tokens of the source */
	int32_t *tokens, *mask;               /* [capacity] on the host */
	int32_t *source_tokens, *source_mask; /* [source] */
	read_pass_piece piece;                /* the piece being read; its ids are valid in read_pass_begin only */
	int section;                          /* index of the log being read */
	int64_t logged;                       /* tokens of that log already read */
	float *log;                           /* position in the output */
	size_t touched;                       /* bytes of the plan's memory written before the first input */
	bool fed;
	int cursor;  /* next node of the plan */
	int64_t row; /* next row of that node */
	int logits;  /* index of the node that computes the logits; -1: none */
	bool wants;  /* waits for coefficients */
};

static int sections_of(const served_model *m, read_pass_form form)
{
	return form.both || model_dimensions(m->model)->shifted ? SECTIONS : 1;
}

bool read_pass_by_pieces(const served_model *m, read_pass_form form)
{
	const model_dims *d = model_dimensions(m->model);
	return !form.attribution && !form.source && !form.both && d->form->stepwise;
}

int64_t read_pass_piece_of(const served_model *m, read_pass_form form, int64_t first, int64_t left)
{
	return read_pass_by_pieces(m, form)
	           ? model_dims_piece(model_dimensions(m->model), first, left, SCHEDULER_PREFILL_CHUNK)
	           : left;
}

int64_t read_pass_scored_piece(const served_model *m)
{
	const int64_t vocab = model_dimensions(m->model)->outputs;
	int64_t most = SCHEDULER_PREFILL_CHUNK;
	while (most > READ_PASS_LEAST_TOKENS && most * vocab > READ_PASS_LOGITS)
		most /= 2;
	return most;
}

/* --- plans ------------------------------------------------------------------------ */

static void read_pass_free(read_pass *r)
{
	if (!r)
		return;
	for (int i = 0; i < SECTIONS; i++)
		outputs_free(r->outputs[i]);
	plan_free(r->plan);
	free(r->tokens);
	free(r->mask);
	free(r->source_tokens);
	free(r->source_mask);
	free(r);
}

void read_pass_free_all(served_model *m)
{
	while (m->passes) {
		read_pass *r = m->passes;
		m->passes = r->next;
		read_pass_free(r);
	}
}

static bool is_kept(const served_model *m, int64_t tokens, read_pass_form form)
{
	return tokens <= READ_PASS_KEPT_TOKENS && form.rows <= READ_PASS_KEPT_ROWS &&
	       !model_dimensions(m->model)->reads_padding && !form.log;
}

static int64_t capacity_for(const served_model *m, int64_t tokens, read_pass_form form)
{
	int64_t capacity = READ_PASS_LEAST_TOKENS, most = model_dimensions(m->model)->source;
	while (capacity < tokens)
		capacity *= 2;
	if (form.source && capacity > most)
		capacity = most;
	const int64_t segment = read_pass_by_pieces(m, form) ? 0 : model_dimensions(m->model)->segment;
	if (segment && capacity > segment)
		capacity = segment;
	return is_kept(m, tokens, form) ? capacity : tokens;
}

/* An attribution has one row more for the tokens than for the source; that row is masked. */
static void set_capacities(read_pass *r, const served_model *m, const read_pass_piece *p, read_pass_form form)
{
	const int64_t most = model_dimensions(m->model)->source;
	r->capacity = capacity_for(m, p->count, form);
	r->source = !form.both ? 0 : is_kept(m, p->n_source, form) ? READ_PASS_LEAST_TOKENS : p->n_source;
	while (form.both && r->source < p->n_source)
		r->source *= 2;
	if (r->source > most)
		r->source = most;
	if (form.both && form.attribution && r->source == r->capacity)
		r->capacity++;
}

static bool is_like(const read_pass *r, const read_pass *requested)
{
	const read_pass_form form = requested->form;
	return r->capacity == requested->capacity && r->source == requested->source && r->form.both == form.both &&
	       r->form.logits == form.logits && r->form.rows == form.rows && r->form.embedding == form.embedding &&
	       r->form.log == form.log && r->form.masked == form.masked && r->form.attribution == form.attribution &&
	       r->form.share == form.share && r->form.source == form.source;
}

static forward_spec source_spec(const read_pass *r, const served_model *m)
{
	return (forward_spec){.phase = PHASE_ENCODE,
	                      .batch = 1,
	                      .slots = statepool_capacity(m->pool),
	                      .source = r->capacity,
	                      .source_masked = true};
}

static forward_spec spec_of(const read_pass *r, const served_model *m)
{
	bool pieces = read_pass_by_pieces(m, r->form);
	return (forward_spec){.phase = pieces ? PHASE_STEP : PHASE_SCORE,
	                      .batch = 1,
	                      .length = r->capacity,
	                      .slots = pieces ? statepool_capacity(m->pool) : 0,
	                      .masked = !pieces || r->form.masked,
	                      .explain.log = r->form.log,
	                      .source = r->source,
	                      .source_masked = r->form.both,
	                      .explain.attribution = r->form.attribution,
	                      .explain.share = r->form.share,
	                      .out.logits = r->form.attribution ? LOGITS_LAST : r->form.logits,
	                      .out.rows = r->form.rows,
	                      .out.embedding = r->form.embedding};
}

static status read_pass_fill(read_pass *r, const served_model *m, error *err)
{
	const forward_spec spec = r->form.source ? source_spec(r, m) : spec_of(r, m);
	r->tokens = memory_new((size_t)r->capacity, sizeof *r->tokens);
	r->mask = memory_new((size_t)r->capacity, sizeof *r->mask);
	r->source_tokens = memory_new((size_t)r->source + 1, sizeof *r->source_tokens);
	r->source_mask = memory_new((size_t)r->source + 1, sizeof *r->source_mask);
	if (!r->tokens || !r->mask || !r->source_tokens || !r->source_mask)
		return STATUS_NOMEM;
	TRY(model_plan(&r->plan, m->model, &spec, NULL, spec.slots ? statepool_data(m->pool) : NULL, err));
	r->logits = r->form.attribution ? plan_node_of(r->plan, port_find(plan_graph(r->plan), PORT_LOGITS)) : -1;
	for (int i = 0; r->form.log && i < sections_of(m, r->form); i++)
		TRY(outputs_new(&r->outputs[i], m->model, r->plan, sections[i].place, sections[i].keys,
		                READ_PASS_LOG_TOKENS));
	return STATUS_OK;
}

/* Take an idle pass for n tokens, or compile one. */
static status read_pass_take(read_pass **out, served_model *m, const read_pass_piece *p, read_pass_form form,
                             error *err)
{
	read_pass requested = {.form = form};
	read_pass **link = &m->passes;
	set_capacities(&requested, m, p, form);
	while (*link && !is_like(*link, &requested))
		link = &(*link)->next;
	*out = *link;
	if (*out) {
		*link = (*out)->next;
		return STATUS_OK;
	}
	*out = memory_new(1, sizeof **out);
	if (!*out)
		return STATUS_NOMEM;
	**out = requested;
	status s = read_pass_fill(*out, m, err);
	if (s != STATUS_OK) {
		read_pass_free(*out);
		*out = NULL;
	}
	return s;
}

/* Keep at most one per thread of each kind. */
void read_pass_end(served_model *m, read_pass *r)
{
	const bool keep = r && is_kept(m, r->capacity, r->form) && plan_bytes(r->plan) <= READ_PASS_KEPT_BYTES;
	int alike = 0;
	for (const read_pass *q = m->passes; q && keep; q = q->next)
		alike += is_like(q, r);
	if (!keep || (alike > 0 && alike >= model_backend(m->model)->threads)) {
		read_pass_free(r);
		return;
	}
	r->next = m->passes;
	m->passes = r;
}

/* --- one piece ------------------------------------------------------------------- */

/* Set the inputs to the length of the piece; where the plan has a fixed length, set mask or length instead. */
static status read_pass_shorten(read_pass *r)
{
	static const port_role roles[] = {PORT_TOKENS, PORT_POSITIONS,        PORT_MASK,
	                                  PORT_SOURCE, PORT_SOURCE_POSITIONS, PORT_SOURCE_MASK};
	plan_shape shapes[sizeof roles / sizeof *roles];
	int n = 0;
	for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
		value v = port_find(plan_graph(r->plan), roles[i]);
		const bool source = i >= 3 && r->form.both;
		if (v != VALUE_NONE)
			shapes[n++] = (plan_shape){v, SHAPE2(1, source ? r->piece.n_source : r->piece.count)};
	}
	status s = plan_reshape(r->plan, shapes, n, NULL);
	return s == STATUS_UNSUPPORTED ? STATUS_OK : s;
}

/* Upload the requested rows; the last one is repeated up to the plan's number of rows. */
static status feed_rows(const read_pass *r)
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

static void fill_ids(int32_t *tokens, int32_t *mask, int64_t capacity, const int32_t *ids, int64_t count,
                     const bool *absent)
{
	for (int64_t i = 0; i < capacity; i++) {
		tokens[i] = i < count ? ids[i] : 0;
		mask[i] = i < count && !(absent && absent[i]);
	}
}

/* Return the row that the head reads. */
static int32_t find_row(const read_pass *r)
{
	const model_dims *d = model_dimensions(r->model->model);
	const read_pass_piece *p = &r->piece;
	if (p->n_rows)
		return p->rows[0];
	int32_t last = (int32_t)d->form->row(d, p->whole ? p->whole : p->ids, p->count);
	while (r->form.masked && !d->form->stepwise && last > 0 && p->absent[last])
		last--; /* last token that exists */
	return last;
}

static status feed(read_pass *r)
{
	const model_dims *d = model_dimensions(r->model->model);
	const read_pass_piece *p = &r->piece;
	const bool masked = r->form.masked;
	r->fed = true;
	int32_t first = (int32_t)p->first, count = (int32_t)p->count, last = find_row(r);
	fill_ids(r->tokens, r->mask, r->capacity, p->ids, p->count, masked ? p->absent : NULL);
	fill_ids(r->source_tokens, r->source_mask, r->source, p->source, p->n_source, masked ? p->source_absent : NULL);
	TRY(read_pass_shorten(r));
	TRY(feed_write(r->plan, PORT_TOKENS, r->tokens));
	TRY(feed_write(r->plan, PORT_MASK, r->mask));
	TRY(feed_write(r->plan, PORT_SOURCE, r->form.both ? r->source_tokens : r->tokens));
	TRY(feed_write(r->plan, PORT_SOURCE_MASK, r->form.both ? r->source_mask : r->mask));
	TRY(feed_positions(r->plan, d, POSITION_CLAMP, first)); /* rows past the end of the piece may exceed the
	                                                         * positions */
	TRY(feed_write(r->plan, PORT_SLOT, &r->piece.slot));
	TRY(feed_write(r->plan, PORT_POSITION, &first));
	TRY(feed_write(r->plan, PORT_LENGTH, &count));
	TRY(feed_write(r->plan, PORT_FACTOR, &r->piece.factor));
	TRY(feed_baseline(r->plan, r->piece.baseline));
	return r->form.rows ? feed_rows(r) : feed_write(r->plan, PORT_LAST, &last);
}

status read_pass_begin(read_pass **out, served_model *m, read_pass_form form, const read_pass_piece *p, error *err)
{
	status s = read_pass_take(out, m, p, form, err);
	if (s == STATUS_OK) {
		(*out)->piece = *p;
		(*out)->section = 0;
		(*out)->logged = 0;
		(*out)->log = p->log;
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

/* Return the number of tokens in section i of the log. */
static int64_t section_tokens(const read_pass *r, int i)
{
	const bool source = sections[i].place == ATTENTION_OF_SOURCE || sections[i].keys;
	return source && r->form.both ? r->piece.n_source : r->piece.count;
}

static status read_log(read_pass *r)
{
	const int64_t all = section_tokens(r, r->section), left = all - r->logged;
	const int64_t n = left < READ_PASS_LOG_TOKENS ? left : READ_PASS_LOG_TOKENS;
	outputs *o = r->outputs[r->section];
	TRY(outputs_read(o, r->logged, n, r->log));
	r->log += n * outputs_floats(o);
	r->logged += n;
	if (r->logged < all)
		return STATUS_OK;
	r->section++;
	r->logged = 0;
	return STATUS_OK;
}

status read_pass_step(read_pass *r, bool *done)
{
	int nodes = plan_node_count(r->plan), node = r->cursor;
	*done = false;
	if (!r->fed) {
		bool whole;
		const size_t bytes = r->model->generations_wait ? READ_PASS_TOUCHED_SHORT : READ_PASS_TOUCHED_BYTES;
		TRY(plan_touch(r->plan, bytes, &r->touched, &whole));
		return whole ? feed(r) : STATUS_OK;
	}
	TRY(r->cursor < nodes ? plan_step_rows(r->plan, &r->cursor, &r->row, READ_PASS_WORK) : read_log(r));
	r->wants = node == r->logits && r->cursor > node;
	*done = r->cursor == nodes && (!r->form.log || r->section == sections_of(r->model, r->form));
	return STATUS_OK;
}

status read_pass_values(const read_pass *r, float *out)
{
	const bool logits = r->form.logits || r->form.attribution;
	value v = port_find(plan_graph(r->plan), logits ? PORT_LOGITS : PORT_EMBEDDING);
	if (!r->form.rows)
		return plan_read(r->plan, v, out);
	const model *m = r->model->model;
	const int64_t count = r->piece.n_rows * model_dimensions(m)->outputs;
	return model_backend(m)->download(model_backend(m), out, plan_data(r->plan, v), (size_t)count * sizeof *out);
}

status read_pass_logits(const read_pass *r, int64_t row, float *out)
{
	const int64_t vocab = model_dimensions(r->model->model)->outputs;
	backend *b = model_backend(r->model->model);
	const float *all = plan_data(r->plan, port_find(plan_graph(r->plan), PORT_LOGITS));
	return b->download(b, out, all + row * vocab, (size_t)vocab * sizeof *out);
}

bool read_pass_wants_coefficients(const read_pass *r)
{
	return r->wants;
}

status read_pass_write_coefficients(read_pass *r, const float *coefficients)
{
	r->wants = false;
	return feed_write(r->plan, PORT_COEFFICIENTS, coefficients);
}

int64_t read_pass_width(const read_pass *r, port_role role)
{
	return port_width(plan_graph(r->plan), role);
}

status read_pass_parts(const served_model *m, const read_pass *r, port_role role, int64_t count, float *out)
{
	value v = port_find(plan_graph(r->plan), role);
	memset(out, 0, (size_t)count * sizeof *out);
	if (v == VALUE_NONE)
		return STATUS_OK;
	backend *b = model_backend(m->model);
	return b->download(b, out, plan_data(r->plan, v), (size_t)count * sizeof *out);
}
