#include "tests/unit/train/fixture.h"

#include "engine/train/optimizer.h"
#include "engine/train/optimizer_kind.h"

/* The reference: double precision, one weight at a time. */
typedef struct scalar_state {
	double *w, *m, *v;
	double *decayed; /* 1, or 0 where weight_decay does not apply */
	double *rate;    /* factor of the learning rate */
	int64_t n, t;
} scalar_state;

typedef void scalar_step(scalar_state *a, const float *g, const train_options *o, double lr);

/* As in the paper. */
static void scalar_adamw(scalar_state *a, const float *g, const train_options *o, double lr)
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
		a->w[i] -= lr * a->rate[i] * o->weight_decay * a->decayed[i] * a->w[i];
		a->w[i] -= lr * a->rate[i] * (a->m[i] / correct1) / (sqrt(a->v[i] / correct2) + o->eps);
	}
}

/* As in transformers, line by line. */
static void scalar_adamw_hf(scalar_state *a, const float *g, const train_options *o, double lr)
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
		a->w[i] -= lr * a->rate[i] * sqrt(correct2) / correct1 * a->m[i] / (sqrt(a->v[i]) + o->eps);
		a->w[i] -= lr * a->rate[i] * o->weight_decay * a->decayed[i] * a->w[i];
	}
}

