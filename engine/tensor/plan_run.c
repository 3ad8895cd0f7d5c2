/* plan_run.c - operations on a compiled plan: smaller inputs, reading and writing, running. */
#include "engine/tensor/plan_internal.h"

#include <assert.h>

/* --- smaller inputs ----------------------------------------------------------------- */

static bool fits(shape s, shape room)
{
	bool fit = s.rank == room.rank;
	for (int i = 0; fit && i < s.rank; i++)
		fit = s.dim[i] >= 0 && s.dim[i] <= room.dim[i];
	return fit;
}

/* Infer the shapes of a step's results from those of its inputs. An absent or unused value has no memory, but the op
 * must know which of its inputs are present. */
static status infer(plan *p, int step, error *err)
{
	const op_node *node = graph_node(p->g, p->steps[step]);
	op_call *call = &p->calls[step];
	for (int i = 0; i < node->n_in; i++)
		if (node->in[i] != VALUE_NONE)
			call->in[i].shape = p->slots[node->in[i]].shape;
	TRY(op_get(node->id)->check(call, err));
	for (int i = 0; i < node->n_out; i++) {
		assert(fits(call->out[i].shape, graph_value(p->g, node->out[i])->shape));
		p->slots[node->out[i]].shape = call->out[i].shape;
	}
	size_t bytes = p->b->scratch[node->id] ? p->b->scratch[node->id](p->b, call) : 0;
	assert(bytes <= p->scratch_bytes);
	return STATUS_OK;
}

status plan_reshape(plan *p, const plan_shape *inputs, int n, error *err)
{
	bool same = !p->misshapen;
	if (p->b->fuse || p->b->record_begin)
		return error_set(err, STATUS_UNSUPPORTED, NULL, "a plan on %s keeps its shapes", p->b->name);
	for (int i = 0; i < n; i++) {
		value v = inputs[i].v;
		if (v < 0 || v >= graph_value_count(p->g) || graph_value(p->g, v)->role != ROLE_INPUT ||
		    !fits(inputs[i].shape, graph_value(p->g, v)->shape))
			return error_set(err, STATUS_INVALID, NULL, "input %d does not fit the plan", i);
		same &= shape_equal(p->slots[v].shape, inputs[i].shape);
		p->slots[v].shape = inputs[i].shape;
	}
	status s = STATUS_OK;
	for (int step = 0; step < p->n_steps && !same && s == STATUS_OK; step++)
		s = infer(p, step, err);
	p->misshapen = s != STATUS_OK;
	return s;
}

/* --- reading and writing -------------------------------------------------------- */

/* The address and size of an input or output; NULL for anything else. */
static void *whole_value(const plan *p, value v, size_t *bytes)
{
	void *data = plan_data(p, v);
	if (data && !shape_bytes(graph_value(p->g, v)->shape, graph_value(p->g, v)->type, bytes))
		return NULL;
	return data;
}

status plan_write(plan *p, value input, const void *host)
{
	size_t bytes;
	void *data = whole_value(p, input, &bytes);
	if (!data || graph_value(p->g, input)->role == ROLE_TEMPORARY)
		return STATUS_INVALID;
	return p->b->upload(p->b, data, host, bytes);
}

status plan_read(plan *p, value output, void *host)
{
	size_t bytes;
	void *data = whole_value(p, output, &bytes);
	return data ? p->b->download(p->b, host, data, bytes) : STATUS_INVALID;
}

/* --- memory ------------------------------------------------------------------------ */

status plan_touch(plan *p, size_t bytes, size_t *done, bool *whole)
{
	const size_t left = p->arena_bytes - *done, n = left < bytes ? left : bytes;
	char *from = (char *)p->arena + *done;
	if (n < left && p->b->by_small_pages)
		p->b->by_small_pages(p->b, from, left, bytes);
	*done += n;
	*whole = n == 0;
	return n > 0 ? p->b->clear(p->b, from, n) : STATUS_OK;
}

/* --- running ---------------------------------------------------------------------- */

static status run_unit(plan *p, const plan_unit *u)
{
	if (u->fused)
		return u->fused(p->b, p->refs + u->first);
	return p->b->kernel[p->ids[u->first]](p->b, &p->calls[u->first]);
}

/* Nodes from first to before end. */
static status run_directly(plan *p, int first, int end)
{
	for (int i = first; i < end; i++) {
		p->changed |= i >= p->lasting;
		TRY(run_unit(p, &p->units[i]));
	}
	return STATUS_OK;
}

static void note_changes(plan *p, bool changed)
{
	for (; p; p = p->next)
		p->changed = changed;
}

static status run_all(plan *p)
{
	for (; p; p = p->next)
		TRY(run_directly(p, 0, p->n_units));
	return STATUS_OK;
}

static status run_recorded(plan *p, const plan_record *r, int first)
{
	return r == &p->whole ? run_all(p) : run_directly(p, first, r->end);
}

static void forget(plan *p, plan_record *r)
{
	p->b->forget(p->b, r->recording);
	r->recording = NULL;
}

/* STATUS_OK: there is r->recording. */
static status try_to_record(plan *p, plan_record *r, int first)
{
	TRY(p->b->record_begin(p->b));
	status s = run_recorded(p, r, first), end = p->b->record_end(p->b, &r->recording);
	note_changes(p, false); /* nothing has run */
	if (s != STATUS_OK && r->recording)
		forget(p, r);
	return s == STATUS_OK || end != STATUS_OK ? end : s;
}

