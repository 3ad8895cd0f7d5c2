#include "tests/unit/train/fixture.h"

#include "engine/train/optimizer.h"

/* AdamW in double precision, one weight at a time, from its paper. */
typedef struct scalar_adamw {
	double *w, *m, *v;
	int64_t n, t;
} scalar_adamw;

static void scalar_step(scalar_adamw *a, const float *g, const train_options *o, double lr)
{
	double norm2 = 0;
	for (int64_t i = 0; i < a->n; i++)
		norm2 += (double)g[i] * g[i];
	double norm = sqrt(norm2), factor = o->clip > 0 && norm > o->clip ? o->clip / (norm + 1e-6) : 1;
	a->t++;
	double correct1 = 1 - pow(o->betas[0], (double)a->t), correct2 = 1 - pow(o->betas[1], (double)a->t);
	for (int64_t i = 0; i < a->n; i++) {
		double gi = g[i] * factor;
		a->m[i] = o->betas[0] * a->m[i] + (1 - o->betas[0]) * gi;
		a->v[i] = o->betas[1] * a->v[i] + (1 - o->betas[1]) * gi * gi;
		a->w[i] -= lr * o->weight_decay * a->w[i];
		a->w[i] -= lr * (a->m[i] / correct1) / (sqrt(a->v[i] / correct2) + o->eps);
	}
}

static void run(plan *p)
{
	assert_int_equal(plan_run(p), STATUS_OK);
}

static void write_gradients(const fixture *f, const optimizer *o, const float *g, int64_t n)
{
	assert_int_equal(f->backend->upload(f->backend, optimizer_gradients(o), g, (size_t)n * sizeof *g), STATUS_OK);
}

static void random_gradients(float *g, int64_t n, uint32_t step, float size)
{
	for (int64_t i = 0; i < n; i++)
		g[i] = size * (philox_uniform(philox(5, 0, step, (uint64_t)i).word[0]) - 0.5f);
}

/* Several steps of random gradients against the scalar reference. */
static void compare(const fixture *f, const train_options *options, float size, double max_norm)
{
	model *m = fixture_model(f, 0);
	optimizer *o;
	assert_int_equal(optimizer_new(&o, m, options, NULL), STATUS_OK);
	int64_t n = model_arena_floats(m);
	float *g = malloc((size_t)n * sizeof *g), *w = fixture_weights(f, m);
	scalar_adamw a = {calloc((size_t)n, 8), calloc((size_t)n, 8), calloc((size_t)n, 8), n, 0};
	for (int64_t i = 0; i < n; i++)
		a.w[i] = w[i];
	free(w);
	for (uint32_t step = 0; step < 6; step++) {
		double lr = train_learning_rate(options, step), norm, expected = 0;
		random_gradients(g, n, step, size);
		for (int64_t i = 0; i < n; i++)
			expected += (double)g[i] * g[i];
		write_gradients(f, o, g, n);
		assert_int_equal(optimizer_begin(o), STATUS_OK);
		assert_int_equal(optimizer_prepare(o, lr), STATUS_OK);
		run(optimizer_update_plan(o));
		assert_int_equal(optimizer_finish(o, &norm), STATUS_OK);
		scalar_step(&a, g, options, lr);
		assert_true(fabs(norm - sqrt(expected)) <= 1e-6 * norm);
		assert_true((norm > options->clip) == (max_norm > options->clip));
	}
	assert_int_equal(optimizer_updates(o), 6);
	w = fixture_weights(f, m);
	for (int64_t i = 0; i < n; i++)
		assert_true(fabs(w[i] - a.w[i]) <= 2e-6 * (1 + fabs(a.w[i])));
	free(w), free(g), free(a.w), free(a.m), free(a.v);
	optimizer_free(o);
	model_free(m);
}

static void it_follows_the_scalar_reference_without_clipping(void **state)
{
	train_options o = fixture_options();
	compare(*state, &o, 1e-3f, 0.1);
}

