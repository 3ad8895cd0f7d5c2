/* attention_module.h - golden sets of one attention with its projections.
 *
 * Reads x and dy [B,N,D], which a set may call dO; {q,k,v,out}_proj.{weight,bias}; inner_attn_ln.{weight,bias} if a norm
 * follows the attention; in the config heads and the norm's eps, ln_eps or layernorm_eps. Values, under a prefix: y and,
 * for the loss Σ y ⊙ dy, the gradients dx and d.NAME, also as grad.NAME if the set has it.
 *
 *   attention_module_read(g, &m, &err);
 *   attention_module_plan(g, &m, attend, context, &p, &err);
 *   plan_write(p.plan, …);                       inputs that attend added
 *   attention_module_run(g, &m, &p, "prefix", &err); */
#ifndef TESTS_GOLDEN_ATTENTION_MODULE_H
#define TESTS_GOLDEN_ATTENTION_MODULE_H

#include "tests/golden/golden.h"

enum { ATTENTION_MODULE_LINEAR = 8, ATTENTION_MODULE_TENSORS = 10 };

typedef struct attention_module {
	int64_t b, n, d, heads;
	const float *x, *dy, *weights[ATTENTION_MODULE_TENSORS];
	int tensors;     /* ATTENTION_MODULE_LINEAR without a norm */
	double norm_eps; /* read where there is a norm */
} attention_module;

/* A module in a plan. Its contents belong to the set. */
typedef struct attention_module_planned {
	plan *plan;
	value x, weights[ATTENTION_MODULE_TENSORS], y;
} attention_module_planned;

/* The attention of q, k, v [B,N,D] in a graph, to which it may add inputs and outputs. */
typedef value attention_module_attend(graph *made, value q, value k, value v, void *context);

/* True if the set has one of the tensors. */
bool attention_module_recognises(const golden *g);
bool attention_module_has_norm(const golden *g);
status attention_module_read(golden *g, attention_module *out, error *err);
/* Its tensors are written to the plan. */
status attention_module_plan(golden *g, const attention_module *m, attention_module_attend *attend, void *context,
                             attention_module_planned *out, error *err);
/* Run the plan and add the values PREFIX.*. */
status attention_module_run(golden *g, const attention_module *m, const attention_module_planned *p, const char *prefix,
                            error *err);
/* True for the name of one of the gradients. */
bool attention_module_is_gradient(const char *name);

#endif
