/* Cirilla's encoder-decoder for filling in blanks, under its own tensor names.
 *
 * Reads enc_in [B,S]; dec_in, target [B,N]; enc_mask, cross_mask, dec_self_mask [B,N,S], which allow the keys before
 * the padding and up to the query. Values:
 *
 *   enc_out, dec_out, logits, loss (smoothed), loss_sum_tokens (labels)
 *   enc.x{l}, dec.x{l}              the input of block l; the last one is the output of the last block
 *   enc.att{l}, dec.selfatt{l}, dec.cross{l}, enc.prob0, pe_exact
 *   grad.NAME                       also NAME, if a file of gradients uses the weights' names
 *   {exp_f32,pow_f32,pow_f64}.{enc_out,logits,loss}, pe_{exp,pow}_f32
 *                                   with other position tables
 *   {pre,post}.{std_unbiased,variance}.{enc_out,logits,loss,NAME,grad.NAME,d.NAME}
 *                                   with other norms
 *   hide_mask.{enc_out,logits,loss,enc.att{l},…}
 *                                   with the masks hide_mask.{enc_mask,cross_mask,dec_self_mask}; a query that sees
 *                                   no key gets zeros
 *   loss [T], grad_norm [T], w{t}.NAME
 *                                   if the set has any w{t}.NAME: weights after t steps of Adam (training.h)
 *   ex{k}.greedy_ids, ex{k}.greedy_logits
 *                                   each greedy step on ex{k}.enc_in [S]
 *   ex{k}.enc_out, ex{k}.dec_out, ex{k}.cache.{self,cross}{l}.{k,v}
 *                                   the keys and values of the decoder's attentions
 *   ex{k}.beam3_probsum_ids_cross_unmasked
 *                                   three beams, ranked by sums of probabilities
 *
 * Names that end in _cross_unmasked attend to the padding of the source, too, as Cirilla's own decoding does. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/golden/cirilla_set.h"
#include "tests/golden/training.h"

enum { NAME_BYTES = 160, MAX_EXAMPLES = 1 << 10, BEAMS = 3 };
#define UNMASKED "_cross_unmasked"

static bool recognises(const golden *g)
{
	return golden_find(g, "input_emb_enc.positional_embeddings.weight");
}

/* --- forwards ---------------------------------------------------------------------------------------------- */

static status run(golden *g, const cirilla_set *c, forward_spec spec, plan **out, error *err)
{
	TRY(cirilla_set_plan(g, c, spec, NULL, out, err));
	return plan_run(*out);
}

/* The output `from` of a plan, if there is one, under the name PREFIX NAME. */
static status add(golden *g, plan *p, const char *from, const char *prefix, const char *name, error *err)
{
	value v = graph_find(plan_graph(p), from);
	if (v == VALUE_NONE)
		return STATUS_OK;
	shape s = graph_value(plan_graph(p), v)->shape;
	return golden_output(g, p, v, s.rank ? extent_of(s) : EXTENT(1), err, "%s%s", prefix, name);
}

static status add_gradients(golden *g, const cirilla_set *c, plan *p, error *err)
{
	for (int i = 0; i < model_tensor_count(c->model); i++) {
		const parameter_spec *spec = model_parameter(c->model, i);
		value gradient = graph_gradient(plan_graph(p), graph_find(plan_graph(p), spec->name));
		extent e = extent_of(spec->shape);
		TRY(golden_output(g, p, gradient, e, err, "grad.%s", spec->alias));
		if (golden_gradient_file(g, spec->alias))
			TRY(golden_output(g, p, gradient, e, err, "%s", spec->alias));
	}
	return STATUS_OK;
}

/* Gradients that the set has under the prefix. */
static status add_some_gradients(golden *g, const cirilla_set *c, plan *p, const char *prefix, error *err)
{
	static const char *const forms[] = {"", "grad.", "d."};
	for (int i = 0; i < model_tensor_count(c->model); i++) {
		const parameter_spec *spec = model_parameter(c->model, i);
		value gradient = graph_gradient(plan_graph(p), graph_find(plan_graph(p), spec->name));
		for (int f = 0; f < 3; f++)
			if (golden_find(g, "%s%s%s", prefix, forms[f], spec->alias))
				TRY(golden_output(g, p, gradient, extent_of(spec->shape), err, "%s%s%s", prefix,
				                  forms[f], spec->alias));
	}
	return STATUS_OK;
}

