/* Compiling a graph, in passes over its node list:
 *
 *   1. bind      which values have memory from the caller
 *   2. prune     drop nodes whose results are unwanted, walking backwards from
 *                outputs, bindings and in-place updates
 *   3. liveness  for each temporary, its producer and its last reader
 *   4. group     which neighbours the backend runs as one kernel
 *   5. in place  an output reuses the bytes of an input that is not read later
 *   6. place     temporaries by lifetime; inputs and outputs for ever (arena.h)
 *   7. resolve   one op_call per node, with addresses, and the scratch size
 *
 * Inputs, outputs and unwanted results: an input's or output's bytes are never shared, so
 * they keep their content until they are written again; an unwanted result of a node that
 * is needed for another one has data == NULL.
 *
 * Groups are found before there are addresses, because a group lives as one node does: whatever it reads or writes
 * stays until its end. The backend is asked with addresses that only distinguish values, and once more with the
 * real ones. */
#include "engine/tensor/plan_internal.h"

#include <assert.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/tensor/arena.h"

/* --- 1. bind ------------------------------------------------------------------ */

static status bind(plan *p, const plan_binding *bindings, int n, error *err)
{
	int n_values = graph_value_count(p->g);
	for (int i = 0; i < n; i++) {
		value v = bindings[i].v;
		if (v < 0 || v >= n_values || !bindings[i].data)
			return error_set(err, STATUS_INVALID, NULL, "binding %d has no value or no memory", i);
		const char *name = graph_value(p->g, v)->name;
		if (p->slots[v].bound)
			return error_set(err, STATUS_INVALID, name, "%s is bound twice", name ? name : "a value");
		p->slots[v].bound = p->slots[v].used = true;
		p->slots[v].data = bindings[i].data;
	}
	for (value v = 0; v < n_values; v++) {
		const value_info *info = graph_value(p->g, v);
		if ((info->role == ROLE_PARAMETER || info->role == ROLE_STATE) && !p->slots[v].bound)
			return error_set(err, STATUS_INVALID, info->name, "%s is not bound to memory", info->name);
	}
	return STATUS_OK;
}

/* --- 2. prune, 3. liveness ------------------------------------------------------ */

static bool is_live(const plan *p, const op_node *node)
{
	if (op_get(node->id)->mutates)
		return true;
	for (int i = 0; i < node->n_out; i++)
		if (p->slots[node->out[i]].used)
			return true;
	return false;
}

/* Fill steps; mark every value that is needed. */
static void prune(plan *p)
{
	for (value v = 0; v < graph_value_count(p->g); v++)
		p->slots[v].used |= graph_value(p->g, v)->output;
	int n = graph_node_count(p->g), at = n;
	for (int i = n - 1; i >= 0; i--) {
		const op_node *node = graph_node(p->g, i);
		if (!is_live(p, node))
			continue;
		p->steps[--at] = i;
		for (int j = 0; j < node->n_in; j++)
			if (node->in[j] != VALUE_NONE)
				p->slots[node->in[j]].used = true;
	}
	p->n_steps = n - at;
	memmove(p->steps, p->steps + at, (size_t)p->n_steps * sizeof *p->steps);
}

/* A backend without bf16 converts to and from it, which includes the copies that optimisers write, and computes nothing
 * in it. */
static status check_types(const plan *p, error *err)
{
	for (int step = 0; step < p->n_steps && !p->b->bf16; step++) {
		const op_node *node = graph_node(p->g, p->steps[step]);
		bool narrow = false;
		for (int i = 0; i < node->n_in; i++)
			narrow |= node->in[i] != VALUE_NONE && !(op_get(node->id)->mutates >> i & 1) &&
			          graph_value(p->g, node->in[i])->type == DTYPE_BF16;
		for (int i = 0; i < node->n_out; i++)
			narrow |= graph_value(p->g, node->out[i])->type == DTYPE_BF16;
		if (narrow && node->id != OP_cast)
			return error_set(err, STATUS_UNSUPPORTED, NULL, "the %s backend computes in f32 only",
			                 p->b->name);
	}
	return STATUS_OK;
}

static const op_node *step_node(const plan *p, int step)
{
	return graph_node(p->g, p->steps[step]);
}