static void scalar_sgd(scalar_state *a, const float *g, const train_options *o, double lr)
{
	double norm2 = 0;
	for (int64_t i = 0; i < a->n; i++)
		norm2 += (double)g[i] * g[i];
	double norm = sqrt(norm2), factor = o->clip > 0 && norm > o->clip ? o->clip / (norm + 1e-6) : 1;
	for (int64_t i = 0; i < a->n; i++) {
		a->m[i] = o->momentum * a->m[i] + (o->normalize ? g[i] / norm : g[i] * factor);
		a->w[i] -= lr * a->rate[i] * o->weight_decay * a->decayed[i] * a->w[i];
		a->w[i] -= lr * a->rate[i] * a->m[i];
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

/* The distance of a parameter of the fixture's model from what follows the layers. */
static int depth_of(const model *m, int i)
{
	const int layers = (int)model_dimensions(m)->layers;
	int layer;
	if (sscanf(model_parameter(m, i)->name, "fastformer_model.decoders.%d.", &layer) == 1)
		return layers - layer;
	assert_null(strstr(model_parameter(m, i)->name, "decoders"));
	return layers + 1; /* it has nothing after its layers */
}

/* Compare several steps of random gradients with the scalar reference. */
static void compare(const fixture *f, const train_options *options, scalar_step *reference, float size, double max_norm)
{
	model *m = fixture_model(f, 0);
	optimizer *o;
	assert_int_equal(optimizer_new(&o, m, options, NULL), STATUS_OK);
	int64_t n = model_arena_floats(m);
	float *g = malloc((size_t)n * sizeof *g), *w = fixture_weights(f, m);
	scalar_state a = {calloc((size_t)n, 8),
	                  calloc((size_t)n, 8),
	                  calloc((size_t)n, 8),
	                  calloc((size_t)n, 8),
	                  calloc((size_t)n, 8),
	                  n,
	                  0};
	for (int64_t i = 0; i < n; i++)
		a.decayed[i] = options->decayed == DECAYED_ALL;
	for (int i = 0; i < model_tensor_count(m); i++) {
		double *decayed = a.decayed + model_parameter_offset(m, i),
		       *rate = a.rate + model_parameter_offset(m, i);
		for (int64_t at = 0; at < shape_count(model_parameter(m, i)->shape); at++) {
			if (model_parameter(m, i)->shape.rank == 2)
				decayed[at] = 1;
			rate[at] = pow(options->layer_rate_decay, depth_of(m, i));
		}
	}
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
		reference(&a, g, options, lr);
		assert_true(fabs(norm - sqrt(expected)) <= 1e-6 * norm);
		assert_true((norm > options->clip) == (max_norm > options->clip));
	}
	assert_int_equal(optimizer_updates(o), 6);
	w = fixture_weights(f, m);
	for (int64_t i = 0; i < n; i++) /* padding has no rate */
		assert_true(a.rate[i] == 0 || fabs(w[i] - a.w[i]) <= 2e-6 * (1 + fabs(a.w[i])));
	free(w), free(g), free(a.w), free(a.m), free(a.v), free(a.decayed), free(a.rate);
	optimizer_free(o);
	model_free(m);
}

static void it_follows_the_scalar_reference_without_clipping(void **state)
{
	train_options o = fixture_options();
	compare(*state, &o, scalar_adamw, 1e-3f, 0.1);
}

static void it_follows_the_scalar_reference_when_it_clips(void **state)
{
	train_options o = fixture_options();
	o.weight_decay = 0.3;
	o.betas[0] = 0.8;
	o.betas[1] = 0.9;
	compare(*state, &o, scalar_adamw, 10, 100);
}

static void adamw_of_transformers_adds_eps_to_the_uncorrected_root_and_decays_last(void **state)
{
	train_options o = fixture_options();
	o.optimizer = &optimizer_kind_adamw_hf;
	o.eps = 1e-4; /* large enough to matter beside the moments of such gradients */
	o.weight_decay = 0.3;
	compare(*state, &o, scalar_adamw_hf, 1e-3f, 0.1);
}

static void sgd_follows_its_scalar_reference_clipped_and_normalized(void **state)
{
	train_options o = fixture_options();
	o.optimizer = &optimizer_kind_sgd;
	compare(*state, &o, scalar_sgd, 1e-3f, 0.1);
	compare(*state, &o, scalar_sgd, 10, 100);
	o.normalize = true;
	o.weight_decay = 0.3;
	o.momentum = 0.5;
	compare(*state, &o, scalar_sgd, 1e-3f, 0.1);
	compare(*state, &o, scalar_sgd, 10, 100);
}

static void vectors_do_not_decay_when_only_matrices_do(void **state)
{
	train_options o = fixture_options();
	o.decayed = DECAYED_MATRICES;
	o.weight_decay = 0.3;
	compare(*state, &o, scalar_adamw, 1e-3f, 0.1);
	o.optimizer = &optimizer_kind_adamw_hf;
	compare(*state, &o, scalar_adamw_hf, 1e-3f, 0.1);
	o.optimizer = &optimizer_kind_sgd;
	compare(*state, &o, scalar_sgd, 10, 100);
}

static void lower_layers_learn_at_lower_rates(void **state)
{
	train_options o = fixture_options();
	o.layer_rate_decay = 0.5;
	o.weight_decay = 0.3;
	compare(*state, &o, scalar_adamw, 1e-3f, 0.1);
	o.decayed = DECAYED_MATRICES;
	compare(*state, &o, scalar_adamw, 1e-3f, 0.1);
	o.optimizer = &optimizer_kind_adamw_hf;
	compare(*state, &o, scalar_adamw_hf, 1e-3f, 0.1);
	o.optimizer = &optimizer_kind_sgd;
	compare(*state, &o, scalar_sgd, 10, 100);
}

/* --- muon ------------------------------------------------------------------------------------- */

/* c [n, n] = a aᵀ, a [n, k]. */
static void gram(const double *a, int64_t n, int64_t k, double *c)
{
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < n; j++) {
			c[i * n + j] = 0;
			for (int64_t l = 0; l < k; l++)
				c[i * n + j] += a[i * k + l] * a[j * k + l];
		}
}