static status read_smoothing(golden *g, float *out, error *err)
{
	double smoothing;
	TRY(golden_config_number(g, "label_smoothing", 0, &smoothing, err));
	*out = (float)smoothing;
	return STATUS_OK;
}

/* enc_out, logits and loss under a prefix. */
static status add_results(golden *g, const cirilla_set *c, const char *prefix, bool gradients, error *err)
{
	plan *p, *inside;
	forward_spec spec = {.out.logits = LOGITS_ALL, .train.loss = true, .train.backward = gradients};
	TRY(read_smoothing(g, &spec.train.smoothing, err));
	TRY(run(g, c, spec, &p, err));
	TRY(add(g, p, port_name(PORT_LOGITS), prefix, "logits", err));
	if (prefix[0] || !training_is_asked(g)) /* or else its first step has that loss */
		TRY(add(g, p, port_name(PORT_LOSS), prefix, "loss", err));
	if (!prefix[0])
		TRY(add(g, p, port_name(PORT_COUNT), prefix, "loss_sum_tokens", err));
	if (gradients)
		TRY(prefix[0] ? add_some_gradients(g, c, p, prefix, err) : add_gradients(g, c, p, err));
	TRY(run(g, c, (forward_spec){.out.activations = true}, &inside, err));
	return add(g, inside, port_name(PORT_ENCODINGS), prefix, "enc_out", err);
}

/* --- inner activations ----------------------------------------------------------------------------------------- */

/* Block by block; `each` entries a block, the first of self-attention, the second of three of attention to a source;
 * names begin with `under`. */
static status add_blocks(golden *g, plan *p, const stack *s, const char *side, const char *self, const char *under,
                         error *err)
{
	char from[NAME_BYTES], name[NAME_BYTES];
	const char *prefix = s->logits ? "" : s->prefix;
	int depth = (int)s->options.depth, each = s->options.n_entries / depth;
	for (int l = 0; l < depth; l++) {
		snprintf(from, sizeof from, "%shidden.%d", prefix, l);
		snprintf(name, sizeof name, "%s.x%d", side, l);
		TRY(add(g, p, from, under, name, err));
		snprintf(from, sizeof from, "%sbranch.%d", prefix, each * l);
		snprintf(name, sizeof name, "%s.%s%d", side, self, l);
		TRY(add(g, p, from, under, name, err));
		snprintf(from, sizeof from, "%sbranch.%d", prefix, each * l + 1);
		snprintf(name, sizeof name, "%s.cross%d", side, l);
		if (each == 3)
			TRY(add(g, p, from, under, name, err));
	}
	snprintf(from, sizeof from, "%slast", prefix);
	snprintf(name, sizeof name, "%s.x%d", side, depth);
	return add(g, p, from, under, name, err);
}

static status add_inside(golden *g, const cirilla_set *c, const char *prefix, error *err)
{
	plan *p;
	TRY(run(g, c, (forward_spec){.out.activations = true}, &p, err));
	TRY(add(g, p, "embeddings", prefix, "dec_out", err));
	TRY(add(g, p, "encoder.attn.0", prefix, "enc.prob0", err));
	TRY(add_blocks(g, p, &c->config->encoder, "enc", "att", prefix, err));
	return add_blocks(g, p, &c->config->decoder, "dec", "selfatt", prefix, err);
}

static status add_table(golden *g, const cirilla_set *c, sinusoids_form form, const char *name, error *err)
{
	int64_t n = c->config->decoder.options.max_seq_len;
	sinusoids_params params = {model_dimensions(c->model)->hidden, form};
	graph *made = graph_new();
	plan *p;
	void *positions;
	TRY(golden_memory(g, n, sizeof(int32_t), &positions, err));
	for (int64_t i = 0; i < n; i++)
		((int32_t *)positions)[i] = (int32_t)i;
	value in = graph_input(made, "positions", DTYPE_I32, SHAPE1(n)), y = op_sinusoids(made, in, params);
	graph_output(made, y, "y");
	TRY(golden_plan(g, made, NULL, &p, err));
	TRY(plan_write(p, in, positions));
	TRY(plan_run(p));
	return golden_output(g, p, y, EXTENT(n, params.width), err, "%s", name);
}

