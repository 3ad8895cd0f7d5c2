/* 3Lin, profile S, under its own tensor names (trilinear_set.h).
 *
 * tokens_frag{0,1,…} [n]: one text each, whose last token is a target only. A text has n nodes: the start's node,
 * followed by those of its tokens. The nodes of all texts are numbered one after the other, M in all; every node except
 * the start's has a target. Values:
 *
 *   s{l}, f [M,D]; L{l}.{n,qk,qv,k,v,u} [M,·], L{l}.Z [M]; logit2, prob [M,V]; lnp_target [targets], score [1]
 *   L{l}.p                          if the set has it
 *   d.NAME                          gradients of the sum of lnp_target
 *   {w8,w4,w2,w8v8,w2v8}.{s{l},prob,score}
 *                                   if the set has them: with quantised weights and vectors
 *   {w8v8,w2v8}.L{l}.{n,qk,qv,k,v}_codes [M,·], .qv_step [M]
 *                                   for a layer whose step is in the set
 *   q.NAME, step.NAME [1]           if the set has them beside weights
 *   label_arr, label_ptr, target_node, target_id, {narrow,wide}_span_{start,finish,ptr}
 *                                   label_results.h
 *
 * From prompt [n], taking the token of the largest probability each time:
 *
 *   full.ids [m], full.prob [m-n,V], full.all_prob_stream [m,V]
 *   trunc.ids [m], trunc.prob [m-n,V]
 *                                   each token is computed from the last tokens only: "truncated" of them in the
 *                                   config, by default ten
 *
 * trilinear_start.h computes the values of the start's node. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tests/golden/trilinear_start.h"
#include "engine/model/feed.h"
#include "engine/tensor/ops/quantize.h"

enum { NAME_BYTES = 64, TRUNCATED = 10 };

static bool recognises(const golden *g)
{
	return trilinear_set_has(g, "");
}

static bool is_gradient(const char *name)
{
	return strncmp(name, "d.", 2) == 0;
}

/* --- running --------------------------------------------------------------------------------------------------- */

/* One output of the forward for every token: where its rows go. */
typedef struct row_output {
	value v;
	int64_t width;
	float *values; /* [nodes, width] */
} row_output;

typedef struct run {
	const trilinear_texts *t;
	plan *plan;
	int64_t chunk;
	bool recurrent;
	row_output *outputs;
	int count;
} run;