/* Orthogonalise u [n, k], n <= k, as the paper's code does. */
static void orthogonalise(double *u, int64_t n, int64_t k)
{
	double squares = 0, *g = malloc((size_t)(n * n) * 8), *g2 = malloc((size_t)(n * n) * 8),
	       *next = malloc((size_t)(n * k) * 8);
	for (int64_t i = 0; i < n * k; i++)
		squares += u[i] * u[i];
	for (int64_t i = 0; i < n * k; i++)
		u[i] /= sqrt(squares);
	for (int step = 0; step < 5; step++) {
		gram(u, n, k, g);
		gram(g, n, n, g2); /* g is symmetric */
		for (int64_t i = 0; i < n * n; i++)
			g[i] = -4.7750 * g[i] + 2.0315 * g2[i];
		for (int64_t i = 0; i < n; i++)
			for (int64_t j = 0; j < k; j++) {
				next[i * k + j] = 3.4445 * u[i * k + j];
				for (int64_t l = 0; l < n; l++)
					next[i * k + j] += g[i * n + l] * u[l * k + j];
			}
		memcpy(u, next, (size_t)(n * k) * 8);
	}
	free(g), free(g2), free(next);
}

/* One step of a matrix w [rows, columns]; returns the sum of squares of the orthogonal direction. */
static double scalar_muon(double *w, double *m, const float *g, int64_t rows, int64_t columns, double factor,
                          const train_options *o, double lr)
{
	const bool tall = rows > columns;
	const int64_t n = tall ? columns : rows, k = tall ? rows : columns;
	double *u = malloc((size_t)(n * k) * 8), squares = 0;
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < columns; c++) {
			const int64_t i = r * columns + c;
			m[i] = o->momentum * m[i] + factor * g[i];
			u[tall ? c * k + r : i] = factor * g[i] + o->momentum * m[i];
		}
	orthogonalise(u, n, k);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < columns; c++) {
			const double d = u[tall ? c * k + r : r * columns + c];
			w[r * columns + c] *= 1 - lr * o->weight_decay;
			w[r * columns + c] -= lr * 0.2 * sqrt((double)k) * d;
			squares += d * d;
		}
	free(u);
	return squares;
}

static bool is_hidden_matrix(const parameter_spec *p)
{
	return p->shape.rank == 2 && !strstr(p->name, "embedding");
}

