/* Tensors are in device memory between two guards of NaN: a read outside shows as NaN in a result, a write outside as a
 * changed guard. */
#include "tests/unit/support/op_trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/forgetting.h"
#include "engine/tensor/panel.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

enum { GUARD = 64, POISON = 0xff };

/* --- guarded device memory ------------------------------------------------------------ */

static void *take(size_t bytes)
{
	void *data = malloc(bytes ? bytes : 1);
	if (!data)
		abort();
	return data;
}

static void must(status s)
{
	if (s != STATUS_OK)
		abort(); /* memory and copies are not on trial */
}

/* Allocate device memory with guards on both sides, filled from `content` (NULL: poison). */
static void *guarded_new(backend *b, const void *content, size_t bytes)
{
	unsigned char *image = take(bytes + 2 * GUARD);
	memset(image, POISON, bytes + 2 * GUARD);
	if (content)
		memcpy(image + GUARD, content, bytes);
	void *device;
	must(b->allocate(b, bytes + 2 * GUARD, &device));
	must(b->upload(b, device, image, bytes + 2 * GUARD));
	free(image);
	return (char *)device + GUARD;
}

/* Copy the content back (unless NULL) and release the memory; false if a guard changed. */
static bool guarded_take(backend *b, void *data, void *content, size_t bytes)
{
	unsigned char *image = take(bytes + 2 * GUARD);
	must(b->download(b, image, (char *)data - GUARD, bytes + 2 * GUARD));
	b->release(b, (char *)data - GUARD);
	bool intact = true;
	for (size_t i = 0; i < GUARD; i++)
		intact = intact && image[i] == POISON && image[GUARD + bytes + i] == POISON;
	if (content)
		memcpy(content, image + GUARD, bytes);
	free(image);
	return intact;
}

/* --- a trial: the case's graph with host content for every value ----------------------- */

typedef struct trial {
	const op_case *c;
	graph *g;
	void **content; /* by value */
	double of_largest;
} trial;

static size_t bytes_of(const trial *t, value v)
{
	size_t bytes;
	if (!shape_bytes(graph_value(t->g, v)->shape, graph_value(t->g, v)->type, &bytes))
		abort();
	return bytes;
}

/* Results of a kernel. */
typedef struct outcome {
	void *out[OP_MAX_OUTPUTS];    /* NULL: not requested */
	void *updated[OP_MAX_INPUTS]; /* inputs that are updated in place */
} outcome;

static void outcome_free(outcome *o)
{
	for (int i = 0; i < OP_MAX_OUTPUTS; i++)
		free(o->out[i]);
	for (int i = 0; i < OP_MAX_INPUTS; i++)
		free(o->updated[i]);
}

/* Requested outputs, as a bit set, and the input that output 0 overwrites (-1: none). */
typedef struct manner {
	unsigned requested;
	int victim;
} manner;

static bool report(const trial *t, const op_node *node, manner how, const char *what)
{
	printf("%s (%s), wanted outputs %#x, overwriting input %d: %s\n", op_get(node->id)->name, t->c->name,
	       how.requested, how.victim, what);
	return false;
}

/* Upload the arguments of a node. */
static op_call load(const trial *t, const op_node *node, backend *b, manner how)
{
	op_call call = {.params = node->params, .n_in = node->n_in, .n_out = node->n_out};
	for (int i = 0; i < node->n_in; i++) {
		value v = node->in[i];
		if (v == VALUE_NONE)
			continue;
		const value_info *info = graph_value(t->g, v);
		call.in[i] = (tensor){guarded_new(b, t->content[v], bytes_of(t, v)), info->type, info->shape};
	}
	for (int i = 0; i < node->n_out; i++) {
		const value_info *info = graph_value(t->g, node->out[i]);
		call.out[i] = (tensor){NULL, info->type, info->shape};
		if (i == 0 && how.victim >= 0)
			call.out[i].data = call.in[how.victim].data;
		else if (how.requested >> i & 1)
			call.out[i].data = guarded_new(b, NULL, bytes_of(t, node->out[i]));
	}
	return call;
}