/* With masks of the set's own. */
static status add_hidden(golden *g, const cirilla_set *of, const char *prefix, error *err)
{
	cirilla_set c = *of;
	bool any;
	TRY(cirilla_set_visible(g, prefix, &c, &any, err));
	if (!any)
		return STATUS_OK;
	TRY(add_results(g, &c, prefix, g->options->spec.gradients, err));
	return add_inside(g, &c, prefix, err);
}

static status add_forward(golden *g, cirilla_set *c, error *err)
{
	static const struct {
		const char *prefix, *form;
	} tables[] = {{"exp_f32.", "exp"}, {"pow_f32.", "pow"}, {"pow_f64.", "exact"}};
	static const char *const norms[] = {"pre", "post"}, *const kinds[] = {"std_unbiased", "variance"};
	TRY(cirilla_set_read(g, c, err));
	TRY(add_results(g, c, "", g->options->spec.gradients, err));
	TRY(add_inside(g, c, "", err));
	TRY(add_hidden(g, c, "hide_mask.", err));
	TRY(add_table(g, c, SINUSOIDS_EXACT, "pe_exact", err));
	TRY(add_table(g, c, SINUSOIDS_EXP, "pe_exp_f32", err));
	TRY(add_table(g, c, SINUSOIDS_POW, "pe_pow_f32", err));
	for (int i = 0; i < 3; i++) {
		cirilla_set other = *c;
		if (!golden_find(g, "%slogits", tables[i].prefix))
			continue;
		TRY(cirilla_set_model(g, tables[i].form, NULL, NULL, &other, err));
		TRY(add_results(g, &other, tables[i].prefix, false, err));
	}
	for (int i = 0; i < 4; i++) {
		cirilla_set other = *c;
		char prefix[NAME_BYTES];
		snprintf(prefix, sizeof prefix, "%s.%s.", norms[i / 2], kinds[i % 2]);
		if (!golden_find(g, "%slogits", prefix))
			continue;
		TRY(cirilla_set_model(g, "exact", norms[i / 2], kinds[i % 2], &other, err));
		TRY(add_results(g, &other, prefix, g->options->spec.gradients, err));
	}
	return STATUS_OK;
}

/* --- decoding ------------------------------------------------------------------------------------------------ */

/* Beams of one text: tokens from the one that begins, and the last forward. */
typedef struct decoding {
	cirilla_set in;
	int64_t room, vocabulary, beams, used;
	int32_t *tokens; /* [BEAMS, room] */
	double score[BEAMS];
	float *logits; /* [BEAMS, room, V] */
	plan *plan;    /* its inputs are written by the next step */
} decoding;

static status begin_decoding(golden *g, const cirilla_set *of, const char *example, bool unmasked, decoding *d,
                             error *err)
{
	char name[NAME_BYTES];
	extent e;
	void *tokens, *logits, *source;
	const int32_t *enc_in;
	snprintf(name, sizeof name, "%s.enc_in", example);
	TRY(golden_rank(g, name, 1, &e, err));
	TRY(golden_integers(g, name, e, 0, (int32_t)model_dimensions(of->model)->inputs - 1, &enc_in, err));
	*d = (decoding){.in = *of,
	                .room = of->config->decoder.options.max_seq_len,
	                .vocabulary = model_dimensions(of->model)->outputs,
	                .beams = 1,
	                .used = 1};
	TRY(golden_memory(g, BEAMS * d->room, sizeof(int32_t), &tokens, err));
	TRY(golden_memory(g, BEAMS * d->room * d->vocabulary, sizeof(float), &logits, err));
	TRY(golden_memory(g, BEAMS * e.dim[0], sizeof(int32_t), &source, err));
	for (int i = 0; i < BEAMS; i++)
		memcpy((int32_t *)source + i * e.dim[0], enc_in, (size_t)e.dim[0] * sizeof *enc_in);
	d->tokens = tokens;
	d->logits = logits;
	d->tokens[0] = (int32_t)of->ids.begin;
	d->in.batch = BEAMS;
	d->in.length = d->room;
	d->in.source = e.dim[0];
	d->in.enc_in = source;
	d->in.dec_in = d->tokens;
	d->in.cross_unmasked = unmasked;
	TRY(cirilla_set_masks(g, &d->in, err));
	return run(g, &d->in, (forward_spec){.out.logits = LOGITS_ALL}, &d->plan, err);
}

