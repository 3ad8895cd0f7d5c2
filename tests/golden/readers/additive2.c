/* Additive attention that forgets, as another implementation writes it: the metadata has format "additive2-golden-1".
 * Reads ids [B,N] and the weights as w.NAME. The query, key and value matrices of a window layer are one tensor,
 * w.layers.L.mix.Wqkv [3D,D]. Values:
 *
 *   logits, loss               whole sequences; with --recurrent read token by token
 *   d.NAME                     gradient of the loss for w.NAME
 *   layerL.a, .f, .l [B,N,H]   scores, logs of what each token keeps, and logs of the sums
 *   layer0.alpha [B,H,N,N]     weights that the explainer computes from them; 0 after the reader
 *   layerL.scores [B,H,N,N]    of a window layer before the softmax; -1e30 where the reader does not look
 *   step.before.*              the state after 9 tokens that sessions read: layerL.last [B,D], the row before the token
 *                              shift; layerL.l [B,H] and .g [B,H,D/H], or layerL.keys and .values [B,H,T,D/H] of the
 *                              last T = window - 1 tokens
 *   step.logits, step.after.*  the same after the next token
 *
 * A model without token shift has no layerL.last, since its state has no such row. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/feed.h"
#include "engine/model/mixers/mixer.h"
#include "engine/tensor/ops/forgetting.h"
#include "engine/tensor/ops/softmax_stream.h"
#include "tests/golden/golden_session.h"

#define FORMAT "additive2-golden-1"
#define UNSEEN (-1e30f)

enum { NAME_BYTES = 128, STEP_TOKENS = 9, PARTS = 3 };

/* The three matrices of Wqkv, in its order. */
static const char *const thirds[PARTS] = {"Wq", "Wk", "Wv"};

typedef struct forgetting_set {
	model *model;
	int64_t batch, length, hidden;
	const int32_t *ids;
} forgetting_set;

/* A layer, with the options of its mixer; those of the other mixer are NULL. */
typedef struct set_layer {
	int index;
	const forgetting_options *forgetting;
	const attention_options *window;
	int64_t heads, width; /* number of heads, and channels of each */
} set_layer;

static bool recognises(const golden *g)
{
	const char *format = golden_metadata(g, "format");
	return format && strcmp(format, FORMAT) == 0;
}

static bool is_gradient(const char *name)
{
	return strncmp(name, "d.", 2) == 0;
}

static set_layer layer_at(const forgetting_set *c, int index)
{
	const void *options;
	const mixer *m = architecture_additive2.mixer(model_config(c->model), index, &options);
	set_layer l = {.index = index};
	if (m == &mixer_forgetting)
		l.forgetting = options;
	else
		l.window = &((const gated_options *)options)->of.softmax;
	l.heads = l.forgetting ? l.forgetting->heads : l.window->heads;
	l.width = c->hidden / l.heads;
	return l;
}

/* --- weights ------------------------------------------------------------------------------------ */

/* Write the set's name of a parameter, and return which third of that tensor the parameter is; -1: it is all of it. */
static int set_name(const golden *g, const parameter_spec *p, const char *prefix, char name[NAME_BYTES])
{
	snprintf(name, NAME_BYTES, "%s%s", prefix, p->alias[0] ? p->alias : p->name);
	const size_t n = strlen(name);
	for (int i = 0; i < PARTS; i++) {
		if (!parameter_name_ends(name, thirds[i]))
			continue;
		char all[NAME_BYTES];
		snprintf(all, sizeof all, "%.*sqkv", (int)n - 1, name);
		if (!golden_find(g, "w.%s", all + strlen(prefix)))
			continue;
		memcpy(name, all, sizeof all);
		return i;
	}
	return -1;
}

/* The shape of the tensor that has a parameter, whose stored shape is e. */
static extent set_shape(extent e, int third)
{
	if (third >= 0)
		e.dim[0] *= PARTS;
	return e;
}

static status load_parameter(golden *g, const model *m, int index, error *err)
{
	const parameter_spec *p = model_parameter(m, index);
	const extent e = extent_of(parameter_stored_shape(p));
	const int64_t count = extent_count(e);
	char name[NAME_BYTES];
	const int third = set_name(g, p, "w.", name);
	const float *stored;
	void *values;
	TRY(golden_floats(g, name, set_shape(e, third), &stored, err));
	TRY(golden_memory(g, count, sizeof(float), &values, err));
	parameter_load(p, stored + (third > 0 ? third * count : 0), values);
	return g->backend->upload(g->backend, model_arena(m) + model_parameter_offset(m, index), values,
	                          (size_t)count * sizeof(float));
}

