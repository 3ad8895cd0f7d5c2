/* Reverse-mode differentiation, source to source (Griewank and Walther, "Evaluating Derivatives", 2008, chapter 6). The
 * node list is walked backwards. Each op appends nodes that turn the gradients of its outputs into contributions to the
 * gradients of its inputs. The result is an ordinary graph, so gradients are planned, run and captured like anything
 * else, and there is no tape.
 *
 * A value's gradient is complete when its producer is reached, because every reader comes
 * later in the list. Contributions meet in `add` nodes, which the plan runs in place.
 *
 * With checkpoints, the nodes between two of them are copied before they are differentiated and the copies
 * are differentiated instead. The originals then have no reader in the backward, so the plan reuses their memory as
 * soon as the forward has used it. Copies that no gradient needs are pruned. */
#include "engine/base/memory.h"
#include "engine/tensor/graph_internal.h"
#include "engine/tensor/ops.h"

/* Mark what a gradient can flow to: what is marked already, and results of nodes that read something marked. Integers
 * and packed weights never. */
static void mark_results(graph *g)
{
	for (int i = 0; i < g->nodes.count; i++) {
		const op_node *node = graph_node(g, i);
		bool needs = false;
		for (int j = 0; j < node->n_in; j++)
			needs |= graph_needs_gradient(g, node->in[j]);
		for (int j = 0; j < node->n_out; j++) {
			graph_value_slot *slot = graph_slot(g, node->out[j]);
			slot->needs |= needs && dtype_is_real(slot->info.type);
		}
	}
}

/* Append the gradient of one node, if a gradient reached its output 0. */
static status differentiate(graph *g, const op_node *node)
{
	const op *o = op_get(node->id);
	g->apart = g->apart && node->out[0] != g->rule.apart;
	for (int i = 1; i < node->n_out; i++)
		if (graph_output_gradient(g, node, i) != VALUE_NONE)
			return graph_fail(g, STATUS_UNSUPPORTED, o->name, "output %d of %s has no gradient", i,
			                  o->name);
	bool gradient_requested = false; /* the node is not past a source of graph_pull_back */
	for (int i = 0; i < node->n_in; i++)
		gradient_requested |= graph_needs_gradient(g, node->in[i]);
	if (!gradient_requested || node->n_out == 0 || !graph_needs_gradient(g, node->out[0]) ||
	    graph_output_gradient(g, node, 0) == VALUE_NONE)
		return STATUS_OK;
	if (!o->backward)
		return graph_fail(g, STATUS_UNSUPPORTED, o->name, "%s has no gradient", o->name);
	TRY(o->backward(g, node));
	return g->error.status;
}

/* Append copies of nodes first … last - 1 that read each other where the originals did. What later nodes gave the
 * originals as gradients so far belongs to the copies. */
static status recompute(graph *g, int first, int last)
{
	value *copy = memory_new((size_t)g->values.count, sizeof *copy), in[OP_MAX_INPUTS], out[OP_MAX_OUTPUTS];
	if (!copy)
		return graph_fail(g, STATUS_NOMEM, NULL, "out of memory while building a graph");
	for (value v = 0; v < g->values.count; v++)
		copy[v] = v;
	status s = STATUS_OK;
	for (int i = first; i < last && s == STATUS_OK; i++) {
		const op_node *node = graph_node(g, i);
		for (int j = 0; j < node->n_in; j++)
			in[j] = node->in[j] == VALUE_NONE ? VALUE_NONE : copy[node->in[j]];
		s = graph_apply(g, node->id, in, node->n_in, node->params, out);
		for (int j = 0; j < node->n_out && s == STATUS_OK; j++) {
			const graph_value_slot *from = graph_slot(g, node->out[j]);
			graph_slot(g, out[j])->needs = from->needs;
			graph_slot(g, out[j])->gradient = from->gradient;
			copy[node->out[j]] = out[j];
		}
	}
	if (s == STATUS_OK && g->rule.apart != VALUE_NONE)
		g->rule.apart = copy[g->rule.apart];
	free(copy);
	return s;
}

static status autodiff_begin(graph *g)
{
	TRY(g->error.status);
	if (g->differentiated)
		return graph_fail(g, STATUS_INVALID, NULL, "a graph can be differentiated once");
	g->differentiated = true;
	return STATUS_OK;
}

/* From the end of the forward to its beginning. */
static status walk_back(graph *g, int end)
{
	for (int i = g->n_checkpoints; i >= 0; i--) {
		int first = i > 0 ? g->checkpoints[i - 1] : 0, last = end;
		end = first;
		if (i > 0 && i < g->n_checkpoints) { /* between two boundaries */
			int copies = graph_node_count(g);
			TRY(recompute(g, first, last));
			first = copies;
			last = graph_node_count(g);
		}
		while (last > first)
			TRY(differentiate(g, graph_node(g, --last)));
	}
	return g->error.status;
}