/* Compute the logits after the tokens so far; later rows hold values that are not read. */
static status step(decoding *d)
{
	TRY(feed_write(d->plan, PORT_TOKENS, d->tokens));
	TRY(plan_run(d->plan));
	return plan_read(d->plan, port_find(plan_graph(d->plan), PORT_LOGITS), d->logits);
}

static const float *logits_of(const decoding *d, int64_t beam)
{
	return d->logits + (beam * d->room + d->used - 1) * d->vocabulary;
}

static int32_t last_token(const decoding *d, int64_t beam)
{
	return d->tokens[beam * d->room + d->used - 1];
}

/* The largest element that `taken` has not; of equals the first. */
static int64_t largest(const float *x, int64_t n, const bool *taken)
{
	int64_t best = -1;
	for (int64_t i = 0; i < n; i++)
		if (!(taken && taken[i]) && (best < 0 || x[i] > x[best]))
			best = i;
	return best;
}

static status add_ids(golden *g, const decoding *d, const char *example, const char *name, const char *end, error *err)
{
	float *out;
	TRY(golden_result(g, EXTENT(d->used), &out, err, "%s.%s%s", example, name, end));
	for (int64_t i = 0; i < d->used; i++)
		out[i] = (float)d->tokens[i];
	return STATUS_OK;
}

static status decode_greedily(golden *g, const cirilla_set *of, const char *example, bool unmasked, decoding *d,
                              error *err)
{
	const char *end = unmasked ? UNMASKED : "";
	float *out;
	TRY(begin_decoding(g, of, example, unmasked, d, err));
	while (d->used < d->room && last_token(d, 0) != d->in.ids.end) {
		TRY(step(d));
		d->tokens[d->used] = (int32_t)largest(logits_of(d, 0), d->vocabulary, NULL);
		d->used++;
	}
	TRY(add_ids(g, d, example, "greedy_ids", end, err));
	TRY(golden_result(g, EXTENT(d->used - 1, d->vocabulary), &out, err, "%s.greedy_logits%s", example, end));
	memcpy(out, d->logits, (size_t)((d->used - 1) * d->vocabulary) * sizeof *out);
	return STATUS_OK;
}

/* The first `rows` rows of [BEAMS, n, C]. */
static status add_rows(golden *g, plan *p, const char *from, int64_t rows, const char *example, const char *name,
                       error *err)
{
	value v = graph_find(plan_graph(p), from);
	shape s = graph_value(plan_graph(p), v)->shape;
	void *whole;
	float *out;
	TRY(golden_memory(g, shape_count(s), sizeof(float), &whole, err));
	TRY(plan_read(p, v, whole));
	TRY(golden_result(g, EXTENT(rows, shape_last(s)), &out, err, "%s.%s", example, name));
	memcpy(out, whole, (size_t)(rows * shape_last(s)) * sizeof *out);
	return STATUS_OK;
}

/* Add the caches after the last step: decoding without a cache computes them again for every token. */
static status add_caches(golden *g, const decoding *d, const char *example, error *err)
{
	plan *p;
	char from[NAME_BYTES], name[NAME_BYTES];
	if (!golden_find(g, "%s.enc_out", example))
		return STATUS_OK;
	TRY(run(g, &d->in, (forward_spec){.out.activations = true}, &p, err));
	TRY(add_rows(g, p, port_name(PORT_ENCODINGS), d->in.source, example, "enc_out", err));
	TRY(add_rows(g, p, "embeddings", d->used - 1, example, "dec_out", err));
	for (int i = 0; i < 4 * d->in.config->decoder.options.depth; i++) {
		bool cross = i / 2 % 2, values = i % 2;
		snprintf(from, sizeof from, "%s.%d", values ? "values" : "keys", i / 2);
		snprintf(name, sizeof name, "cache.%s%d.%s", cross ? "cross" : "self", i / 4, values ? "v" : "k");
		TRY(add_rows(g, p, from, cross ? d->in.source : d->used - 1, example, name, err));
	}
	return STATUS_OK;
}

/* A beam and its next token. */
typedef struct candidate {
	int64_t beam;
	int32_t token;
	double score;
} candidate;