/* Add the gradient of a parameter, `from` [count]; each third of a tensor is written where it belongs. */
static status add_gradient(golden *g, const parameter_spec *p, const float *from, float **joined, error *err)
{
	const extent e = extent_of(parameter_stored_shape(p));
	char name[NAME_BYTES];
	const int third = set_name(g, p, "d.", name);
	float *out = *joined;
	if (third <= 0)
		TRY(golden_result(g, set_shape(e, third), &out, err, "%s", name));
	*joined = out;
	memcpy(out + (third > 0 ? third * extent_count(e) : 0), from, (size_t)extent_count(e) * sizeof *out);
	return STATUS_OK;
}

/* --- whole sequences ---------------------------------------------------------------------------- */

static const safetensors_item *result_of(const results *r, const char *prefix, const char *name)
{
	const size_t n = strlen(prefix);
	for (int i = 0; i < r->count; i++)
		if (strncmp(r->items[i].name, prefix, n) == 0 && strcmp(r->items[i].name + n, name) == 0)
			return &r->items[i];
	return NULL;
}

static status add_values(golden *g, const forgetting_set *c, const results *found, error *err)
{
	static const char *const names[] = {"logits", "loss"};
	float *out = NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const safetensors_item *item = result_of(found, "", names[i]);
		extent e = {.rank = item->rank};
		memcpy(e.dim, item->dim, sizeof e.dim);
		TRY(golden_result(g, e, &out, err, "%s", names[i]));
		memcpy(out, item->data, (size_t)extent_count(e) * sizeof *out);
	}
	for (int i = 0; i < model_tensor_count(c->model) && g->options->spec.gradients; i++) {
		const parameter_spec *p = model_parameter(c->model, i);
		TRY(add_gradient(g, p, result_of(found, "grad.", p->name)->data, &out, err));
	}
	return STATUS_OK;
}

static status evaluate_whole(golden *g, const forgetting_set *c, error *err)
{
	const batch_source source = {.ids = golden_find(g, "ids")->entry};
	batch in;
	results found = {0};
	status s = batch_read(&in, source, model_dimensions(c->model), POSITION_ERROR, err);
	if (s == STATUS_OK)
		s = evaluation_run(&found, c->model, &in, &g->options->spec, err);
	if (s == STATUS_OK)
		s = add_values(g, c, &found, err);
	results_free(&found);
	batch_free(&in);
	return s;
}

/* --- inside the mixers -------------------------------------------------------------------------- */

static status read_log(golden *g, plan *p, int layer, const char *name, int64_t count, const float **out, error *err)
{
	char whole[NAME_BYTES];
	void *data;
	snprintf(whole, sizeof whole, "layers.%d.%s", layer, name);
	TRY(golden_memory(g, count, sizeof(float), &data, err));
	*out = data;
	return plan_read(p, graph_find(plan_graph(p), whole), data);
}

/* log: scores, rates and log-sums [B,N,H] each. */
static status add_alpha(golden *g, const forgetting_set *c, const set_layer *l, const float *const log[PARTS],
                        error *err)
{
	const int64_t n = c->length;
	void *tokens, *row;
	float *out;
	TRY(golden_memory(g, n * PARTS * l->heads, sizeof(float), &tokens, err));
	TRY(golden_memory(g, n, sizeof(double), &row, err));
	TRY(golden_result(g, EXTENT(c->batch, l->heads, n, n), &out, err, "layer%d.alpha", l->index));
	for (int64_t b = 0; b < c->batch; b++) {
		for (int64_t i = 0; i < n * PARTS; i++)
			memcpy((float *)tokens + i * l->heads, log[i % PARTS] + (b * n + i / PARTS) * l->heads,
			       (size_t)l->heads * sizeof(float));
		for (int64_t i = 0; i < l->heads * n; i++) {
			const explain_site site = {.options = l->forgetting,
			                           .log = tokens,
			                           .stride = PARTS * l->heads,
			                           .tokens = n,
			                           .head = i / n};
			TRY(forgetting_explainer.row(&site, i % n, row));
			for (int64_t j = 0; j <= i % n; j++)
				out[(b * l->heads * n + i) * n + j] = (float)((double *)row)[j];
		}
	}
	return STATUS_OK;
}