static void muon_orthogonalises_the_steps_of_hidden_matrices_alone(void **state)
{
	const fixture *f = *state;
	train_options options = fixture_options();
	options.optimizer = &optimizer_kind_muon;
	options.momentum = 0.9;
	options.weight_decay = 0.3;
	options.learning_rate = 0.02;
	options.warmup_steps = 0;
	options.layer_rate_decay = 0.8;
	model *m = fixture_model(f, 0);
	optimizer *o;
	assert_int_equal(optimizer_new(&o, m, &options, NULL), STATUS_OK);
	const int64_t n = model_arena_floats(m);
	float *g = malloc((size_t)n * sizeof *g), *w = fixture_weights(f, m);
	scalar_state a = {calloc((size_t)n, 8), calloc((size_t)n, 8), calloc((size_t)n, 8), NULL, NULL, n, 0};
	int wide = 0, tall = 0;
	for (int64_t i = 0; i < n; i++)
		a.w[i] = w[i];
	free(w);
	for (uint32_t step = 0; step < 4; step++) {
		double rate = train_learning_rate(&options, step), norm, norm2 = 0;
		random_gradients(g, n, step, step % 2 ? 10 : 1e-3f); /* clipped, and not clipped */
		for (int64_t i = 0; i < n; i++)
			norm2 += (double)g[i] * g[i];
		write_gradients(f, o, g, n);
		assert_int_equal(optimizer_begin(o), STATUS_OK);
		assert_int_equal(optimizer_prepare(o, rate), STATUS_OK);
		run(optimizer_update_plan(o));
		assert_int_equal(optimizer_finish(o, &norm), STATUS_OK);
		const double factor = options.clip > 0 && norm > options.clip ? options.clip / (sqrt(norm2) + 1e-6) : 1;
		const double correct1 = 1 - pow(options.betas[0], step + 1),
		             correct2 = 1 - pow(options.betas[1], step + 1);
		for (int i = 0; i < model_tensor_count(m); i++) {
			const parameter_spec *p = model_parameter(m, i);
			const int64_t at = model_parameter_offset(m, i), rows = p->shape.dim[0];
			const double lr = rate * pow(options.layer_rate_decay, depth_of(m, i));
			assert_true(p->hidden == is_hidden_matrix(p));
			if (is_hidden_matrix(p)) {
				const int64_t columns = p->shape.dim[1], least = rows < columns ? rows : columns;
				const double squares =
				    scalar_muon(a.w + at, a.m + at, g + at, rows, columns, factor, &options, lr);
				assert_true(squares > 0.4 * (double)least && squares < 1.4 * (double)least);
				wide += rows<columns, tall += rows> columns;
				continue;
			}
			for (int64_t k = at; k < at + shape_count(p->shape); k++) {
				const double gk = g[k] * factor;
				a.m[k] = options.betas[0] * a.m[k] + (1 - options.betas[0]) * gk;
				a.v[k] = options.betas[1] * a.v[k] + (1 - options.betas[1]) * gk * gk;
				a.w[k] *= 1 - lr * options.weight_decay;
				a.w[k] -= lr * (a.m[k] / correct1) / (sqrt(a.v[k] / correct2) + options.eps);
			}
		}
	}
	assert_true(wide > 0 && tall > 0);
	w = fixture_weights(f, m);
	float *moments[2] = {malloc((size_t)n * sizeof *w), malloc((size_t)n * sizeof *w)};
	for (int i = 0; i < 2; i++)
		assert_int_equal(optimizer_download(o, i, moments[i]), STATUS_OK);
	for (int i = 0; i < model_tensor_count(m); i++)
		for (int64_t k = model_parameter_offset(m, i), end = k + shape_count(model_parameter(m, i)->shape);
		     k < end; k++) {
			if (!(fabs(w[k] - a.w[k]) <= 1e-5))
				fail_msg("%s: %.9g, expected %.9g", model_parameter(m, i)->name, (double)w[k], a.w[k]);
			assert_true(fabs(moments[0][k] - a.m[k]) <= 1e-6 * (1 + fabs(a.m[k])));
			assert_true(fabs(moments[1][k] - a.v[k]) <= 1e-6 * (1 + fabs(a.v[k])));
		}
	free(moments[0]), free(moments[1]), free(w), free(g), free(a.w), free(a.m), free(a.v);
	optimizer_free(o);
	model_free(m);
}

/* A model with the fixture's word table and other parameters, two of which are fixed. */
static void some_parameters(const void *config, parameter_list *list)
{
	architecture_additive.parameters(config, list);
	for (int i = 0; i < list->count; i++)
		list->items[i].fixed = i % 5 == 1;
}

static model *partly_fixed_model(const fixture *f, architecture *a)
{
	*a = architecture_additive;
	a->parameters = some_parameters;
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i}", "hidden_size", 16, "vocab_size", 259, "n_heads", 2,
	                           "n_positions", 24, "n_layer", 2);
	model *m;
	assert_int_equal(model_create(&m, a, config, 7, f->backend, NULL), STATUS_OK);
	json_decref(config);
	return m;
}

/* The root mean square of a step; also checks that the step goes against the gradient. */
static double step_size(const float *before, const float *after, const float *g, int64_t n)
{
	double squares = 0;
	for (int64_t i = 0; i < n; i++) {
		squares += pow((double)after[i] - (double)before[i], 2);
		assert_true(g[i] == 0 ? after[i] == before[i] : (after[i] < before[i]) == (g[i] > 0));
	}
	return sqrt(squares / (double)n);
}

