/* Compiling a graph, in passes over its node list:
 *
 *   1. bind      which values have memory from the caller
 *   2. prune     drop nodes whose results nobody wants, walking backwards from
 *                outputs, bindings and in-place updates
 *   3. liveness  for each temporary, its producer and its last reader
 *   4. in place  an output takes over the bytes of an input that dies there
 *   5. place     temporaries by lifetime; inputs and outputs for ever (arena.h)
 *   6. resolve   one op_call per node, with addresses, and the scratch size
 *
 * Inputs, outputs and unwanted results: an input's or output's bytes are never shared, so
 * they keep their content until they are written again; an unwanted result of a node that
 * is needed for another one has data == NULL. */
#include "engine/tensor/plan.h"

#include <assert.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/tensor/arena.h"

/* What the passes find out about a value. */
typedef struct plan_slot {
	void *data;  /* bound or placed; NULL for a dead temporary */
	bool bound;  /* memory of the caller */
	bool used;   /* an input of a live node, an output, or bound */
	int first;   /* live step that writes it; -1 before the run */
	int last;    /* last live step that reads it */
	int request; /* index of its arena request, -1: none. Shared by values in place */
} plan_slot;

struct plan {
	graph *g;
	backend *b;
	plan_slot *slots; /* by value */
	int *steps;       /* live nodes, in order */
	op_call *calls;   /* by step */
	int n_steps;
	void *arena, *scratch;
	size_t arena_bytes, scratch_bytes;
};

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

/* --- 4. in place, 5. place ------------------------------------------------------ */

/* Memory of this plan that may be reused when the value is dead. */
static bool is_reusable(const plan *p, value v)
{
	const value_info *info = graph_value(p->g, v);
	return info->role == ROLE_TEMPORARY && !info->output && !p->slots[v].bound && p->slots[v].used;
}

/* Does `node` read v only through arguments that its output may overwrite? */
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

/* One request per input, output and temporary that is needed and not bound; returns
 * their number. */
static int make_requests(const plan *p, arena_request *requests)
{
	int n = 0;
	for (value v = 0; v < graph_value_count(p->g); v++)
		if (graph_value(p->g, v)->role != ROLE_TEMPORARY && !p->slots[v].bound)
			n = add_request(p, requests, n, v);
	for (int step = 0; step < p->n_steps; step++) {
		const op_node *node = step_node(p, step);
		for (int i = 0; i < node->n_out; i++) {
			value v = node->out[i], victim = i == 0 ? find_victim(p, step) : VALUE_NONE;
			if (p->slots[v].bound || !p->slots[v].used)
				continue;
			if (victim == VALUE_NONE) {
				n = add_request(p, requests, n, v);
				continue;
			}
			p->slots[v].request = p->slots[victim].request;
			requests[p->slots[v].request].last = p->slots[v].last;
		}
	}
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

/* --- 6. resolve ----------------------------------------------------------------- */

static tensor resolve_value(const plan *p, value v)
{
	if (v == VALUE_NONE)
		return (tensor){0};
	const value_info *info = graph_value(p->g, v);
	return (tensor){p->slots[v].data, info->type, info->shape};
}

static status resolve(plan *p, error *err)
{
	for (int step = 0; step < p->n_steps; step++) {
		const op_node *node = step_node(p, step);
		if (!p->b->kernel[node->id])
			return error_set(err, STATUS_UNSUPPORTED, NULL, "the %s backend has no kernel for %s",
			                 p->b->name, op_get(node->id)->name);
		op_call *call = &p->calls[step];
		*call = (op_call){.params = node->params, .n_in = node->n_in, .n_out = node->n_out};
		for (int i = 0; i < node->n_in; i++)
			call->in[i] = resolve_value(p, node->in[i]);
		for (int i = 0; i < node->n_out; i++)
			call->out[i] = resolve_value(p, node->out[i]);
		backend_scratch scratch = p->b->scratch[node->id];
		size_t bytes = scratch ? scratch(p->b, call) : 0;
		if (bytes > p->scratch_bytes)
			p->scratch_bytes = bytes;
	}
	if (!p->scratch_bytes)
		return STATUS_OK;
	TRY(p->b->allocate(p->b, p->scratch_bytes, &p->scratch));
	for (int step = 0; step < p->n_steps; step++)
		p->calls[step].scratch = p->scratch;
	return STATUS_OK;
}

/* --- the public face -------------------------------------------------------------- */

static status compile(plan *p, const plan_binding *bindings, int n_bindings, error *err)
{
	TRY(graph_status(p->g, err));
	size_t n_nodes = (size_t)graph_node_count(p->g);
	p->slots = memory_new((size_t)graph_value_count(p->g), sizeof *p->slots);
	p->steps = memory_new(n_nodes, sizeof *p->steps);
	if (!p->slots || !p->steps)
		return STATUS_NOMEM;
	TRY(bind(p, bindings, n_bindings, err));
	prune(p);
	find_lifetimes(p);
	TRY(place(p));
	p->calls = memory_new((size_t)p->n_steps, sizeof *p->calls);
	return p->calls ? resolve(p, err) : STATUS_NOMEM;
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
	status s = compile(p, bindings, n_bindings, err);
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
	p->b->release(p->b, p->scratch);
	p->b->release(p->b, p->arena);
	free(p->calls);
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

status plan_step(plan *p, int *cursor)
{
	if (*cursor < 0 || *cursor >= p->n_steps)
		return STATUS_INVALID;
	int step = (*cursor)++;
	return p->b->kernel[step_node(p, step)->id](p->b, &p->calls[step]);
}

status plan_run(plan *p)
{
	for (int cursor = 0; cursor < p->n_steps;)
		TRY(plan_step(p, &cursor));
	return STATUS_OK;
}

int plan_node_count(const plan *p)
{
	return p->n_steps;
}
