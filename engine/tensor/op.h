/* op.h - definition of an op.
 *
 * An op is a row of ops.def, a typed parameter struct (ops.h), and one kernel per backend. Its `check` validates the
 * arguments and infers the outputs once for all backends; its `backward` appends gradient nodes to the graph. Nothing
 * in the engine switches over ops.
 *
 * Kernels receive an op_call: every shape in it has passed `check`, so kernels do not validate. Absent optional inputs
 * and outputs that are not needed have data == NULL. Empty tensors (a dimension of 0) are legal and do nothing. */
#ifndef ENGINE_TENSOR_OP_H
#define ENGINE_TENSOR_OP_H

#include "engine/base/error.h"
#include "engine/tensor/tensor.h"

enum { OP_MAX_INPUTS = 13, OP_MAX_OUTPUTS = 7, OP_MAX_AHEAD = 3 };

typedef enum op_id {
#define OP(name, ...) OP_##name,
#include "engine/tensor/ops.def"
#undef OP
	OP_COUNT
} op_id;

/* The arguments of one kernel launch. */
typedef struct op_call {
	const void *params; /* the op's struct from ops.h, or NULL */
	int n_in, n_out;
	tensor in[OP_MAX_INPUTS];
	tensor out[OP_MAX_OUTPUTS];
	/* Set by `check` of an op that treats its rows independently: the inputs (bit i: input i) and outputs that have
	 * a row for each row of output 0. 0: its rows cannot be computed separately. */
	unsigned row_inputs, row_outputs;
	void *scratch; /* at least as many bytes as the kernel's scratch function returned */
	/* Packed weights of the product after the next one, for a kernel that prefetches them; NULL: none. They are
	 * valid as long as this call's own weights. */
	const tensor *ahead[OP_MAX_AHEAD];
} op_call;

struct graph;
struct op_node;

typedef struct op {
	const char *name;
	int min_in, max_in, n_out;
	size_t params_bytes;
	unsigned mutates;  /* bit i: input i is updated in place */
	unsigned in_place; /* bit i: output 0 may share the memory of input i */
	/* Validate call->params and call->in, fill call->out[].type and .shape. On failure err names the argument and
	 * the reason. */
	status (*check)(op_call *call, error *err);
	/* Append nodes that compute the gradients of `node`'s inputs with graph_accumulate; NULL if the op has no
	 * gradient. Gradients flow through output 0 only. The others (statistics, scores) are by-products, and a loss
	 * that depends on one is an error. */
	status (*backward)(struct graph *g, const struct op_node *node);
} op;

/* The row of an op; never NULL for a valid id. */
const op *op_get(op_id id);

#endif