static void find_lifetimes(plan *p)
{
	for (int step = 0; step < p->n_steps; step++) {
		const op_node *node = step_node(p, step);
		for (int i = 0; i < node->n_in; i++)
			if (node->in[i] != VALUE_NONE)
				p->slots[node->in[i]].last = step;
		for (int i = 0; i < node->n_out; i++)
			p->slots[node->out[i]].first = p->slots[node->out[i]].last = step;
	}
}

/* Memory of this plan that may be reused when the value is dead. */
static bool is_reusable(const plan *p, value v)
{
	const value_info *info = graph_value(p->g, v);
	return info->role == ROLE_TEMPORARY && !info->output && !p->slots[v].bound && p->slots[v].used;
}

/* --- 4. group --------------------------------------------------------------------- */

static tensor resolve_value(const plan *p, value v)
{
	if (v == VALUE_NONE)
		return (tensor){0};
	return (tensor){p->slots[v].data, graph_value(p->g, v)->type, p->slots[v].shape};
}

static void resolve_calls(plan *p)
{
	for (int step = 0; step < p->n_steps; step++) {
		const op_node *node = step_node(p, step);
		op_call *call = &p->calls[step];
		*call = (op_call){.params = node->params, .n_in = node->n_in, .n_out = node->n_out};
		for (int i = 0; i < node->n_in; i++)
			call->in[i] = resolve_value(p, node->in[i]);
		for (int i = 0; i < node->n_out; i++)
			call->out[i] = resolve_value(p, node->out[i]);
	}
}

/* Bit i: output 0 of step first + i is for these `count` steps alone. */
static unsigned dead_outputs(const plan *p, int first, int count)
{
	unsigned dead = 0;
	for (int i = 0; i < count; i++) {
		const op_node *node = step_node(p, first + i);
		if (!node->n_out)
			continue;
		const plan_slot *slot = &p->slots[node->out[0]];
		if (!slot->used || (is_reusable(p, node->out[0]) && slot->last < first + count))
			dead |= 1u << i;
	}
	return dead;
}

/* Number of steps from `first` on, of `most`, that are one kernel; 0: none. The dead outputs depend on that number, so
 * a backend that covers fewer steps than it was shown is asked again about those. */
static int ask_fuse(const plan *p, int first, int most, backend_fused_kernel *out)
{
	for (int n = most; n >= 2;) {
		unsigned dead = dead_outputs(p, first, n);
		int count = p->b->fuse(p->b, p->ids + first, p->refs + first, n, dead, out);
		assert(count <= n);
		if (count < 2)
			return 0;
		if (count == n || (dead & ((1u << count) - 1)) == dead_outputs(p, first, count))
			return count;
		n = count;
	}
	return 0;
}

/* Keep everything that the group reads, including its own results, until its last step. */
static void widen_lifetimes(plan *p, const plan_unit *u)
{
	const int end = u->first + u->count - 1;
	for (int step = u->first; step <= end; step++) {
		const op_node *node = step_node(p, step);
		for (int i = 0; i < node->n_in; i++)
			if (node->in[i] != VALUE_NONE && p->slots[node->in[i]].last < end)
				p->slots[node->in[i]].last = end;
	}
}

static status group(plan *p)
{
	void *pretended = NULL;
	if (p->b->fuse) {
		/* Addresses that distinguish values and are aligned as real ones are. */
		int n_values = graph_value_count(p->g);
		char *all = aligned_alloc(ARENA_ALIGNMENT, ((size_t)n_values + 1) * ARENA_ALIGNMENT);
		for (value v = 0; all && v < n_values; v++)
			if (p->slots[v].used && !p->slots[v].bound)
				p->slots[v].data = all + (size_t)v * ARENA_ALIGNMENT;
		pretended = all;
		if (!pretended)
			return STATUS_NOMEM;
		resolve_calls(p);
	}
	for (int step = 0; step < p->n_steps;) {
		plan_unit *u = &p->units[p->n_units++];
		int left = p->n_steps - step;
		*u = (plan_unit){.first = step};
		if (p->b->fuse)
			u->count = ask_fuse(p, step, left < BACKEND_FUSE_MAX ? left : BACKEND_FUSE_MAX, &u->fused);
		if (u->count)
			widen_lifetimes(p, u);
		else
			*u = (plan_unit){step, 1, NULL};
		step += u->count;
	}
	free(pretended);
	return STATUS_OK;
}