/* Download and release everything; false if a guard or a read-only input changed. */
static bool unload(const trial *t, const op_node *node, backend *b, manner how, const op_call *call, outcome *o)
{
	bool fine = true;
	for (int i = 0; i < node->n_in; i++) {
		if (node->in[i] == VALUE_NONE || i == how.victim)
			continue;
		size_t bytes = bytes_of(t, node->in[i]);
		void *content = take(bytes);
		if (!guarded_take(b, call->in[i].data, content, bytes))
			fine = report(t, node, how, "it wrote outside an input");
		if (op_get(node->id)->mutates >> i & 1) {
			o->updated[i] = content;
			continue;
		}
		if (memcmp(content, t->content[node->in[i]], bytes) != 0)
			fine = report(t, node, how, "it changed an input");
		free(content);
	}
	for (int i = 0; i < node->n_out; i++) {
		if (!call->out[i].data)
			continue;
		size_t bytes = bytes_of(t, node->out[i]);
		o->out[i] = take(bytes);
		if (!guarded_take(b, call->out[i].data, o->out[i], bytes))
			fine = report(t, node, how, "it wrote outside an output");
	}
	return fine;
}

/* Run one node on b. Free the outcome in any case. */
static bool run_node(const trial *t, const op_node *node, backend *b, manner how, outcome *o)
{
	*o = (outcome){0};
	op_call call = load(t, node, b, how);
	size_t scratch = b->scratch[node->id] ? b->scratch[node->id](b, &call) : 0;
	void *guarded = guarded_new(b, NULL, scratch);
	call.scratch = scratch ? guarded : NULL;
	bool fine = true;
	if (!b->kernel[node->id] || b->kernel[node->id](b, &call) != STATUS_OK || b->synchronize(b) != STATUS_OK)
		fine = report(t, node, how, "the kernel failed");
	if (!guarded_take(b, guarded, NULL, scratch))
		fine = report(t, node, how, "it wrote outside the scratch");
	return unload(t, node, b, how, &call, o) && fine;
}

/* Run the nodes that make the arguments of the last one. */
static bool prepare(trial *t, backend *reference)
{
	for (int i = 0; i + 1 < graph_node_count(t->g); i++) {
		const op_node *node = graph_node(t->g, i);
		outcome o;
		bool fine = run_node(t, node, reference, (manner){~0u, -1}, &o);
		for (int j = 0; j < node->n_out; j++)
			memcpy(t->content[node->out[j]], o.out[j], bytes_of(t, node->out[j]));
		for (int j = 0; j < node->n_in; j++)
			if (o.updated[j])
				memcpy(t->content[node->in[j]], o.updated[j], bytes_of(t, node->in[j]));
		outcome_free(&o);
		if (!fine)
			return false;
	}
	return true;
}

static bool trial_open(trial *t, const op_case *c, backend *reference)
{
	*t = (trial){.c = c, .g = graph_new()};
	error err = ERROR_INIT;
	if (!t->g)
		abort();
	c->build(t->g, c->arg);
	if (graph_status(t->g, &err) != STATUS_OK) {
		printf("%s (%s): %s\n", op_get(c->id)->name, c->name, error_message(&err));
		return false;
	}
	int n = graph_value_count(t->g);
	t->content = take((size_t)n * sizeof *t->content);
	for (value v = 0; v < n; v++) {
		t->content[v] = take(bytes_of(t, v));
		if (graph_value(t->g, v)->role != ROLE_TEMPORARY)
			op_cases_fill(c, graph_value(t->g, v), t->content[v]);
	}
	return prepare(t, reference);
}

static void trial_close(trial *t)
{
	for (value v = 0; v < graph_value_count(t->g) && t->content; v++)
		free(t->content[v]);
	free(t->content);
	graph_free(t->g);
}

static const op_node *trial_node(const trial *t)
{
	return graph_node(t->g, graph_node_count(t->g) - 1);
}

/* --- against the reference --------------------------------------------------------------- */

/* Two bf16 roundings of nearly the same number are at most one step apart; a step is up to 2^-7 of the number. */
static const double bf16_step = 1.0 / 128;

static float *widened(const uint16_t *x, int64_t count)
{
	float *wide = take((size_t)count * sizeof *wide);
	for (int64_t i = 0; i < count; i++)
		wide[i] = panel_f32(x[i]);
	return wide;
}

/* The tolerance that is the same for all elements. */
static double allowed(const trial *t, const float *want, int64_t count)
{
	return t->c->absolute + (t->of_largest > 0 ? t->of_largest * compare_magnitude(want, count) : 0);
}