static void propose(const decoding *d, int64_t beam, candidate *out, bool *taken)
{
	const float *logits = logits_of(d, beam);
	memset(taken, 0, (size_t)d->vocabulary * sizeof *taken);
	int64_t top = largest(logits, d->vocabulary, NULL);
	double sum = 0;
	for (int64_t i = 0; i < d->vocabulary; i++)
		sum += exp((double)(logits[i] - logits[top]));
	for (int k = 0; k < BEAMS; k++) {
		int64_t token = largest(logits, d->vocabulary, taken);
		taken[token] = true;
		double probability = exp((double)(logits[token] - logits[top])) / sum;
		out[k] = (candidate){beam, (int32_t)token, d->score[beam] + probability};
	}
}

/* Order by score, of equals the first. */
static void rank(candidate *c, int n)
{
	for (int i = 1; i < n; i++)
		for (int k = i; k > 0 && c[k].score > c[k - 1].score; k--) {
			candidate swapped = c[k];
			c[k] = c[k - 1];
			c[k - 1] = swapped;
		}
}

static void take(golden *g, decoding *d, const candidate *best, int n, int32_t *space)
{
	(void)g;
	memcpy(space, d->tokens, (size_t)(BEAMS * d->room) * sizeof *space);
	d->beams = n;
	for (int k = 0; k < n; k++) {
		memcpy(d->tokens + k * d->room, space + best[k].beam * d->room, (size_t)d->used * sizeof *space);
		d->tokens[k * d->room + d->used] = best[k].token;
		d->score[k] = best[k].score;
	}
	d->used++;
}

/* Beams that have ended are dropped as long as one has not, and probabilities are added, not their logarithms. */
static status decode_by_beams(golden *g, const cirilla_set *of, const char *example, error *err)
{
	decoding d;
	void *taken, *space;
	TRY(begin_decoding(g, of, example, true, &d, err));
	TRY(golden_memory(g, d.vocabulary, sizeof(bool), &taken, err));
	TRY(golden_memory(g, BEAMS * d.room, sizeof(int32_t), &space, err));
	while (d.used < d.room) {
		candidate c[BEAMS * BEAMS];
		int n = 0;
		TRY(step(&d));
		for (int64_t beam = 0; beam < d.beams; beam++) {
			if (last_token(&d, beam) == d.in.ids.end)
				continue;
			propose(&d, beam, c + n, taken);
			n += BEAMS;
		}
		if (n == 0)
			break;
		rank(c, n);
		take(g, &d, c, BEAMS, space);
	}
	return add_ids(g, &d, example, "beam3_probsum_ids", UNMASKED, err);
}

static status add_examples(golden *g, const cirilla_set *c, error *err)
{
	char example[NAME_BYTES];
	for (int k = 0; k < MAX_EXAMPLES && golden_find(g, "ex%d.enc_in", k); k++) {
		decoding d;
		snprintf(example, sizeof example, "ex%d", k);
		TRY(decode_greedily(g, c, example, false, &d, err));
		TRY(add_caches(g, &d, example, err));
		TRY(decode_greedily(g, c, example, true, &d, err));
		TRY(decode_by_beams(g, c, example, err));
	}
	return STATUS_OK;
}

/* --- training ------------------------------------------------------------------------------------------------ */

/* Changes the model's weights. */
static status add_steps(golden *g, const cirilla_set *c, error *err)
{
	training t = {.params = {.beta1 = 0.9F, .beta2 = 0.999F, .eps = 1e-9F}, .rate = 1e-3F};
	forward_spec spec = {.train.loss = true, .train.backward = true};
	TRY(read_smoothing(g, &spec.train.smoothing, err));
	TRY(training_read(g, &t, err));
	TRY(training_begin(g, c->model, &t, err));
	TRY(cirilla_set_plan(g, c, spec, t.gradients, &t.backward, err));
	return training_run(g, &t, err);
}

/* --- all of it -------------------------------------------------------------------------------------------------- */

static status evaluate(golden *g, error *err)
{
	cirilla_set c = {0};
	const bool forward = golden_find(g, "enc_in");
	TRY(cirilla_set_model(g, "exact", NULL, NULL, &c, err));
	if (forward)
		TRY(add_forward(g, &c, err));
	TRY(add_examples(g, &c, err));
	return forward && training_is_asked(g) ? add_steps(g, &c, err) : STATUS_OK;
}

static bool is_gradient(const char *name)
{
	return strncmp(name, "grad.", 5) == 0 || strstr(name, ".grad.") || strstr(name, ".d.");
}

const golden_reader golden_reader_cirilla = {
    .source = "Cirilla's encoder-decoder",
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = is_gradient,
};
