/* plan_internal.h - shared by plan.c (compiling) and plan_run.c (running). */
#ifndef ENGINE_TENSOR_PLAN_INTERNAL_H
#define ENGINE_TENSOR_PLAN_INTERNAL_H

#include "engine/tensor/plan.h"

/* Results of the compiler passes for a value. */
typedef struct plan_slot {
	shape shape; /* current shape; at most that in the graph, for which memory is placed */
	void *data;  /* bound or placed; NULL for a dead temporary */
	bool bound;  /* memory of the caller */
	bool used;   /* an input of a live node, an output, or bound */
	int first;   /* live step that writes it; -1 before the run */
	int last;    /* last live step that reads it */
	int request; /* index of its arena request, -1: none. Shared by values that are updated in place */
} plan_slot;

/* One step, or a group of steps that runs as one kernel. */
typedef struct plan_unit {
	int first, count;           /* steps */
	backend_fused_kernel fused; /* kernel of a group */
} plan_unit;

/* State of a recording: of a whole plan or a part. */
typedef struct plan_record {
	bool ran, direct; /* has run once; is never recorded, since recording failed */
	bool repeated;    /* recorded a second time, since the first recording failed */
	int end;          /* for a part: the node after it */
	void *recording;
} plan_record;

struct plan {
	graph *g;
	backend *b;
	plan_slot *slots; /* by value */
	int *steps;       /* live nodes, in order */
	op_id *ids;       /* by step, like the following: */
	op_call *calls;
	const op_call **refs;
	plan_unit *units;
	int n_steps, n_units;
	void *arena, *scratch;
	size_t arena_bytes, scratch_bytes;
	plan *next;         /* runs after this one; NULL: none */
	bool misshapen;     /* the last plan_reshape failed */
	int lasting;        /* first unit that changes more than temporaries */
	bool changed;       /* the last run has reached it */
	plan_record whole;  /* including the plans that run after it */
	plan_record *parts; /* by first node; NULL if the backend does not record */
};

#endif