static bool compare_integers(const char *what, const int32_t *got, const int32_t *want, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		if (got[i] == want[i])
			continue;
		printf("%s: [%lld] is %d, must be %d\n", what, (long long)i, got[i], want[i]);
		return false;
	}
	return true;
}

/* Compare a value's content. A conversion alone is exact: there is one right rounding. */
static bool compare_value(const trial *t, const char *what, value v, const void *got, const void *want)
{
	const value_info *info = graph_value(t->g, v);
	int64_t count = shape_count(info->shape);
	if (info->type == DTYPE_I32)
		return compare_integers(what, got, want, count);
	if (info->type != DTYPE_BF16)
		return compare_close(what, got, want, count, allowed(t, want, count), t->c->relative);
	float *wide_got = widened(got, count), *wide_want = widened(want, count);
	double step = t->c->id == OP_cast ? 0 : bf16_step;
	bool fine =
	    compare_close(what, wide_got, wide_want, count, allowed(t, wide_want, count), t->c->relative + step);
	free(wide_got);
	free(wide_want);
	return fine;
}

/* Return a copy of the pool of forgetting_stream with logarithms in place of sums: one sum has several forms. Sums
 * that are the same in `other` are left as they are. */
static float *with_logs(const trial *t, const op_node *node, const float *pool, const float *other)
{
	const shape s = graph_value(t->g, node->in[2])->shape;
	const int64_t heads = shape_last(graph_value(t->g, node->in[1])->shape);
	const int64_t offset = ((const forgetting_stream_params *)node->params)->offset;
	float *copy = take(bytes_of(t, node->in[2]));
	memcpy(copy, pool, bytes_of(t, node->in[2]));
	for (int64_t i = 0; i < s.dim[0] * heads; i++) {
		const int64_t m = i / heads * s.dim[1] + offset + i % heads, near = m + heads, rest = near + heads;
		if (pool[m] == other[m] && pool[near] == other[near] && pool[rest] == other[rest])
			continue;
		const double l = forgetting_log_of_sum(pool + m, heads);
		copy[m] = l == -INFINITY ? (float)FORGETTING_FLOOR : (float)l;
		copy[near] = copy[rest] = 0;
	}
	return copy;
}

static bool compare_updated(const trial *t, const char *what, const op_node *node, int i, const void *got,
                            const void *want)
{
	if (node->id != OP_forgetting_stream)
		return compare_value(t, what, node->in[i], got, want);
	float *logs = with_logs(t, node, got, want), *right = with_logs(t, node, want, got);
	const bool fine = compare_value(t, what, node->in[i], logs, right);
	free(logs);
	free(right);
	return fine;
}

static bool compare(const trial *t, manner how, const outcome *got, const outcome *want)
{
	const op_node *node = trial_node(t);
	char what[160];
	bool fine = true;
	for (int i = 0; i < node->n_out; i++) {
		snprintf(what, sizeof what, "%s (%s), output %d, wanted %#x, overwriting %d", op_get(node->id)->name,
		         t->c->name, i, how.requested, how.victim);
		if (got->out[i])
			fine &= compare_value(t, what, node->out[i], got->out[i], want->out[i]);
	}
	for (int i = 0; i < node->n_in; i++) {
		snprintf(what, sizeof what, "%s (%s), updated input %d", op_get(node->id)->name, t->c->name, i);
		/* The codes in a state, read as floats, may be NaN. */
		if (got->updated[i] && memcmp(got->updated[i], want->updated[i], bytes_of(t, node->in[i])) != 0)
			fine &= compare_updated(t, what, node, i, got->updated[i], want->updated[i]);
	}
	return fine;
}

static bool try_manner(const trial *t, backend *b, manner how, const outcome *want)
{
	outcome got;
	bool fine = run_node(t, trial_node(t), b, how, &got);
	fine = compare(t, how, &got, want) && fine;
	outcome_free(&got);
	return fine;
}

/* True if the node takes this argument once: one that is given twice cannot be overwritten here. */
static bool given_once(const op_node *node, int i)
{
	for (int j = 0; j < node->n_in; j++)
		if (j != i && node->in[j] == node->in[i])
			return false;
	return true;
}