static status add_forgetting(golden *g, const forgetting_set *c, const set_layer *l, plan *p, error *err)
{
	static const char *const from[PARTS] = {"score", "forget", "log_normalizer"}, *const to[PARTS] = {"a", "f",
	                                                                                                  "l"};
	const extent e = EXTENT(c->batch, c->length, l->heads);
	const float *log[PARTS];
	for (int i = 0; i < PARTS; i++) {
		float *out;
		TRY(read_log(g, p, l->index, from[i], extent_count(e), &log[i], err));
		TRY(golden_result(g, e, &out, err, "layer%d.%s", l->index, to[i]));
		memcpy(out, log[i], (size_t)extent_count(e) * sizeof *out);
	}
	return golden_find(g, "layer%d.alpha", l->index) ? add_alpha(g, c, l, log, err) : STATUS_OK;
}

static double product(const float *a, const float *b, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += (double)a[i] * (double)b[i];
	return sum;
}

static status add_window_scores(golden *g, const forgetting_set *c, const set_layer *l, plan *p, error *err)
{
	const attention_options *o = l->window;
	const int64_t n = c->length;
	const float *query, *key;
	float *out;
	TRY(read_log(g, p, l->index, "query", c->batch * n * c->hidden, &query, err));
	TRY(read_log(g, p, l->index, "key", c->batch * n * c->hidden, &key, err));
	TRY(golden_result(g, EXTENT(c->batch, l->heads, n, n), &out, err, "layer%d.scores", l->index));
	for (int64_t i = 0; i < c->batch * l->heads * n * n; i++) {
		const int64_t read = i % n, reader = i / n % n, head = i / n / n % l->heads, b = i / n / n / l->heads;
		const bool seen = read <= reader && reader - read < o->reach.capacity;
		const float *q = query + (b * n + reader) * c->hidden + head * l->width;
		const float *k = key + (b * n + read) * c->hidden + head * l->width;
		out[i] = seen ? (float)(o->scoring.scale * product(q, k, l->width)) : UNSEEN;
	}
	return STATUS_OK;
}

/* One forward that outputs what explanations read: with --recurrent the sessions' form, in one piece. */
static status add_inside(golden *g, const forgetting_set *c, error *err)
{
	const bool recurrent = g->options->spec.recurrent;
	const forward_spec spec = {.phase = recurrent ? PHASE_STEP : PHASE_SCORE,
	                           .batch = c->batch,
	                           .length = c->length,
	                           .slots = c->batch,
	                           .explain.log = true,
	                           .out.logits = LOGITS_ALL};
	plan *p;
	TRY(golden_forward(g, c->model, &spec, &p, err));
	TRY(feed_write(p, PORT_TOKENS, c->ids));
	TRY(feed_positions(p, model_dimensions(c->model), POSITION_ERROR, 0));
	if (recurrent)
		TRY(feed_step(p, 0, c->length));
	TRY(plan_run(p));
	for (int i = 0; i < model_dimensions(c->model)->layers; i++) {
		const set_layer l = layer_at(c, i);
		TRY(l.forgetting ? add_forgetting(g, c, &l, p, err) : add_window_scores(g, c, &l, p, err));
	}
	return STATUS_OK;
}

/* --- sessions ----------------------------------------------------------------------------------- */

/* Slots of all sessions, on the host. */
typedef struct set_slots {
	const float *data;
	int64_t stride;   /* floats per slot */
	const char *when; /* prefix of the values */
} set_slots;

/* Add `count` floats of each session, in the shape e. */
static status add_state(golden *g, const set_slots *s, int64_t offset, extent e, int layer, const char *name,
                        error *err)
{
	const int64_t count = extent_count(e) / e.dim[0];
	float *out;
	TRY(golden_result(g, e, &out, err, "%slayer%d.%s", s->when, layer, name));
	for (int64_t b = 0; b < e.dim[0]; b++)
		memcpy(out + b * count, s->data + b * s->stride + offset, (size_t)count * sizeof *out);
	return STATUS_OK;
}

/* Add the logarithms of the sums of e.dim[1] heads. */
static status add_logs(golden *g, const set_slots *s, int64_t offset, extent e, int layer, error *err)
{
	const int64_t heads = e.dim[1];
	float *out;
	TRY(golden_result(g, e, &out, err, "%slayer%d.l", s->when, layer));
	for (int64_t i = 0; i < e.dim[0] * heads; i++)
		out[i] = (float)forgetting_log_of_sum(s->data + i / heads * s->stride + offset + i % heads, heads);
	return STATUS_OK;
}