/* Record a failed part once more, and only once, if the backend asks for it. */
static void plan_run_refuse(plan_record *r, status code)
{
	r->direct = code != STATUS_BUSY || r->repeated;
	r->repeated = true;
}

/* Leaves r->recording, or what is never recorded. STATUS_DEVICE. */
static status record(plan *p, plan_record *r, int first)
{
	while (!r->recording && !r->direct) {
		status s = try_to_record(p, r, first);
		if (s == STATUS_DEVICE)
			return s;
		if (s != STATUS_OK)
			plan_run_refuse(r, s);
	}
	return STATUS_OK;
}

/* *done: it has run. */
static status replay(plan *p, plan_record *r, bool *done)
{
	status s = p->b->replay(p->b, r->recording);
	*done = s == STATUS_OK || s == STATUS_DEVICE;
	note_changes(p, s == STATUS_OK);
	if (*done)
		return s;
	forget(p, r);
	plan_run_refuse(r, s);
	return STATUS_OK;
}

/* The first run is direct: kernels get ready for their shapes, which cannot be recorded. */
static status run_or_replay(plan *p, plan_record *r, int first)
{
	for (bool done = false; r->ran && !r->direct && p->b->record_begin;) {
		TRY(record(p, r, first));
		if (r->recording)
			TRY(replay(p, r, &done));
		if (done)
			return STATUS_OK;
	}
	TRY(run_recorded(p, r, first));
	r->ran = true;
	return STATUS_OK;
}

void plan_follow(plan *first, plan *next)
{
	assert(!first->whole.recording && first->b == next->b);
	first->next = next;
	first->whole.ran = false;
}

status plan_step(plan *p, int *cursor)
{
	if (*cursor < 0 || *cursor >= p->n_units)
		return STATUS_INVALID;
	return run_unit(p, &p->units[(*cursor)++]);
}

bool plan_is_new(const plan *p)
{
	return !p->whole.ran;
}

status plan_step_first(plan *p, int *cursor)
{
	assert(!p->next);
	TRY(plan_step(p, cursor));
	p->whole.ran = *cursor == p->n_units;
	return STATUS_OK;
}

/* Rows first … first + n - 1 of a tensor that has `rows` of them. */
static tensor cut_rows(tensor t, int64_t rows, int64_t first, int64_t n)
{
	const int64_t width = shape_count(t.shape) / rows;
	t.data = (char *)t.data + (size_t)(first * width) * dtype_bytes(t.type);
	t.shape = t.shape.rank == 1 ? SHAPE1(n * width) : SHAPE2(n, width);
	return t;
}

/* True if the rows of this call can be computed separately. */
static bool is_by_rows(const op_call *call, int64_t rows)
{
	bool apart = call->row_inputs && rows > 0;
	for (int i = 0; i < call->n_in; i++)
		apart &= !(call->row_inputs >> i & 1) || shape_count(call->in[i].shape) % rows == 0;
	for (int i = 0; i < call->n_out; i++)
		apart &= !call->out[i].data || call->row_outputs >> i & 1;
	return apart;
}

status plan_step_rows(plan *p, int *cursor, int64_t *row, int64_t work)
{
	enum { LEAST = 16 };
	if (*cursor < 0 || *cursor >= p->n_units)
		return STATUS_INVALID;
	const plan_unit *u = &p->units[*cursor];
	op_call call = p->calls[u->first];
	const int64_t rows = shape_rows(call.out[0].shape);
	const int64_t cost = shape_last(call.in[0].shape) * shape_last(call.out[0].shape);
	const int64_t most = work / (cost > 0 ? cost : 1) / LEAST * LEAST, n = most > LEAST ? most : LEAST;
	if (p->b->fuse || p->b->record_begin || u->count > 1 || call.n_out == 0 || n >= rows ||
	    op_get(p->ids[u->first])->check(&call, NULL) != STATUS_OK || !is_by_rows(&call, rows))
		return plan_step(p, cursor);
	const int64_t part = rows - *row < n ? rows - *row : n;
	for (int i = 0; i < call.n_in; i++)
		if (call.row_inputs >> i & 1)
			call.in[i] = cut_rows(call.in[i], rows, *row, part);
	for (int i = 0; i < call.n_out; i++)
		if (call.out[i].data)
			call.out[i] = cut_rows(call.out[i], rows, *row, part);
	*row += part;
	*cursor += *row == rows;
	if (*row == rows)
		*row = 0;
	return p->b->kernel[p->ids[u->first]](p->b, &call);
}

int plan_node_of(const plan *p, value v)
{
	const int producer = v == VALUE_NONE ? -1 : graph_value(p->g, v)->producer;
	for (int i = 0; i < p->n_units && producer >= 0; i++)
		for (int k = 0; k < p->units[i].count; k++)
			if (p->steps[p->units[i].first + k] == producer)
				return i;
	return -1;
}

status plan_run(plan *p)
{
	note_changes(p, false);
	return run_or_replay(p, &p->whole, 0);
}

bool plan_has_changed(const plan *p)
{
	return p->changed;
}

status plan_run_part(plan *p, int *cursor, int end)
{
	if (*cursor < 0 || *cursor >= end || end > p->n_units)
		return STATUS_INVALID;
	const int first = *cursor;
	*cursor = end;
	if (!p->parts)
		return run_directly(p, first, end);
	plan_record *r = &p->parts[first];
	if (r->end != end) {
		if (r->recording)
			p->b->forget(p->b, r->recording);
		*r = (plan_record){.end = end};
	}
	return run_or_replay(p, r, first);
}

int plan_node_count(const plan *p)
{
	return p->n_units;
}