/* --- 5. in place, 6. place ------------------------------------------------------ */

/* True if `node` reads v only through arguments that its output may overwrite. */
static bool only_overwritable(const op_node *node, value v)
{
	for (int i = 0; i < node->n_in; i++)
		if (node->in[i] == v && !(op_get(node->id)->in_place >> i & 1))
			return false;
	return true;
}

/* The input of this step whose bytes output 0 can take over, or VALUE_NONE. */
static value find_victim(const plan *p, int step)
{
	const op_node *node = step_node(p, step);
	if (!op_get(node->id)->in_place || !is_reusable(p, node->out[0]))
		return VALUE_NONE;
	int64_t count = shape_count(graph_value(p->g, node->out[0])->shape);
	for (int i = 0; i < node->n_in; i++) {
		value v = node->in[i];
		if (v != VALUE_NONE && is_reusable(p, v) && p->slots[v].last == step && only_overwritable(node, v) &&
		    shape_count(graph_value(p->g, v)->shape) == count)
			return v;
	}
	return VALUE_NONE;
}

static int add_request(const plan *p, arena_request *requests, int n, value v)
{
	const value_info *info = graph_value(p->g, v);
	arena_request *r = &requests[n];
	bool sized = shape_bytes(info->shape, info->type, &r->bytes);
	assert(sized); /* graph_apply checked it */
	if (!r->bytes)
		r->bytes = 1; /* an empty tensor is not an absent one: it has an address */
	bool forever = !is_reusable(p, v);
	r->first = forever ? -1 : p->slots[v].first;
	r->last = forever ? p->n_steps : p->slots[v].last;
	p->slots[v].request = n;
	return n + 1;
}

/* A group overwrites nothing that it reads. */
static int request_outputs(const plan *p, arena_request *requests, int n, int step, bool grouped)
{
	const op_node *node = step_node(p, step);
	for (int i = 0; i < node->n_out; i++) {
		value v = node->out[i], victim = i == 0 && !grouped ? find_victim(p, step) : VALUE_NONE;
		if (p->slots[v].bound || !p->slots[v].used)
			continue;
		if (victim == VALUE_NONE) {
			n = add_request(p, requests, n, v);
			continue;
		}
		p->slots[v].request = p->slots[victim].request;
		requests[p->slots[v].request].last = p->slots[v].last;
	}
	return n;
}

/* One request per input, output and temporary that is needed and not bound; returns
 * their number. */
static int make_requests(const plan *p, arena_request *requests)
{
	int n = 0;
	for (value v = 0; v < graph_value_count(p->g); v++)
		if (graph_value(p->g, v)->role != ROLE_TEMPORARY && !p->slots[v].bound)
			n = add_request(p, requests, n, v);
	for (int i = 0; i < p->n_units; i++)
		for (int j = 0; j < p->units[i].count; j++)
			n = request_outputs(p, requests, n, p->units[i].first + j, p->units[i].count > 1);
	return n;
}

static status place(plan *p)
{
	int n_values = graph_value_count(p->g);
	arena_request *requests = memory_new((size_t)n_values, sizeof *requests);
	if (!requests)
		return STATUS_NOMEM;
	for (value v = 0; v < n_values; v++)
		p->slots[v].request = -1;
	int n = make_requests(p, requests);
	status s = arena_place(requests, n, &p->arena_bytes);
	if (s == STATUS_OK)
		s = p->b->allocate(p->b, p->arena_bytes, &p->arena);
	for (value v = 0; v < n_values && s == STATUS_OK; v++)
		if (p->slots[v].request >= 0)
			p->slots[v].data = (char *)p->arena + requests[p->slots[v].request].offset;
	free(requests);
	return s;
}

/* --- 7. resolve ----------------------------------------------------------------- */