static void normalized_steps_have_the_size_of_the_rate_and_fixed_parameters_do_not_change(void **state)
{
	const fixture *f = *state;
	architecture own;
	model *m = partly_fixed_model(f, &own);
	train_options options = fixture_options();
	options.optimizer = &optimizer_kind_normalized_sgd;
	options.weight_decay = 0;
	options.layer_rate_decay = 0.5;
	optimizer *o;
	double norm;
	assert_int_equal(optimizer_new(&o, m, &options, NULL), STATUS_OK);
	const int64_t all = model_arena_floats(m), n = model_trained_floats(m);
	float *g = calloc((size_t)all, sizeof *g), *before = fixture_weights(f, m);
	random_gradients(g, n, 1, 1e-4F);
	for (int i = 0; i < 16; i++)
		g[16 * 'x' + i] = 0; /* a row of the word table, which is the first parameter */
	write_gradients(f, o, g, n);
	assert_int_equal(optimizer_prepare(o, 0.01), STATUS_OK);
	run(optimizer_update_plan(o));
	assert_int_equal(optimizer_finish(o, &norm), STATUS_OK);
	float *after = fixture_weights(f, m);
	int fixed = 0;
	plan *backward;
	assert_int_equal(
	    model_plan(&backward, m,
	               &(forward_spec){.batch = 1, .length = 4, .train.loss = true, .train.backward = true},
	               optimizer_gradients(o), NULL, NULL),
	    STATUS_OK);
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		const int64_t at = model_parameter_offset(m, i), count = shape_count(p->shape);
		char gradient[160];
		snprintf(gradient, sizeof gradient, "grad.%s", p->name);
		assert_int_equal(graph_find(plan_graph(backward), gradient) == VALUE_NONE, p->fixed);
		fixed += p->fixed;
		assert_true(p->fixed ? at >= n : at + count <= n);
		assert_true(p->by_row == (i == 0));
		if (p->fixed)
			assert_memory_equal(before + at, after + at, (size_t)count * sizeof *after);
		for (int64_t r = 0; r < (p->fixed ? 0 : p->by_row ? shape_rows(p->shape) : 1); r++) {
			const int64_t width = p->by_row ? shape_last(p->shape) : count, row = at + r * width;
			const double size = step_size(before + row, after + row, g + row, width);
			assert_true(i == 0 && r == 'x' ? size == 0
			                               : fabs(size - 0.01 * pow(0.5, depth_of(m, i))) <= 1e-6);
		}
	}
	assert_true(fixed >= 2);
	plan_free(backward);
	free(before), free(after), free(g);
	optimizer_free(o);
	model_free(m);
}

/* Kinds that exist only here: their states have the sizes of the other layouts. */
static void build_nothing(graph *g, const optimizer_values *v, const train_options *o)
{
	(void)o;
	for (int i = 0; i < 2; i++)
		op_accumulate(g, v->state[i], op_fill(g, graph_value(g, v->state[i])->shape, 1), 1);
	op_accumulate(g, v->weights, v->gradients, -1);
}

static void a_kind_may_keep_state_per_row_or_per_tensor_and_may_lack_bf16(void **state)
{
	const fixture *f = *state;
	const optimizer_kind own = {.name = "own",
	                            .options = (const char *const[]){NULL},
	                            .states = {{"rows", STATE_PER_ROW}, {"tensors", STATE_PER_TENSOR}},
	                            .build_update = build_nothing};
	train_options options = fixture_options();
	model *m = fixture_model(f, 0);
	optimizer *o;
	int64_t rows = 0;
	options.optimizer = &own;
	assert_int_equal(optimizer_new(&o, m, &options, NULL), STATUS_OK);
	for (int i = 0; i < model_tensor_count(m); i++) {
		shape s = model_parameter(m, i)->shape;
		rows += s.rank > 1 ? s.dim[0] : 1;
	}
	assert_string_equal(optimizer_state_name(o, 0), "rows");
	assert_int_equal(optimizer_state_floats(o, 0), rows);
	assert_int_equal(optimizer_state_floats(o, 1), model_tensor_count(m));
	assert_null(optimizer_state_name(o, 2));
	optimizer_free(o);
	error err = ERROR_INIT;
	assert_int_equal(model_update_bf16_copy(m, NULL), STATUS_OK);
	assert_int_equal(optimizer_new(&o, m, &options, &err), STATUS_UNSUPPORTED);
	assert_string_equal(err.param, "precision");
	model_free(m);
}

