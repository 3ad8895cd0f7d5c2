/* graph.h - a computation as a list of op nodes over values, and its gradient.
 *
 * A graph is built once for fixed shapes, in execution order (nodes only use
 * values that exist already), so the list is its own schedule. Values are small
 * integers. Building never fails in the middle: the first error is remembered,
 * later calls return VALUE_NONE, and graph_status returns it at the end.
 *
 *   graph *g = graph_new();
 *   value x = graph_input(g, "x", DTYPE_F32, SHAPE2(8, 128));
 *   value w = graph_parameter(g, "w", SHAPE2(64, 128));
 *   value y = op_matmul(g, x, w, false, true, 1);
 *   … value loss = …;
 *   graph_backward(g, loss);                 // appends gradient nodes
 *   value dw = graph_gradient(g, w);         // VALUE_NONE if loss ignores w
 *   graph_output(g, "dw", dw);
 *   if (graph_status(g, &err) != STATUS_OK) …
 *
 * Not thread-safe. A graph knows no backend and owns no tensor data. */
#ifndef ENGINE_TENSOR_GRAPH_H
#define ENGINE_TENSOR_GRAPH_H

#include "engine/base/error.h"
#include "engine/tensor/op.h"
#include "engine/tensor/tensor.h"

typedef int32_t value;
enum { VALUE_NONE = -1 };

typedef enum value_role {
	ROLE_INPUT,     /* filled by the caller before each run; no gradient */
	ROLE_PARAMETER, /* bound to a weight; differentiable */
	ROLE_STATE,     /* bound memory that ops update in place across runs */
	ROLE_TEMPORARY  /* computed by a node */
} value_role;

typedef struct value_info {
	const char *name; /* owned by the graph; NULL for unnamed temporaries */
	value_role role;
	dtype type;
	shape shape;
	int producer; /* node index, -1 unless ROLE_TEMPORARY */
	bool output;  /* named by graph_output: readable after a run */
} value_info;

typedef struct op_node {
	op_id id;
	const void *params; /* owned by the graph */
	int n_in, n_out;
	value in[OP_MAX_INPUTS]; /* VALUE_NONE: absent */
	value out[OP_MAX_OUTPUTS];
} op_node;

typedef struct graph graph;

graph *graph_new(void); /* NULL when out of memory */
void graph_free(graph *g);

value graph_input(graph *g, const char *name, dtype type, shape s);
value graph_parameter(graph *g, const char *name, shape s);
/* A parameter of any type; f32 and bf16 ones are differentiable, packed ones are not. */
value graph_weight(graph *g, const char *name, dtype type, shape s);
value graph_state(graph *g, const char *name, shape s);
/* Name a value and keep it readable after a run. Names are unique per graph
 * (printf-style). One value may have several names; VALUE_NONE is an error. */
void graph_output(graph *g, value v, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Append a node; `out` receives op_get(id)->n_out values (all VALUE_NONE after an
 * error). Used by the typed builders in ops.h. `params` is copied. */
status graph_apply(graph *g, op_id id, const value *in, int n_in, const void *params, value *out);
/* Likewise for an op with one output, which is returned. */
value graph_apply_one(graph *g, op_id id, const value *in, int n_in, const void *params);

/* Append nodes that compute d loss / d v for every value that depends on a parameter (and for graph_want_gradient
 * inputs). Once per graph; loss is f32 and has one element. */
status graph_backward(graph *g, value loss);
/* Append nodes that propagate dy, the gradient of y (both f32, of one shape), back to `sources`. These are values
 * computed by nodes; parameters get no gradient. graph_gradient then returns the gradient of a source and of every
 * value on the way.
 *
 * With `frozen` the network is treated as linear. These are constants: the deviations of norms, the weights of
 * attention, and the factor f(x) / x of a function f. In a product b ⊙ c in a gate, `share` of the gradient of the
 * product goes to b with c constant, the rest to c with b constant. The gradients of all added terms, times these
 * terms, then sum to ⟨dy, y⟩. Once per graph, like graph_backward. */
typedef struct graph_rule {
	bool frozen;
	float share;   /* 0 … 1 */
	bool collects; /* ops add sums with graph_collect */
	value apart;   /* a computed value: sums collected after it are separate */
} graph_rule;
status graph_pull_back(graph *g, value y, value dy, const value *sources, int n_sources, graph_rule rule);
/* Sums for each row that ops collect during the backward. SUM_BIASES: ⟨dy, bias⟩ for a bias. SUM_ATTENTION: ⟨Σ_i p_ij
 * dy_i, x_j⟩ for token j, with the weights p of an attention round that pools x. */
typedef enum graph_sum { SUM_BIASES, SUM_ATTENTION } graph_sum;
/* The sum collected for this shape after the rule's value `apart`, or before it; or VALUE_NONE. */
value graph_collected(const graph *g, graph_sum which, shape s, bool apart);
/* Trade time for memory: mark a boundary between nodes. Values between two boundaries are not kept for the backward but
 * recomputed from the values that cross the boundary, with the same bits (Chen et al. 2016, "Training Deep Nets with
 * Sublinear Memory Cost"). Gradients of values between boundaries are not available afterwards. */
void graph_checkpoint(graph *g);
/* Request the gradient of an f32 or bf16 input too (tests, attribution). Before graph_backward. */
void graph_want_gradient(graph *g, value input);
value graph_gradient(const graph *g, value v);
/* Type of v's gradient: f32 for a parameter of any type, so that contributions are added in f32; v's own type
 * otherwise. */
dtype graph_gradient_type(const graph *g, value v);

/* For op backwards: the rule of graph_pull_back ({0} in graph_backward). */
graph_rule graph_gradient_rule(const graph *g);
/* For op backwards: add a contribution to a sum, if the rule collects. */
void graph_collect(graph *g, graph_sum which, value contribution);
/* For op backwards. graph_needs_gradient: true if v needs a gradient. graph_output_gradient: the gradient of an
 * output, VALUE_NONE if nothing used it. graph_accumulate: add a contribution to v's gradient, cast to its type if
 * necessary. */
bool graph_needs_gradient(const graph *g, value v);
value graph_output_gradient(const graph *g, const op_node *node, int out);
void graph_accumulate(graph *g, value v, value contribution);

/* First error of the construction, with a message in err. */
status graph_status(const graph *g, error *err);

int graph_value_count(const graph *g);
int graph_node_count(const graph *g);
/* Description of a value. After an error VALUE_NONE has one too, so that building code need not check each value before
 * it reads a shape; such a graph cannot be run. */
const value_info *graph_value(const graph *g, value v);
const op_node *graph_node(const graph *g, int index);
/* The input, parameter, state or output of that name, or VALUE_NONE. */
value graph_find(const graph *g, const char *name);

#endif