/* True if this set of non-empty outputs is neither all nor none of them, and is tried. Every set of the first EVERY_SET
 * outputs is tried. Later outputs are combined only with none, the first two or all of the first ones, because each
 * would double the number of trials. */
static bool is_worth_a_run(const trial *t, const op_node *node, unsigned requested)
{
	enum { EVERY_SET = 5, FIRST = (1 << EVERY_SET) - 1 };
	const unsigned first = requested & FIRST;
	if (first != requested && first != 0 && first != 3 && first != FIRST)
		return false;
	unsigned nonempty = 0;
	for (int i = 0; i < node->n_out; i++)
		nonempty |= (unsigned)(bytes_of(t, node->out[i]) > 0) << i;
	return requested != 0 && requested != nonempty && (requested & ~nonempty) == 0;
}

bool op_trial_near(const op_case *c, backend *reference, backend *b, double of_largest)
{
	trial t;
	outcome want = {0};
	bool fine = trial_open(&t, c, reference);
	t.of_largest = of_largest;
	if (fine) {
		const op_node *node = trial_node(&t);
		unsigned all = (1u << node->n_out) - 1;
		fine = node->id == c->id && run_node(&t, node, reference, (manner){all, -1}, &want);
		for (unsigned requested = all; fine && (requested || !all); requested--) {
			if (requested == all || is_worth_a_run(&t, node, requested))
				fine = try_manner(&t, b, (manner){requested, -1}, &want);
			if (!all)
				break;
		}
		for (int i = 0; i < node->n_in && fine; i++)
			if ((op_get(c->id)->in_place >> i & 1) && given_once(node, i))
				fine = try_manner(&t, b, (manner){all, i}, &want);
	}
	outcome_free(&want);
	trial_close(&t);
	return fine;
}

bool op_trial_matches(const op_case *c, backend *reference, backend *b)
{
	return op_trial_near(c, reference, b, 0);
}

/* --- against finite differences ------------------------------------------------------------ */

/* The loss is L = Σ_rd u_r y_rd v_d with random u and v, as a matrix product on either side of y; a scalar y is the
 * loss itself. Differences are taken of L, summed in double from the y that the plan computed. */
typedef struct gradient_trial {
	const op_case *c;
	plan *p;
	value y;
	float *u, *v, *host; /* host: a copy of y */
	int64_t rows, width;
} gradient_trial;

static status gradient_graph(gradient_trial *t, graph *g)
{
	t->c->build(g, t->c->arg);
	TRY(graph_status(g, NULL));
	int n_values = graph_value_count(g);
	t->y = graph_node(g, graph_node_count(g) - 1)->out[0];
	shape s = graph_value(g, t->y)->shape;
	t->rows = shape_rows(s);
	t->width = shape_last(s);
	for (value v = 0; v < n_values; v++)
		if (graph_value(g, v)->role == ROLE_INPUT && graph_value(g, v)->type == DTYPE_F32)
			graph_want_gradient(g, v);
	value loss = t->y;
	if (s.rank > 0) {
		value u = graph_input(g, "loss u", DTYPE_F32, SHAPE2(1, t->rows));
		value v = graph_input(g, "loss v", DTYPE_F32, SHAPE2(t->width, 1));
		loss = op_matmul(g, op_matmul(g, u, t->y, false, false, 1), v, false, false, 1);
	}
	TRY(graph_backward(g, loss));
	graph_output(g, t->y, "y");
	for (value v = 0; v < n_values; v++)
		if (graph_value(g, v)->role == ROLE_INPUT && graph_gradient(g, v) != VALUE_NONE)
			graph_output(g, graph_gradient(g, v), "grad.%s", graph_value(g, v)->name);
	return graph_status(g, NULL);
}

static double loss_now(gradient_trial *t)
{
	must(plan_run(t->p));
	must(plan_read(t->p, t->y, t->host));
	double loss = 0;
	if (graph_value(plan_graph(t->p), t->y)->shape.rank == 0)
		return (double)t->host[0];
	for (int64_t r = 0; r < t->rows; r++)
		for (int64_t d = 0; d < t->width; d++)
			loss += (double)t->u[r] * (double)t->v[d] * (double)t->host[r * t->width + d];
	return loss;
}