static bool overlap(const tensor *a, const tensor *b)
{
	size_t m = 0, n = 0;
	if (!a->data || !b->data || !shape_bytes(a->shape, a->type, &m) || !shape_bytes(b->shape, b->type, &n))
		return false; /* an absent one */
	return m && n && (char *)a->data < (char *)b->data + n && (char *)b->data < (char *)a->data + m;
}

/* True if the group's outputs overlap nothing else that it reads or writes. Only the caller's memory can overlap. */
static bool keeps_apart(const plan *p, const plan_unit *u)
{
	value touched[BACKEND_FUSE_MAX * (OP_MAX_INPUTS + OP_MAX_OUTPUTS)];
	bool written[BACKEND_FUSE_MAX * (OP_MAX_INPUTS + OP_MAX_OUTPUTS)];
	int n = 0;
	for (int step = u->first; step < u->first + u->count; step++) {
		const op_node *node = step_node(p, step);
		for (int i = 0; i < node->n_in; i++, n++) {
			touched[n] = node->in[i];
			written[n] = op_get(node->id)->mutates >> i & 1;
		}
		for (int i = 0; i < node->n_out; i++, n++) {
			touched[n] = node->out[i];
			written[n] = true;
		}
	}
	for (int i = 0; i < n; i++)
		for (int j = 0; j < i; j++) {
			tensor a = resolve_value(p, touched[i]), b = resolve_value(p, touched[j]);
			if (touched[i] != touched[j] && (written[i] || written[j]) && overlap(&a, &b))
				return false;
		}
	return true;
}

/* Keep groups that the backend accepts with the real addresses; split others into single steps. */
static status settle_units(plan *p)
{
	plan_unit *units = memory_new((size_t)p->n_steps, sizeof *units);
	if (!units)
		return STATUS_NOMEM;
	int n = 0;
	for (int i = 0; i < p->n_units; i++) {
		plan_unit u = p->units[i];
		bool stands =
		    u.count == 1 || (keeps_apart(p, &u) && ask_fuse(p, u.first, u.count, &u.fused) == u.count);
		if (stands)
			units[n++] = u;
		else
			for (int j = 0; j < u.count; j++)
				units[n++] = (plan_unit){u.first + j, 1, NULL};
	}
	free(p->units);
	p->units = units;
	p->n_units = n;
	if (p->b->record_begin)
		p->parts = memory_new((size_t)n, sizeof *p->parts);
	return p->parts || !p->b->record_begin ? STATUS_OK : STATUS_NOMEM;
}

/* True if the unit updates an input in place or computes an output or a value in the caller's memory. */
static bool lasts(const plan *p, const plan_unit *u)
{
	bool found = false;
	for (int step = u->first; step < u->first + u->count; step++) {
		const op_node *node = step_node(p, step);
		found |= op_get(node->id)->mutates != 0;
		for (int i = 0; i < node->n_out; i++)
			found |= graph_value(p->g, node->out[i])->output || p->slots[node->out[i]].bound;
	}
	return found;
}

static void find_lasting(plan *p)
{
	while (p->lasting < p->n_units && !lasts(p, &p->units[p->lasting]))
		p->lasting++;
}

/* Packed weights that a unit reads in products. Returns their number, at most OP_MAX_AHEAD. */
static int packed_weights(const plan *p, const plan_unit *u, const tensor *out[OP_MAX_AHEAD])
{
	int n = 0;
	for (int step = u->first; step < u->first + u->count && n < OP_MAX_AHEAD; step++)
		if (p->ids[step] == OP_linear && dtype_is_panel(p->calls[step].in[1].type))
			out[n++] = &p->calls[step].in[1];
	return n;
}

/* Give the products of each unit the weights of the second next unit that has some. */
static void look_ahead(plan *p)
{
	const tensor *next[OP_MAX_AHEAD] = {NULL}, *later[OP_MAX_AHEAD] = {NULL}, *own[OP_MAX_AHEAD];
	for (int i = p->n_units - 1; i >= 0; i--) {
		const plan_unit *u = &p->units[i];
		memset(own, 0, sizeof own);
		if (packed_weights(p, u, own) == 0)
			continue;
		for (int step = u->first; step < u->first + u->count; step++)
			memcpy(p->calls[step].ahead, later, sizeof later);
		memcpy(later, next, sizeof next);
		memcpy(next, own, sizeof own);
	}
}