static void every_kind_is_found_by_its_name_and_starts_from_zero(void **state)
{
	const fixture *f = *state;
	for (int i = 0; optimizer_kind_at(i); i++) {
		train_options options = fixture_options();
		options.optimizer = optimizer_kind_at(i);
		assert_ptr_equal(optimizer_kind_find(options.optimizer->name), options.optimizer);
		model *m = fixture_model(f, 0);
		optimizer *o;
		assert_int_equal(optimizer_new(&o, m, &options, NULL), STATUS_OK);
		for (int k = 0; optimizer_state_name(o, k); k++) {
			float *s = malloc((size_t)optimizer_state_floats(o, k) * sizeof *s);
			assert_int_equal(optimizer_download(o, k, s), STATUS_OK);
			for (int64_t j = 0; j < optimizer_state_floats(o, k); j++)
				assert_true(s[j] == 0);
			free(s);
		}
		optimizer_free(o);
		model_free(m);
	}
	assert_null(optimizer_kind_find("none"));
}

static void refuses_gradients_that_are_not_finite(const fixture *f, const optimizer_kind *kind)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
	train_options options = fixture_options();
	options.optimizer = kind;
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
	assert_int_equal(optimizer_download(o, 0, first), STATUS_OK);
	assert_int_equal(optimizer_download(o, 1, second), STATUS_OK);
	for (int64_t i = 0; i < n; i++)
		assert_true(first[i] == 0 && second[i] == 0);
	assert_int_equal(optimizer_updates(o), 0);
	free(before), free(after), free(g), free(first), free(second);
	optimizer_free(o);
	model_free(m);
}

static void a_gradient_that_is_not_finite_changes_nothing_and_is_not_counted(void **state)
{
	refuses_gradients_that_are_not_finite(*state, &optimizer_kind_adamw);
	refuses_gradients_that_are_not_finite(*state, &optimizer_kind_muon);
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
	for (int step = 0; step < 2; step++) { /* the second step shows that begin discards the first one */
		double norm;
		assert_int_equal(optimizer_begin(o), STATUS_OK);
		for (int k = 1; k <= 4; k++) {
			g[0] = (float)k; /* mean 2.5 */
			write_gradients(f, o, g, n);
			run(optimizer_accumulate_plan(o));
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

static void moments_are_restored_as_they_were_set(void **state)
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
	optimizer_set_updates(o, 17);
	assert_int_equal(optimizer_upload(o, 0, a), STATUS_OK);
	assert_int_equal(optimizer_upload(o, 1, b), STATUS_OK);
	assert_int_equal(optimizer_download(o, 0, x), STATUS_OK);
	assert_int_equal(optimizer_download(o, 1, y), STATUS_OK);
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
	    cmocka_unit_test(adamw_of_transformers_adds_eps_to_the_uncorrected_root_and_decays_last),
	    cmocka_unit_test(sgd_follows_its_scalar_reference_clipped_and_normalized),
	    cmocka_unit_test(vectors_do_not_decay_when_only_matrices_do),
	    cmocka_unit_test(lower_layers_learn_at_lower_rates),
	    cmocka_unit_test(muon_orthogonalises_the_steps_of_hidden_matrices_alone),
	    cmocka_unit_test(normalized_steps_have_the_size_of_the_rate_and_fixed_parameters_do_not_change),
	    cmocka_unit_test(a_kind_may_keep_state_per_row_or_per_tensor_and_may_lack_bf16),
	    cmocka_unit_test(every_kind_is_found_by_its_name_and_starts_from_zero),
	    cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing_and_is_not_counted),
	    cmocka_unit_test(gathered_gradients_are_averaged),
	    cmocka_unit_test(moments_are_restored_as_they_were_set),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