/* dL/dx[i] by (8 (L(+h) - L(-h)) - (L(+2h) - L(-2h))) / 12h: the error is O(h⁴). */
static double difference(gradient_trial *t, value input, float *x, int64_t i)
{
	static const struct {
		int step;
		double weight;
	} points[] = {{1, 8}, {-1, -8}, {2, -1}, {-2, 1}};
	float before = x[i];
	double sum = 0;
	for (int k = 0; k < 4; k++) {
		x[i] = (float)((double)before + points[k].step * t->c->step);
		must(plan_write(t->p, input, x));
		sum += points[k].weight * loss_now(t);
	}
	x[i] = before;
	must(plan_write(t->p, input, x));
	return sum / (12 * t->c->step);
}

static bool try_input(gradient_trial *t, value input)
{
	enum { SAMPLES = 40 };
	const graph *g = plan_graph(t->p);
	const value_info *info = graph_value(g, input);
	int64_t count = shape_count(info->shape), stride = count / SAMPLES + 1;
	float *x = take((size_t)count * sizeof *x), *gradient = take((size_t)count * sizeof *gradient);
	char name[96];
	snprintf(name, sizeof name, "grad.%s", info->name);
	op_cases_fill(t->c, info, x);
	must(plan_run(t->p));
	must(plan_read(t->p, graph_find(g, name), gradient));
	double allowed = 1e-5 + 5e-4 * compare_magnitude(gradient, count);
	bool fine = true;
	for (int64_t i = 0; i < count && fine; i += stride) {
		double requested = difference(t, input, x, i);
		fine = fabs((double)gradient[i] - requested) <= allowed;
		if (!fine)
			printf("%s (%s): %s[%lld] is %.9g, finite difference %.9g, allowed %.3g\n",
			       op_get(t->c->id)->name, t->c->name, name, (long long)i, (double)gradient[i], requested,
			       allowed);
	}
	free(gradient);
	free(x);
	return fine;
}

static void fill_inputs(gradient_trial *t)
{
	const graph *g = plan_graph(t->p);
	for (value v = 0; v < graph_value_count(g); v++) {
		const value_info *info = graph_value(g, v);
		size_t bytes;
		if (info->role != ROLE_INPUT || !shape_bytes(info->shape, info->type, &bytes))
			continue;
		void *content = take(bytes);
		op_cases_fill(t->c, info, content);
		must(plan_write(t->p, v, content));
		free(content);
	}
}

bool op_trial_gradient(const op_case *c, backend *b)
{
	if (c->step == 0)
		return true;
	gradient_trial t = {.c = c};
	error err = ERROR_INIT;
	graph *g = graph_new();
	if (!g)
		abort();
	if (gradient_graph(&t, g) != STATUS_OK) {
		graph_status(g, &err);
		printf("%s (%s): %s\n", op_get(c->id)->name, c->name, error_message(&err));
		graph_free(g);
		return false;
	}
	plan_binding pool = {.v = graph_find(g, "pool")}; /* cases of streams have one */
	size_t bytes;
	if (pool.v != VALUE_NONE && shape_bytes(graph_value(g, pool.v)->shape, DTYPE_F32, &bytes))
		must(b->allocate(b, bytes, &pool.data));
	if (plan_new(&t.p, g, b, &pool, pool.data != NULL, &err) != STATUS_OK) {
		printf("%s (%s): %s\n", op_get(c->id)->name, c->name, error_message(&err));
		return false;
	}
	t.host = take((size_t)(t.rows * t.width) * sizeof(float));
	t.u = take((size_t)t.rows * sizeof(float));
	t.v = take((size_t)t.width * sizeof(float));
	value u = graph_find(g, "loss u"), v = graph_find(g, "loss v");
	fill_inputs(&t);
	if (u != VALUE_NONE) {
		op_cases_fill(c, graph_value(g, u), t.u);
		op_cases_fill(c, graph_value(g, v), t.v);
	}
	bool fine = true, any = false;
	for (value x = 0; x < graph_value_count(g) && fine; x++) {
		if (graph_value(g, x)->role != ROLE_INPUT || x == u || x == v || graph_gradient(g, x) == VALUE_NONE)
			continue;
		any = true;
		fine = try_input(&t, x);
	}
	free(t.v);
	free(t.u);
	free(t.host);
	plan_free(t.p);
	b->release(b, pool.data);
	return fine && any;
}