static status add_output(run *r, const char *ours, float **values, error *err, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The output of that name under the name of the set. */
static status add_output(run *r, const char *ours, float **values, error *err, const char *format, ...)
{
	char name[NAME_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	const graph *made = plan_graph(r->plan);
	value v = graph_find(made, ours);
	const int64_t width = shape_last(graph_value(made, v)->shape);
	/* A head's number is no row. */
	const extent e =
	    strcmp(name + strlen(name) - 2, ".Z") == 0 && width == 1 ? EXTENT(r->t->nodes) : EXTENT(r->t->nodes, width);
	TRY(golden_result(r->t->g, e, values, err, "%s", name));
	r->outputs[r->count++] = (row_output){v, width, *values};
	return STATUS_OK;
}

static status write_chunk(const run *r, int64_t begin)
{
	const trilinear_texts *t = r->t;
	const int64_t n = t->longest - begin < r->chunk ? t->longest - begin : r->chunk;
	void *memory;
	error ignored = ERROR_INIT;
	TRY(golden_memory(t->g, 2 * t->texts * r->chunk, sizeof(int32_t), &memory, &ignored));
	int32_t *ids = memory, *labels = ids + t->texts * r->chunk;
	for (int64_t b = 0; b < t->texts; b++)
		for (int64_t i = 0; i < r->chunk; i++) {
			const int64_t from = b * t->longest + begin + i, to = b * r->chunk + i;
			ids[to] = i < n ? t->ids[from] : 0;
			labels[to] = i < n ? t->labels[from] : -1;
		}
	TRY(feed_write(r->plan, PORT_TOKENS, ids));
	TRY(feed_write(r->plan, PORT_LABELS, labels));
	TRY(feed_positions(r->plan, model_dimensions(t->m), POSITION_ERROR, begin));
	return r->recurrent ? feed_step(r->plan, begin, n) : STATUS_OK;
}

/* The chunk's rows of an output, to the nodes of their tokens. */
static status read_output(const run *r, const row_output *o, int64_t begin)
{
	const trilinear_texts *t = r->t;
	void *memory;
	error ignored = ERROR_INIT;
	TRY(golden_memory(t->g, t->texts * r->chunk * o->width, sizeof(float), &memory, &ignored));
	const float *rows = memory;
	TRY(plan_read(r->plan, o->v, memory));
	for (int64_t b = 0; b < t->texts; b++)
		for (int64_t i = 0; i < r->chunk && begin + i < t->length[b]; i++)
			memcpy(o->values + (t->first[b] + 1 + begin + i) * o->width,
			       rows + (b * r->chunk + i) * o->width, (size_t)o->width * sizeof(float));
	return STATUS_OK;
}

static status run_chunks(const run *r, error *err)
{
	status s = STATUS_OK;
	for (int64_t begin = 0; begin < r->t->longest && s == STATUS_OK; begin += r->chunk) {
		s = write_chunk(r, begin);
		if (s == STATUS_OK)
			s = plan_run(r->plan);
		for (int i = 0; i < r->count && s == STATUS_OK; i++)
			s = read_output(r, &r->outputs[i], begin);
	}
	return s == STATUS_OK ? s : error_set(err, s, NULL, "the run failed on %s", r->t->g->backend->name);
}

/* Parallel, or with --recurrent in chunks. */
static status make_run(const trilinear_texts *t, bool inside, bool backward, run *r, error *err)
{
	const evaluation_spec *asked = &t->g->options->spec;
	const int64_t chunk = asked->chunk ? asked->chunk : 1;
	void *outputs;
	*r = (run){.t = t, .chunk = t->longest, .recurrent = asked->recurrent};
	if (r->recurrent && chunk < r->chunk)
		r->chunk = chunk;
	TRY(golden_memory(t->g, 16 * (model_dimensions(t->m)->layers + 1), sizeof *r->outputs, &outputs, err));
	r->outputs = outputs;
	forward_spec spec = {.phase = r->recurrent ? PHASE_STEP : PHASE_SCORE,
	                     .batch = t->texts,
	                     .length = r->chunk,
	                     .slots = r->recurrent ? t->texts : 0,
	                     .train.loss = true,
	                     .train.backward = backward,
	                     .out.activations = inside,
	                     .out.logits = LOGITS_ALL};
	return golden_forward(t->g, t->m, &spec, &r->plan, err);
}

/* --- values ---------------------------------------------------------------------------------------------------- */

/* Rows of natural logits in place to exponents of 2, and their probabilities. */
static void finish_rows(int64_t rows, int64_t width, float *logits, float *prob)
{
	for (int64_t r = 0; r < rows; r++) {
		float *x = logits + r * width;
		double top = -INFINITY, sum = 0;
		for (int64_t v = 0; v < width; v++)
			top = fmax(top, (double)x[v]);
		for (int64_t v = 0; v < width; v++)
			sum += exp((double)x[v] - top);
		for (int64_t v = 0; v < width; v++) {
			prob[r * width + v] = (float)(exp((double)x[v] - top) / sum);
			x[v] = (float)((double)x[v] * M_LOG2E);
		}
	}
}

static status add_targets(const trilinear_texts *t, const float *prob, const char *prefix, error *err)
{
	const int64_t width = model_dimensions(t->m)->outputs;
	float *lnp, *score;
	double sum = 0;
	int64_t n = 0;
	void *memory;
	TRY(golden_memory(t->g, t->targets, sizeof(float), &memory, err));
	lnp = memory;
	if (!prefix[0])
		TRY(golden_result(t->g, EXTENT(t->targets), &lnp, err, "lnp_target"));
	TRY(golden_result(t->g, EXTENT(1), &score, err, "%sscore", prefix));
	for (int64_t b = 0; b < t->texts; b++)
		for (int64_t i = 0; i < t->length[b]; i++) {
			const float *row = prob + (t->first[b] + 1 + i) * width;
			lnp[n] = (float)log((double)row[t->labels[b * t->longest + i]]);
			sum += (double)lnp[n++];
		}
	*score = (float)(sum / (double)t->targets);
	return STATUS_OK;
}

static status add_states(run *r, const char *prefix, error *err)
{
	const trilinear_texts *t = r->t;
	const trilinear_names *names = &t->names;
	const int64_t d = model_dimensions(t->m)->hidden;
	void *start;
	TRY(golden_memory(t->g, d, sizeof(double), &start, err));
	TRY(trilinear_start_state(t, start, err));
	for (int k = 0; k <= names->attentions; k++) {
		char ours[NAME_BYTES] = "state";
		const bool last = k == names->attentions;
		float *values;
		if (!last && names->index[k] > 0)
			continue;
		if (!last)
			snprintf(ours, sizeof ours, "layers.%d.state", k);
		TRY(add_output(r, ours, &values, err, "%ss%d", prefix, last ? names->layers : names->layer[k]));
		for (int64_t b = 0; b < t->texts; b++)
			for (int64_t i = 0; i < d; i++)
				values[t->first[b] * d + i] = (float)((double *)start)[i];
	}
	return STATUS_OK;
}

/* Vectors that attention reads for each node. */
static const struct {
	const char *ours, *theirs;
	bool normal;
} vectors[] = {{"query", "qk", true}, {"key", "qv", false}, {"gate", "k", true}, {"value", "v", true}};
enum { VECTORS = sizeof vectors / sizeof *vectors };

/* Vector number i of attention k, as the result `name`. */
static status add_vector(run *r, int k, int i, const char *name, float **values, error *err)
{
	char ours[NAME_BYTES], matrix[NAME_BYTES];
	snprintf(ours, sizeof ours, "layers.%d.%s", k, vectors[i].ours);
	snprintf(matrix, sizeof matrix, "attentions.%d.%s.weight", k, vectors[i].ours);
	TRY(add_output(r, ours, values, err, "%s", name));
	return trilinear_start_product(r->t, matrix, vectors[i].normal, *values, err);
}

static status add_normed(run *r, int k, const char *name, float **values, error *err)
{
	char ours[NAME_BYTES];
	snprintf(ours, sizeof ours, "layers.%d.normed", k);
	TRY(add_output(r, ours, values, err, "%s", name));
	return trilinear_start_normed(r->t, *values, err);
}

/* Add the activations inside attention k. */
static status add_attention(run *r, int k, float **normalizers, error *err)
{
	char theirs[TRILINEAR_SET_NAME_BYTES], name[2 * TRILINEAR_SET_NAME_BYTES], ours[NAME_BYTES];
	float *values;
	trilinear_set_attention(r->t, k, theirs);
	if (r->t->names.index[k] == 0) {
		snprintf(name, sizeof name, "%s.n", theirs);
		TRY(add_normed(r, k, name, &values, err));
	}
	for (int i = 0; i < VECTORS; i++) {
		snprintf(name, sizeof name, "%s.%s", theirs, vectors[i].theirs);
		TRY(add_vector(r, k, i, name, &values, err));
	}
	snprintf(ours, sizeof ours, "layers.%d.pooled", k);
	TRY(add_output(r, ours, &values, err, "%s.u", theirs));
	snprintf(ours, sizeof ours, "layers.%d.products", k);
	if (golden_find(r->t->g, "%s.p", theirs))
		TRY(add_output(r, ours, &values, err, "%s.p", theirs));
	snprintf(ours, sizeof ours, "layers.%d.log_normalizer", k);
	return add_output(r, ours, normalizers, err, "%s.Z", theirs);
}

static status add_gradients(const run *r, error *err)
{
	const graph *made = plan_graph(r->plan);
	for (int i = 0; i < model_tensor_count(r->t->m); i++) {
		const parameter_spec *p = model_parameter(r->t->m, i);
		value v = graph_gradient(made, graph_find(made, p->name));
		void *values;
		if (p->fixed)
			continue;
		TRY(golden_memory(r->t->g, shape_count(p->shape), sizeof(float), &values, err));
		TRY(plan_read(r->plan, v, values));
		TRY(trilinear_set_result(r->t, p, values, -(double)r->t->targets, "d.", err));
	}
	return STATUS_OK;
}

/* Everything of the model as it is. */
static status evaluate_whole(const trilinear_texts *t, error *err)
{
	const model_dims *d = model_dimensions(t->m);
	const bool backward = t->g->options->spec.gradients;
	run r;
	float *logits, *prob, *normed;
	void *normalizers;
	TRY(make_run(t, true, backward, &r, err));
	TRY(golden_memory(t->g, d->layers, sizeof(float *), &normalizers, err));
	float **z = normalizers;
	TRY(add_states(&r, "", err));
	for (int l = 0; l < d->layers; l++)
		TRY(add_attention(&r, l, &z[l], err));
	TRY(add_output(&r, "normed", &normed, err, "f"));
	TRY(add_output(&r, "logits", &logits, err, "logit2"));
	TRY(golden_result(t->g, EXTENT(t->nodes, d->outputs), &prob, err, "prob"));
	TRY(run_chunks(&r, err));
	TRY(trilinear_start_normed(t, normed, err));
	TRY(trilinear_start_logits(t, logits, err));
	for (int l = 0; l < d->layers; l++)
		for (int64_t i = 0; i < t->nodes * d->heads; i++)
			z[l][i] = expf(z[l][i]);
	finish_rows(t->nodes, d->outputs, logits, prob);
	TRY(add_targets(t, prob, "", err));
	return backward ? add_gradients(&r, err) : STATUS_OK;
}

/* --- quantised forwards ------------------------------------------------------------------------------------------ */

/* The codes of attention k's inputs: n and the vectors. */
typedef struct vector_codes {
	float *normed, *rows[VECTORS], *key_step; /* NULL: the set has none of attention k */
} vector_codes;

static status add_codes(run *r, const char *prefix, int k, vector_codes *out, error *err)
{
	const trilinear_texts *t = r->t;
	char theirs[TRILINEAR_SET_NAME_BYTES], name[3 * TRILINEAR_SET_NAME_BYTES];
	trilinear_set_attention(t, k, theirs);
	const golden_tensor *step = golden_find(t->g, "%s%s.qv_step", prefix, theirs);
	*out = (vector_codes){0};
	if (t->vector_bits != 8 || !step || t->names.index[k] > 0)
		return STATUS_OK;
	snprintf(name, sizeof name, "%s%s.n_codes", prefix, theirs);
	TRY(add_normed(r, k, name, &out->normed, err));
	for (int i = 0; i < VECTORS; i++) {
		snprintf(name, sizeof name, "%s%s.%s_codes", prefix, theirs, vectors[i].theirs);
		TRY(add_vector(r, k, i, name, &out->rows[i], err));
	}
	const extent e = step->entry->rank == 1 ? EXTENT(t->nodes) : EXTENT(t->nodes, 1);
	return golden_result(t->g, e, &out->key_step, err, "%s%s.qv_step", prefix, theirs);
}

/* Vectors into codes, in place. */
static status finish_codes(const trilinear_texts *t, int k, const vector_codes *c, error *err)
{
	const model_dims *d = model_dimensions(t->m);
	char key[NAME_BYTES];
	snprintf(key, sizeof key, "attentions.%d.key.weight", k);
	TRY(trilinear_start_key_steps(t, key, c->normed, c->key_step, err));
	for (int64_t i = 0; i < t->nodes * d->hidden; i++)
		c->normed[i] = rintf(c->normed[i] / QUANTIZE_FIXED_STEP);
	for (int v = 0; v < VECTORS; v++) {
		int64_t width;
		TRY(golden_config_integer(t->g, v < 2 ? "Q" : "T", INT32_MAX, &width, err));
		for (int64_t i = 0; i < t->nodes * width; i++) {
			const float step = vectors[v].normal ? QUANTIZE_FIXED_STEP : c->key_step[i / width];
			c->rows[v][i] = step > 0 ? rintf(c->rows[v][i] / step) : 0;
		}
	}
	return STATUS_OK;
}

/* Add the values that the set has for a model with this number of bits. */
static status evaluate_quantized(trilinear_texts *t, const char *prefix, int weight_bits, int vector_bits, error *err)
{
	run r;
	float *logits, *prob;
	void *memory;
	TRY(trilinear_set_model(t, "", weight_bits, vector_bits, err));
	const int64_t width = model_dimensions(t->m)->outputs;
	TRY(make_run(t, true, false, &r, err));
	TRY(add_states(&r, prefix, err));
	TRY(golden_memory(t->g, t->names.attentions, sizeof(vector_codes), &memory, err));
	vector_codes *codes = memory;
	for (int k = 0; k < t->names.attentions; k++)
		TRY(add_codes(&r, prefix, k, &codes[k], err));
	TRY(golden_result(t->g, EXTENT(t->nodes, width), &prob, err, "%sprob", prefix));
	TRY(golden_memory(t->g, t->nodes * width, sizeof(float), &memory, err));
	logits = memory;
	r.outputs[r.count++] = (row_output){port_find(plan_graph(r.plan), PORT_LOGITS), width, logits};
	TRY(run_chunks(&r, err));
	for (int k = 0; k < t->names.attentions; k++)
		if (codes[k].normed)
			TRY(finish_codes(t, k, &codes[k], err));
	TRY(trilinear_start_logits(t, logits, err));
	finish_rows(t->nodes, width, logits, prob);
	return add_targets(t, prob, prefix, err);
}

static status evaluate_all_quantized(trilinear_texts *t, error *err)
{
	static const struct {
		const char *prefix;
		int weights, vectors;
	} forms[] = {{"w8.", 8, 32}, {"w4.", 4, 32}, {"w2.", 2, 32}, {"w8v8.", 8, 8}, {"w2v8.", 2, 8}};
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
		if (golden_find(t->g, "%sprob", forms[i].prefix))
			TRY(evaluate_quantized(t, forms[i].prefix, forms[i].weights, forms[i].vectors, err));
	return STATUS_OK;
}

/* --- greedy decoding -----------------------------------------------------------------------------------------------
 */

/* Read one more token of a session and return the natural logits after it. */
static status step(plan *p, const model_dims *d, int64_t position, int32_t token, float *logits, error *err)
{
	status s = feed_write(p, PORT_TOKENS, &token);
	if (s == STATUS_OK)
		s = feed_positions(p, d, POSITION_ERROR, position);
	if (s == STATUS_OK)
		s = feed_step(p, position, 1);
	if (s == STATUS_OK)
		s = plan_run(p);
	if (s == STATUS_OK)
		s = plan_read(p, port_find(plan_graph(p), PORT_LOGITS), logits);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "a step failed");
}

static int32_t largest(const float *row, int64_t n)
{
	int32_t best = 0;
	for (int64_t v = 1; v < n; v++)
		best = row[v] > row[best] ? (int32_t)v : best;
	return best;
}

typedef struct generation {
	trilinear_texts *t;
	plan *plan;
	int64_t prompt, count; /* tokens given; and in all */
	const int32_t *given;
	float *logits; /* [count, V] */
} generation;

/* All ids, each from a session that has read all before it; the logits of every node. */
static status generate_whole(const generation *x, float *ids, error *err)
{
	const model_dims *d = model_dimensions(x->t->m);
	const int64_t width = d->outputs;
	TRY(trilinear_start_logits(x->t, x->logits, err));
	for (int64_t i = 0; i < x->count; i++) {
		const int32_t token = i < x->prompt ? x->given[i] : largest(x->logits + i * width, width);
		ids[i] = (float)token;
		if (i + 1 < x->count)
			TRY(step(x->plan, d, i, token, x->logits + (i + 1) * width, err));
	}
	return STATUS_OK;
}

/* Generate all ids, each from a session that has read only the last `longest` tokens. */
static status generate_truncated(const generation *x, int64_t longest, float *ids, error *err)
{
	const model_dims *d = model_dimensions(x->t->m);
	for (int64_t i = 0; i < x->count; i++) {
		float *logits = x->logits + i * d->outputs;
		const int64_t first = i > longest ? i - longest : 0;
		for (int64_t k = first; k < i && i >= x->prompt; k++)
			TRY(step(x->plan, d, k - first, (int32_t)ids[k], logits, err));
		ids[i] = (float)(i < x->prompt ? x->given[i] : largest(logits, d->outputs));
	}
	return STATUS_OK;
}

/* The generated tokens' probabilities, and ids: results of `name`. */
static status add_generated(const generation *x, const char *name, int64_t longest, error *err)
{
	golden *g = x->t->g;
	const int64_t width = model_dimensions(x->t->m)->outputs;
	float *ids, *prob, *all;
	void *memory;
	TRY(golden_result(g, EXTENT(x->count), &ids, err, "%s.ids", name));
	TRY(golden_result(g, EXTENT(x->count - x->prompt, width), &prob, err, "%s.prob", name));
	TRY(golden_memory(g, x->count * width, sizeof(float), &memory, err));
	all = memory;
	if (!longest)
		TRY(golden_result(g, EXTENT(x->count, width), &all, err, "%s.all_prob_stream", name));
	TRY(longest ? generate_truncated(x, longest, ids, err) : generate_whole(x, ids, err));
	finish_rows(x->count, width, x->logits, all);
	memcpy(prob, all + x->prompt * width, (size_t)((x->count - x->prompt) * width) * sizeof *prob);
	return STATUS_OK;
}

static status evaluate_generation(golden *g, model *m, error *err)
{
	trilinear_texts start = {.g = g, .m = m, .texts = 1, .nodes = 1}; /* one start's node */
	generation x = {.t = &start};
	const model_dims *d = model_dimensions(m);
	const forward_spec spec = {.phase = PHASE_STEP, .batch = 1, .length = 1, .slots = 1, .out.logits = LOGITS_LAST};
	extent prompt, whole;
	void *memory;
	TRY(golden_rank(g, "prompt", 1, &prompt, err));
	TRY(golden_rank(g, "full.ids", 1, &whole, err));
	x.prompt = prompt.dim[0];
	x.count = whole.dim[0];
	if (x.count <= x.prompt || x.count > TRILINEAR_SET_MAX_LENGTH)
		return error_set(err, STATUS_INVALID, "full.ids",
		                 "tensor \"full.ids\" must go on from the prompt, to at most %d tokens",
		                 TRILINEAR_SET_MAX_LENGTH);
	TRY(golden_integers(g, "prompt", prompt, 0, (int32_t)d->inputs - 1, &x.given, err));
	TRY(golden_memory(g, x.count * d->outputs, sizeof(float), &memory, err));
	x.logits = memory;
	TRY(golden_forward(g, m, &spec, &x.plan, err));
	TRY(add_generated(&x, "full", 0, err));
	int64_t longest = TRUNCATED;
	if (json_object_get(g->config, "truncated"))
		TRY(golden_config_integer(g, "truncated", TRILINEAR_SET_MAX_LENGTH, &longest, err));
	return golden_find(g, "trunc.ids") ? add_generated(&x, "trunc", longest, err) : STATUS_OK;
}

/* --- all of it ---------------------------------------------------------------------------------------------------- */

static status evaluate(golden *g, error *err)
{
	trilinear_texts t = {.g = g};
	const bool weights = golden_find(g, "E"); /* and not their codes alone */
	TRY(trilinear_set_model(&t, "", 32, 32, err));
	if (golden_find(g, "tokens_frag0")) {
		TRY(trilinear_set_texts(&t, err));
		TRY(trilinear_set_graph(&t, err));
		if (weights)
			TRY(evaluate_whole(&t, err));
	}
	TRY(trilinear_set_codes(&t, err));
	if (golden_find(g, "prompt"))
		TRY(evaluate_generation(g, t.m, err));
	return t.texts ? evaluate_all_quantized(&t, err) : STATUS_OK;
}

const golden_reader golden_reader_trilinear = {
    .source = "3Lin",
    .recurrent = true,
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = is_gradient,
};