/* Add the keys or values of the last window - 1 tokens of `read`; a head's rows follow each other. */
static status add_ring(golden *g, const forgetting_set *c, const set_layer *l, const set_slots *s, int64_t offset,
                       int64_t read, bool keys, error *err)
{
	const int64_t places = l->window->reach.capacity, last = places - 1;
	const softmax_store store = softmax_store_of(c->hidden, c->hidden, places, SOFTMAX_F32);
	float *out;
	TRY(golden_result(g, EXTENT(c->batch, l->heads, last, l->width), &out, err, "%slayer%d.%s", s->when, l->index,
	                  keys ? "keys" : "values"));
	for (int64_t i = 0; i < c->batch * l->heads * last; i++) {
		const int64_t place = (read - last + i % last) % places, head = i / last % l->heads,
		              b = i / last / l->heads;
		const int64_t at = keys ? softmax_key(store, place) : softmax_value(store, place);
		memcpy(out + i * l->width, s->data + b * s->stride + offset + at + head * l->width,
		       (size_t)l->width * sizeof *out);
	}
	return STATUS_OK;
}

static const state_spec *state_of(const forgetting_set *c, int layer, const char *name)
{
	char whole[NAME_BYTES];
	snprintf(whole, sizeof whole, "layers.%d.%s", layer, name);
	return state_list_find(model_states(c->model), whole);
}

static status add_layer_state(golden *g, const forgetting_set *c, int layer, const set_slots *s, int64_t read,
                              error *err)
{
	const set_layer l = layer_at(c, layer);
	const state_spec *before = state_of(c, layer, "before");
	const int64_t offset = state_of(c, layer, l.window ? "cache" : "pooled")->offset;
	if (before)
		TRY(add_state(g, s, before->offset, EXTENT(c->batch, c->hidden), layer, "last", err));
	if (!l.window) {
		TRY(add_logs(g, s, offset, EXTENT(c->batch, l.heads), layer, err));
		return add_state(g, s, offset + 3 * l.heads, EXTENT(c->batch, l.heads, l.width), layer, "g", err);
	}
	TRY(add_ring(g, c, &l, s, offset, read, true, err));
	return add_ring(g, c, &l, s, offset, read, false, err);
}

static status add_states(golden *g, const forgetting_set *c, const golden_session *session, const char *when,
                         error *err)
{
	const int64_t stride = model_state_floats(c->model), floats = session->batch * stride;
	void *data;
	TRY(golden_memory(g, floats, sizeof(float), &data, err));
	TRY(g->backend->download(g->backend, data, session->pool, (size_t)floats * sizeof(float)));
	const set_slots slots = {data, stride, when};
	for (int l = 0; l < model_dimensions(c->model)->layers; l++)
		TRY(add_layer_state(g, c, l, &slots, session->read, err));
	return STATUS_OK;
}

static status add_steps(golden *g, const forgetting_set *c, error *err)
{
	const int64_t outputs = model_dimensions(c->model)->outputs;
	golden_tokens tokens = {.width = c->length, .count = STEP_TOKENS, .ids = c->ids};
	golden_session session;
	double loss, labels;
	void *before;
	float *logits;
	TRY(golden_memory(g, c->batch * STEP_TOKENS * outputs, sizeof(float), &before, err));
	TRY(golden_session_new(g, c->model, c->batch, false, &session, err));
	TRY(golden_session_read(g, &session, tokens, before, &loss, &labels, err));
	TRY(add_states(g, c, &session, "step.before.", err));
	tokens.ids += STEP_TOKENS;
	tokens.count = 1;
	TRY(golden_result(g, EXTENT(c->batch, outputs), &logits, err, "step.logits"));
	TRY(golden_session_read(g, &session, tokens, logits, &loss, &labels, err));
	return add_states(g, c, &session, "step.after.", err);
}

/* --- all of it ---------------------------------------------------------------------------------- */

static status evaluate(golden *g, error *err)
{
	forgetting_set c;
	extent e;
	TRY(golden_rank(g, "ids", 2, &e, err));
	TRY(golden_new_model(g, &architecture_additive2, g->config, &c.model, err));
	const model_dims *d = model_dimensions(c.model);
	c.batch = e.dim[0];
	c.length = e.dim[1];
	c.hidden = d->hidden;
	TRY(golden_integers(g, "ids", e, 0, (int32_t)d->inputs - 1, &c.ids, err));
	for (int i = 0; i < model_tensor_count(c.model); i++)
		TRY(load_parameter(g, c.model, i, err));
	TRY(evaluate_whole(g, &c, err));
	TRY(add_inside(g, &c, err));
	return c.length > STEP_TOKENS ? add_steps(g, &c, err) : STATUS_OK;
}

const golden_reader golden_reader_additive2 = {
    .source = "additive attention that forgets",
    .recurrent = true,
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = is_gradient,
};