status graph_backward(graph *g, value loss)
{
	TRY(autodiff_begin(g));
	if (loss == VALUE_NONE || graph_value(g, loss)->type != DTYPE_F32 ||
	    shape_count(graph_value(g, loss)->shape) != 1)
		return graph_fail(g, STATUS_INVALID, "loss", "the loss must be f32 with one element");
	for (value v = 0; v < g->values.count; v++) {
		graph_value_slot *slot = graph_slot(g, v);
		slot->needs =
		    (slot->info.role == ROLE_PARAMETER && dtype_is_real(slot->info.type)) || slot->gradient_requested;
	}
	mark_results(g);
	int end = graph_node_count(g);
	graph_slot(g, loss)->gradient = op_fill(g, graph_value(g, loss)->shape, 1);
	TRY(g->error.status);
	return walk_back(g, end);
}

static bool is_f32(const graph *g, value v)
{
	return v != VALUE_NONE && graph_value(g, v)->type == DTYPE_F32;
}

status graph_pull_back(graph *g, value y, value dy, const value *sources, int n_sources, graph_rule rule)
{
	TRY(autodiff_begin(g));
	if (!is_f32(g, y) || !is_f32(g, dy) || !shape_equal(graph_value(g, y)->shape, graph_value(g, dy)->shape))
		return graph_fail(g, STATUS_INVALID, "dy", "y and dy must be f32 and of one shape");
	g->rule = rule;
	g->apart = rule.apart != VALUE_NONE && graph_value(g, rule.apart)->role == ROLE_TEMPORARY;
	for (int i = 0; i < n_sources; i++)
		graph_slot(g, sources[i])->needs = true;
	mark_results(g);
	graph_slot(g, y)->gradient = dy;
	return walk_back(g, graph_node_count(g));
}

graph_rule graph_gradient_rule(const graph *g)
{
	return g->rule;
}

void graph_want_gradient(graph *g, value input)
{
	if (g->error.status != STATUS_OK)
		return;
	if (input == VALUE_NONE || graph_value(g, input)->role != ROLE_INPUT ||
	    !dtype_is_real(graph_value(g, input)->type)) {
		graph_fail(g, STATUS_INVALID, NULL, "a gradient can be asked for an f32 or bf16 input only");
		return;
	}
	graph_slot(g, input)->gradient_requested = true;
}

value graph_gradient(const graph *g, value v)
{
	return v == VALUE_NONE ? VALUE_NONE : graph_slot(g, v)->gradient;
}

dtype graph_gradient_type(const graph *g, value v)
{
	const value_info *info = graph_value(g, v);
	return info->role == ROLE_PARAMETER ? DTYPE_F32 : info->type;
}

bool graph_needs_gradient(const graph *g, value v)
{
	return v != VALUE_NONE && graph_slot(g, v)->needs;
}

value graph_output_gradient(const graph *g, const op_node *node, int out)
{
	return graph_gradient(g, node->out[out]);
}

void graph_accumulate(graph *g, value v, value contribution)
{
	if (contribution == VALUE_NONE || !graph_needs_gradient(g, v))
		return;
	const dtype type = graph_gradient_type(g, v);
	if (graph_value(g, contribution)->type != type)
		contribution = op_cast(g, contribution, type);
	graph_value_slot *slot = graph_slot(g, v);
	slot->gradient = slot->gradient == VALUE_NONE ? contribution : op_add(g, slot->gradient, contribution);
}

static graph_collection *collection(const graph *g, graph_sum which, shape s, bool apart)
{
	for (int i = 0; i < g->n_collections; i++) {
		const graph_collection *c = &g->collections[i];
		if (c->which == which && c->apart == apart && shape_equal(graph_value(g, c->sum)->shape, s))
			return (graph_collection *)c;
	}
	return NULL;
}

value graph_collected(const graph *g, graph_sum which, shape s, bool apart)
{
	const graph_collection *c = collection(g, which, s, apart);
	return c ? c->sum : VALUE_NONE;
}

void graph_collect(graph *g, graph_sum which, value contribution)
{
	if (contribution == VALUE_NONE)
		return;
	graph_collection *c = collection(g, which, graph_value(g, contribution)->shape, g->apart);
	if (c)
		c->sum = op_add(g, c->sum, contribution);
	else if (g->n_collections < GRAPH_COLLECTIONS)
		g->collections[g->n_collections++] = (graph_collection){which, g->apart, contribution};
	else
		graph_fail(g, STATUS_UNSUPPORTED, NULL, "sums over the rows of too many shapes");
}
