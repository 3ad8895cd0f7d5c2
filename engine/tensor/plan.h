/* plan.h - a graph compiled for a backend.
 *
 * plan_new places every temporary of the graph in one arena by liveness (a tensor's bytes are reused after its last
 * reader; outputs and unbound inputs keep their own place), sizes the scratch, and resolves every kernel call. After
 * that a run allocates nothing.
 *
 * Bindings give the memory of parameters, states and any other value that the caller wants to place. Examples are an
 * input shared with another plan and a gradient inside a flat arena. If a node computes a bound value, it writes there.
 *
 * On a backend that neither fuses nor records, a plan can be given smaller inputs than it was compiled for
 * (plan_reshape).
 *
 * A run can be sliced: plan_step runs only the next node, so that a long training step does not delay a waiting token.
 *
 * If the backend fuses, a node here is a group of the graph's nodes that runs as one kernel (backend.h states the
 * guarantees). If the backend records, plan_run runs directly the first time, records the second time and replays from
 * then on. Addresses and parameters of a plan are fixed, so one recording serves every later run. If recording fails,
 * the plan keeps running directly. Each part of a plan does the same on its own (plan_run_part). plan_step never
 * records and never replays. */
#ifndef ENGINE_TENSOR_PLAN_H
#define ENGINE_TENSOR_PLAN_H

#include "engine/tensor/backend.h"
#include "engine/tensor/graph.h"

typedef struct plan plan;

typedef struct plan_binding {
	value v;
	void *data; /* device memory that outlives the plan, 64-byte aligned unless the op allows less */
} plan_binding;

/* Takes ownership of g, even on failure. On error *out is NULL. STATUS_INVALID: the graph holds an error, or a
 * parameter or state is unbound. STATUS_UNSUPPORTED: the backend lacks a kernel, or bf16 (except for cast, and for the
 * copies that optimizers write). STATUS_NOMEM. */
status plan_new(plan **out, graph *g, backend *b, const plan_binding *bindings, int n_bindings, error *err);
void plan_free(plan *p);

const graph *plan_graph(const plan *p);
/* Arena and scratch bytes this plan holds. */
size_t plan_bytes(const plan *p);
/* Write zeros into the next `bytes` of a new plan's arena from *done on, 0 at first. The system allocates host memory
 * page by page on first use, which takes longer for a large plan than running its nodes. A step below a huge page
 * requests small pages (backend.h). *whole: the whole arena is written. */
status plan_touch(plan *p, size_t bytes, size_t *done, bool *whole);
/* Device address of an input, parameter, state or output; NULL for other temporaries. */
void *plan_data(const plan *p, value v);

/* Copy a whole input or output value between host and device. */
status plan_write(plan *p, value input, const void *host);
status plan_read(plan *p, value output, void *host);

/* New shape of input `v`: of the same rank, with no dimension larger than in the graph. */
typedef struct plan_shape {
	value v;
	shape shape;
} plan_shape;
/* Run with smaller inputs: each op infers its results again, and no byte past them is read or written. Memory stays
 * that of the graph's shapes, and plan_read and plan_write use those. One plan thus serves every batch up to its size
 * at the cost of that batch plus one or two microseconds. STATUS_UNSUPPORTED if the backend fuses or records, since a
 * recording has fixed shapes. STATUS_INVALID: the shapes do not fit each other; the plan must then be given others
 * before it runs. */
status plan_reshape(plan *p, const plan_shape *inputs, int n, error *err);

/* From now on a run of `first` also runs `next` after it, and any plan that follows `next`, as one recording. Both need
 * the same backend, and `first` must not have been recorded. plan_step stays within a plan, and `next` can still be run
 * alone. */
void plan_follow(plan *first, plan *next);

/* Run every node. After an error the device may still run the nodes issued before it. */
status plan_run(plan *p);
/* True if the last plan_run of p, or of a plan that p follows, may have changed a state, a parameter or an output of p.
 * False after an error: only p's temporaries have changed. */
bool plan_has_changed(const plan *p);
/* Run the nodes from *cursor to before `end` and set *cursor to `end`. Recorded like plan_run, with a recording for
 * each part that is run more than once. The device can do other work between parts. Stays within the plan.
 * STATUS_INVALID: no such part. */
status plan_run_part(plan *p, int *cursor, int end);
/* Run node *cursor and advance it; *cursor starts at 0 and the run is complete
 * when it reaches plan_node_count. */
status plan_step(plan *p, int *cursor);
/* True until the first plan_run is complete. */
bool plan_is_new(const plan *p);
/* As plan_step, for a first plan_run in slices: kernels and products get ready for their shapes then, which takes much
 * longer than a later run. It counts as a plan_run when *cursor reaches plan_node_count. For a plan that nothing
 * follows. */
status plan_step_first(plan *p, int *cursor);
/* Run some rows of a node if its rows are independent, as many as cost about `work` products. They begin with *row,
 * which starts at 0 and is 0 again when *cursor has advanced. Bits are those of the whole node, except sums of matrix
 * products that a library computes. Runs the whole node if the backend fuses or records. */
status plan_step_rows(plan *p, int *cursor, int64_t *row, int64_t work);
int plan_node_count(const plan *p);
/* The node that computes v, or -1. */
int plan_node_of(const plan *p, value v);

#endif
