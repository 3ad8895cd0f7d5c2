/* plan.h - a graph made ready to run on a backend.
 *
 * plan_new places every temporary of the graph in one arena by liveness (a
 * tensor's bytes are reused after its last reader; outputs and unbound inputs
 * keep their own place), sizes the scratch, and resolves every kernel call.
 * After that a run allocates nothing.
 *
 * Memory of parameters, states and any other value the caller wants to place
 * (an input shared with another plan, a gradient inside a flat arena) is given
 * as bindings; binding a value that a node produces makes the node write there.
 *
 * Where it does not, a plan can be given smaller inputs than it was made for (plan_reshape).
 *
 * A run can be taken in slices: plan_step runs the next node only, so that a long
 * training step never keeps a waiting token from its turn.
 *
 * Where the backend fuses, a node here is a group of the graph's nodes that runs as one kernel (backend.h says what
 * such a kernel may count on). Where the backend records, plan_run runs directly the first time, records the second
 * time and replays from then on: addresses and parameters are fixed in a plan, so one recording serves for good. If
 * recording fails the plan keeps running directly. So does each part of a plan by itself (plan_run_part). plan_step
 * never records and never replays. */
#ifndef ENGINE_TENSOR_PLAN_H
#define ENGINE_TENSOR_PLAN_H

#include "engine/tensor/backend.h"
#include "engine/tensor/graph.h"

typedef struct plan plan;

typedef struct plan_binding {
	value v;
	void *data; /* device memory that outlives the plan, 64-byte aligned unless the op allows less */
} plan_binding;

/* Takes ownership of g, also on failure. On error *out is NULL.
 * STATUS_INVALID: the graph holds an error, a parameter or state is unbound.
 * STATUS_UNSUPPORTED: the backend lacks a kernel, or bf16 (but for cast, and the copies that optimisers write).
 * STATUS_NOMEM. */
status plan_new(plan **out, graph *g, backend *b, const plan_binding *bindings, int n_bindings, error *err);
void plan_free(plan *p);

const graph *plan_graph(const plan *p);
/* Arena and scratch bytes this plan holds. */
size_t plan_bytes(const plan *p);
/* Write zeros into the next `bytes` of the arena of a new plan, from *done on, 0 at first: memory of the host exists
 * page by page from its first use on, which takes a large plan longer than its nodes, and a step below a huge page asks
 * for small ones (backend.h). *whole: there was nothing left. */
status plan_touch(plan *p, size_t bytes, size_t *done, bool *whole);
/* Device address of an input, parameter, state or output; NULL for other temporaries. */
void *plan_data(const plan *p, value v);

/* Host <-> device for a whole input or output value. */
status plan_write(plan *p, value input, const void *host);
status plan_read(plan *p, value output, void *host);

/* From now on input `v` has this shape: of the same rank, and no dimension is larger than in the graph. */
typedef struct plan_shape {
	value v;
	shape shape;
} plan_shape;
/* Run with smaller inputs: each op infers its results anew, and no byte past them is read or written; memory stays that
 * of the graph's shapes, and plan_read and plan_write keep to those. So one plan serves every batch up to its size at
 * the cost of that batch, for a microsecond or two. STATUS_UNSUPPORTED where the backend fuses or records, since a
 * recording has its shapes for good; STATUS_INVALID: shapes that do not fit each other (the plan is then to be given
 * others before it runs). */
status plan_reshape(plan *p, const plan_shape *inputs, int n, error *err);

/* From now on a run of `first` runs `next` behind it, and what follows that one, as one recording. Same backend, and
 * `first` has not been recorded; plan_step stays within a plan, and `next` can still be run alone. */
void plan_follow(plan *first, plan *next);

/* Run every node. */
status plan_run(plan *p);
/* Run the nodes from *cursor to before `end`, which is where it is then; recorded as plan_run is, a recording for each
 * part that is run more than once. So a device can be given other work between parts. Stays within the plan.
 * STATUS_INVALID: there is no such part. */
status plan_run_part(plan *p, int *cursor, int end);
/* Run node *cursor and advance it; *cursor starts at 0 and the run is complete
 * when it reaches plan_node_count. */
status plan_step(plan *p, int *cursor);
/* The same for some rows of a node, where its rows do not meet: as many as cost about `work` products, beginning with
 * *row, which starts at 0 and is 0 again when *cursor has advanced. Bits are those of the whole node, but for the sums
 * of matrix products that a library makes. All of the node where the backend fuses or records. */
status plan_step_rows(plan *p, int *cursor, int64_t *row, int64_t work);
int plan_node_count(const plan *p);
/* The node that makes v; -1: none does. */
int plan_node_of(const plan *p, value v);

#endif
