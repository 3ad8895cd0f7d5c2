/* plan_internal.h - what plan.c (compiling) and plan_run.c (running) share. */
#ifndef ENGINE_TENSOR_PLAN_INTERNAL_H
#define ENGINE_TENSOR_PLAN_INTERNAL_H

#include "engine/tensor/plan.h"

/* What the passes find out about a value. */
typedef struct plan_slot {
	shape shape; /* now; at most that in the graph, for which there is memory */
	void *data;  /* bound or placed; NULL for a dead temporary */
	bool bound;  /* memory of the caller */
	bool used;   /* an input of a live node, an output, or bound */
	int first;   /* live step that writes it; -1 before the run */
	int last;    /* last live step that reads it */
	int request; /* index of its arena request, -1: none. Shared by values in place */
} plan_slot;

/* What runs at once: a step, or a group of them. */
typedef struct plan_unit {
	int first, count;           /* steps */
	backend_fused_kernel fused; /* of a group */
} plan_unit;

/* Of what is run as one: a whole plan, or a part. */
typedef struct plan_record {
	bool ran, direct; /* at least once; never recorded, since that failed */
	bool repeated;    /* recorded a second time, since the first recording failed */
	int end;          /* of a part: the node behind it */
	void *recording;
} plan_record;

struct plan {
	graph *g;
	backend *b;
	plan_slot *slots; /* by value */
	int *steps;       /* live nodes, in order */
	op_id *ids;       /* by step, as are: */
	op_call *calls;
	const op_call **refs;
	plan_unit *units;
	int n_steps, n_units;
	void *arena, *scratch;
	size_t arena_bytes, scratch_bytes;
	plan *next;         /* runs behind this one; NULL: none */
	bool misshapen;     /* the last plan_reshape failed on its way */
	plan_record whole;  /* with those that run behind it */
	plan_record *parts; /* by their first node; NULL where the backend does not record */
};

#endif