static void it_follows_the_scalar_reference_when_it_clips(void **state)
{
	train_options o = fixture_options();
	o.weight_decay = 0.3;
	o.betas[0] = 0.8;
	o.betas[1] = 0.9;
	compare(*state, &o, 10, 100);
}

static void a_gradient_that_is_not_finite_changes_nothing_and_is_not_counted(void **state)
{
	const fixture *f = *state;
	static const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
	train_options options = fixture_options();
	model *m = fixture_model(f, 0);
	optimizer *o;
	assert_int_equal(optimizer_new(&o, m, &options, NULL), STATUS_OK);
	int64_t n = model_arena_floats(m);
	size_t bytes = (size_t)n * sizeof(float);
	float *before = fixture_weights(f, m), *g = calloc((size_t)n, sizeof *g), *first = malloc(bytes),
	      *second = malloc(bytes);
	for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
		double norm;
		g[3] = bad[k];
		write_gradients(f, o, g, n);
		assert_int_equal(optimizer_prepare(o, 0.1), STATUS_OK);
		run(optimizer_update_plan(o));
		assert_int_equal(optimizer_finish(o, &norm), STATUS_OK);
		assert_false(isfinite(norm));
	}
	float *after = fixture_weights(f, m);
	assert_memory_equal(before, after, bytes);
	assert_int_equal(optimizer_download(o, first, second), STATUS_OK);
	for (int64_t i = 0; i < n; i++)
		assert_true(first[i] == 0 && second[i] == 0);
	assert_int_equal(optimizer_updates(o), 0);
	free(before), free(after), free(g), free(first), free(second);
	optimizer_free(o);
	model_free(m);
}

static void gathered_gradients_are_averaged(void **state)
{
	const fixture *f = *state;
	train_options options = fixture_options();
	options.gradient_accumulation = 4;
	model *m = fixture_model(f, 0);
	optimizer *o;
	assert_int_equal(optimizer_new(&o, m, &options, NULL), STATUS_OK);
	int64_t n = model_arena_floats(m);
	float *g = calloc((size_t)n, sizeof *g);
	for (int step = 0; step < 2; step++) { /* the second shows that begin forgets the first */
		double norm;
		assert_int_equal(optimizer_begin(o), STATUS_OK);
		for (int k = 1; k <= 4; k++) {
			g[0] = (float)k; /* mean 2.5 */
			write_gradients(f, o, g, n);
			run(optimizer_gather_plan(o));
		}
		assert_int_equal(optimizer_prepare(o, 0.1), STATUS_OK);
		run(optimizer_update_plan(o));
		assert_int_equal(optimizer_finish(o, &norm), STATUS_OK);
		assert_true(fabs(norm - 2.5) <= 1e-6);
	}
	free(g);
	optimizer_free(o);
	model_free(m);
}

static void moments_come_back_as_they_were_put(void **state)
{
	const fixture *f = *state;
	train_options options = fixture_options();
	model *m = fixture_model(f, 0);
	optimizer *o;
	assert_int_equal(optimizer_new(&o, m, &options, NULL), STATUS_OK);
	int64_t n = model_arena_floats(m);
	size_t bytes = (size_t)n * sizeof(float);
	float *a = malloc(bytes), *b = malloc(bytes), *x = malloc(bytes), *y = malloc(bytes);
	random_gradients(a, n, 1, 1);
	random_gradients(b, n, 2, 1);
	assert_int_equal(optimizer_upload(o, a, b, 17), STATUS_OK);
	assert_int_equal(optimizer_download(o, x, y), STATUS_OK);
	assert_memory_equal(a, x, bytes);
	assert_memory_equal(b, y, bytes);
	assert_int_equal(optimizer_updates(o), 17);
	free(a), free(b), free(x), free(y);
	optimizer_free(o);
	optimizer_free(NULL);
	model_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(it_follows_the_scalar_reference_without_clipping),
	    cmocka_unit_test(it_follows_the_scalar_reference_when_it_clips),
	    cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing_and_is_not_counted),
	    cmocka_unit_test(gathered_gradients_are_averaged),
	    cmocka_unit_test(moments_come_back_as_they_were_put),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