static status resolve(plan *p, error *err)
{
	resolve_calls(p);
	for (int step = 0; step < p->n_steps; step++) {
		const op_id id = p->ids[step];
		if (!p->b->kernel[id])
			return error_set(err, STATUS_UNSUPPORTED, NULL, "the %s backend has no kernel for %s",
			                 p->b->name, op_get(id)->name);
		size_t bytes = p->b->scratch[id] ? p->b->scratch[id](p->b, &p->calls[step]) : 0;
		if (bytes > p->scratch_bytes)
			p->scratch_bytes = bytes;
	}
	if (p->scratch_bytes) {
		TRY(p->b->allocate(p->b, p->scratch_bytes, &p->scratch));
		for (int step = 0; step < p->n_steps; step++)
			p->calls[step].scratch = p->scratch;
	}
	TRY(settle_units(p));
	look_ahead(p);
	find_lasting(p);
	return STATUS_OK;
}

/* --- the public face -------------------------------------------------------------- */

static status make_tables(plan *p)
{
	const size_t n = (size_t)p->n_steps;
	p->ids = memory_new(n, sizeof *p->ids);
	p->calls = memory_new(n, sizeof *p->calls);
	p->refs = memory_new(n, sizeof *p->refs);
	p->units = memory_new(n, sizeof *p->units);
	if (!p->ids || !p->calls || !p->refs || !p->units)
		return STATUS_NOMEM;
	for (int step = 0; step < p->n_steps; step++) {
		p->ids[step] = step_node(p, step)->id;
		p->refs[step] = &p->calls[step];
	}
	return STATUS_OK;
}

static status plan_compile(plan *p, const plan_binding *bindings, int n_bindings, error *err)
{
	TRY(graph_status(p->g, err));
	size_t n_nodes = (size_t)graph_node_count(p->g);
	p->slots = memory_new((size_t)graph_value_count(p->g), sizeof *p->slots);
	p->steps = memory_new(n_nodes, sizeof *p->steps);
	if (!p->slots || !p->steps)
		return STATUS_NOMEM;
	for (value v = 0; v < graph_value_count(p->g); v++)
		p->slots[v].shape = graph_value(p->g, v)->shape;
	TRY(bind(p, bindings, n_bindings, err));
	prune(p);
	TRY(check_types(p, err));
	find_lifetimes(p);
	TRY(make_tables(p));
	TRY(group(p));
	TRY(place(p));
	return resolve(p, err);
}

status plan_new(plan **out, graph *g, backend *b, const plan_binding *bindings, int n_bindings, error *err)
{
	*out = NULL;
	plan *p = memory_new(1, sizeof *p);
	if (!p) {
		graph_free(g);
		return error_set(err, STATUS_NOMEM, NULL, "out of memory for a plan");
	}
	p->g = g;
	p->b = b;
	status s = plan_compile(p, bindings, n_bindings, err);
	if (s != STATUS_OK) {
		error_set(err, s, NULL, "%s while preparing a plan of %zu bytes", status_text(s),
		          p->arena_bytes + p->scratch_bytes);
		plan_free(p);
		return s;
	}
	*out = p;
	return STATUS_OK;
}

void plan_free(plan *p)
{
	if (!p)
		return;
	if (p->whole.recording)
		p->b->forget(p->b, p->whole.recording);
	for (int i = 0; p->parts && i < p->n_units; i++)
		if (p->parts[i].recording)
			p->b->forget(p->b, p->parts[i].recording);
	p->b->release(p->b, p->scratch);
	p->b->release(p->b, p->arena);
	free(p->parts);
	free(p->units);
	free(p->refs);
	free(p->calls);
	free(p->ids);
	free(p->steps);
	free(p->slots);
	graph_free(p->g);
	free(p);
}

const graph *plan_graph(const plan *p)
{
	return p->g;
}

size_t plan_bytes(const plan *p)
{
	return p->arena_bytes + p->scratch_bytes;
}

void *plan_data(const plan *p, value v)
{
	if (v < 0 || v >= graph_value_count(p->g))
		return NULL;
	return is_reusable(p, v) ? NULL : p->slots[v].data;
}
