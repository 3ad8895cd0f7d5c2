/* Models of x-transformers, with the arguments of its constructors as config and its tensor names. Reads:
 *
 *   decoders, encoders   ids [B,N], labels?, mask?. Without labels, as its autoregressive wrapper takes them: the
 *                        tokens before the last one are read and those after the first one are predicted
 *   encoder-decoders     src [B,S], tgt [B,N+1], src_mask?
 *   optional             pos (the position of each token), context, context_mask, attn_mask,
 *                        self_attn_context_mask, prepend_embeds, layer_skip, and keep_index with keep_mask (the rows of
 *                        the source that are kept)
 *   segments             ids.S, labels.S: each attends to the memories of the previous one
 *
 * Values: logits, loss, grad.NAME, grad_input.context; embeddings, encodings, hidden.L, scores.A, attn.A. For each
 * prompt (gen.prompt, gen_slide.prompt, …): the tokens of greedy decoding, which reads the last max_seq_len tokens
 * again for each, or with segments continues from the memories of the last one. */
#include <stdio.h>
#include <string.h>

#include "tests/golden/golden_session.h"
#include "tests/golden/x_transformers_set.h"
#include "engine/model/feed.h"

enum { NAME_BYTES = 64 };

static bool recognises(const golden *g)
{
	return json_object_get(g->config, "TransformerWrapper") || json_object_get(g->config, "XTransformer");
}

/* --- whole sequences ------------------------------------------------------------------------------------------ */

static status feed(plan *p, const x_transformers_set *c)
{
	const struct {
		const char *name;
		const void *data;
	} inputs[] = {
	    {port_name(PORT_TOKENS), c->ids},
	    {port_name(PORT_LABELS), c->labels},
	    {port_name(PORT_MASK), c->mask},
	    {port_name(PORT_SOURCE), c->source_ids},
	    {port_name(PORT_SOURCE_ROWS), c->source_rows},
	    {port_name(PORT_SOURCE_MASK), c->source_mask},
	    {"key_mask", c->key_mask},
	    {"visible", c->visible},
	    {FORWARD_ROWS_BEFORE, c->before_rows},
	    {"kept", c->kept},
	    {"source_kept", c->source_kept},
	};
	for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
		const value v = inputs[i].data ? graph_find(plan_graph(p), inputs[i].name) : VALUE_NONE;
		if (v != VALUE_NONE)
			TRY(plan_write(p, v, inputs[i].data));
	}
	for (int l = 0; l < model_dimensions(c->model)->layers && c->memory_rows; l++) {
		char name[NAME_BYTES];
		snprintf(name, sizeof name, "memory.%d", l);
		TRY(plan_write(p, graph_find(plan_graph(p), name), c->memory[l]));
	}
	return c->positions ? feed_write(p, PORT_POSITIONS, c->positions)
	                    : feed_positions(p, model_dimensions(c->model), POSITION_ERROR, 0);
}

static status run(golden *g, const x_transformers_set *c, forward_spec spec, plan **out, error *err)
{
	spec.phase = PHASE_SCORE;
	spec.batch = c->batch;
	spec.length = c->length;
	spec.source = c->source;
	spec.masked = c->mask;
	spec.source_masked = c->source_mask;
	const struct {
		bool listed;
		forward_input input;
	} own[] = {
	    {c->before > 0, {.name = FORWARD_ROWS_BEFORE, .rows = c->before}},
	    {c->source_kept, {.name = "source_kept"}},
	    {c->key_mask, {.name = "key_mask"}},
	    {c->visible, {.name = "visible"}},
	    {c->kept, {.name = "kept"}},
	    {c->remembers, {.name = STACK_MEMORY, .rows = c->memory_rows}},
	};
	forward_input inputs[sizeof own / sizeof *own + 1];
	int n = 0;
	for (size_t i = 0; i < sizeof own / sizeof *own; i++)
		if (own[i].listed)
			inputs[n++] = own[i].input;
	inputs[n] = (forward_input){0};
	spec.inputs = inputs;
	TRY(golden_forward(g, c->model, &spec, out, err));
	TRY(feed(*out, c));
	return plan_run(*out);
}

static status add_loss(golden *g, plan *p, const char *name, error *err)
{
	return golden_output(g, p, port_find(plan_graph(p), PORT_LOSS), EXTENT(1), err, "%s", name);
}

/* Add the gradient of every parameter to the sums; zeros if the loss does not depend on it or no model has it. */
static status add_gradients(golden *g, const x_transformers_set *c, plan *p, float **sums, error *err)
{
	for (int i = 0; i < model_tensor_count(c->model); i++) {
		const parameter_spec *spec = model_parameter(c->model, i);
		value v = graph_find(plan_graph(p), spec->name), gradient = graph_gradient(plan_graph(p), v);
		int64_t count = shape_count(spec->shape);
		void *data, *stored;
		if (!sums[i])
			TRY(golden_result(g, extent_of(parameter_stored_shape(spec)), &sums[i], err, "grad.%s",
			                  spec->name));
		if (gradient == VALUE_NONE)
			continue;
		TRY(golden_memory(g, count, sizeof(float), &data, err));
		TRY(golden_memory(g, count, sizeof(float), &stored, err));
		TRY(plan_read(p, gradient, data));
		parameter_store(spec, data, stored);
		for (int64_t k = 0; k < count; k++)
			sums[i][k] += ((float *)stored)[k];
	}
	value rows = port_find(plan_graph(p), PORT_SOURCE_ROWS);
	if (rows != VALUE_NONE)
		TRY(golden_output(g, p, graph_gradient(plan_graph(p), rows),
		                  extent_of(graph_value(plan_graph(p), rows)->shape), err, "grad_input.context"));
	for (int i = 0; i < g->count; i++) {
		golden_tensor *t = &g->tensors[i];
		float *out;
		extent e = {.rank = t->entry->rank};
		memcpy(e.dim, t->entry->dim, sizeof e.dim);
		if (!t->known && strncmp(t->entry->name, "grad.", 5) == 0 &&
		    model_architecture(c->model)->ignores(t->entry->name + 5))
			TRY(golden_result(g, e, &out, err, "%s", t->entry->name));
	}
	return STATUS_OK;
}

static status add_whole(golden *g, const x_transformers_set *c, error *err)
{
	plan *p;
	forward_spec spec = {
	    .out.logits = LOGITS_ALL, .train.loss = true, .train.backward = g->options->spec.gradients};
	int64_t vocabulary = model_dimensions(c->model)->outputs;
	TRY(run(g, c, spec, &p, err));
	TRY(golden_output(g, p, port_find(plan_graph(p), PORT_LOGITS),
	                  EXTENT(c->batch, c->before + c->length, vocabulary), err, "logits"));
	TRY(add_loss(g, p, "loss", err));
	void *sums;
	TRY(golden_memory(g, model_tensor_count(c->model), sizeof(float *), &sums, err));
	return spec.train.backward ? add_gradients(g, c, p, sums, err) : STATUS_OK;
}

/* Add the inner activations that the set has. */
static status add_activations(golden *g, const x_transformers_set *c, error *err)
{
	plan *p;
	TRY(run(g, c, (forward_spec){.out.activations = true}, &p, err));
	for (int i = 0; i < g->count; i++) {
		const safetensors_entry *entry = g->tensors[i].entry;
		value v = graph_find(plan_graph(p), entry->name);
		if (g->tensors[i].known || v == VALUE_NONE || !graph_value(plan_graph(p), v)->output)
			continue;
		shape s = graph_value(plan_graph(p), v)->shape;
		TRY(golden_output(g, p, v, extent_of(s), err, "%s", entry->name));
	}
	return STATUS_OK;
}

/* The loss over a batch of its own, "ar_ids". */
static status add_wrapped_loss(golden *g, const x_transformers_set *of, const char *ids, const char *loss,
                               int32_t ignored, error *err)
{
	x_transformers_set c = {.model = of->model, .config = of->config};
	plan *p;
	if (!golden_find(g, "%s", ids))
		return STATUS_OK;
	TRY(x_transformers_set_wrapped(g, &c, ids, err));
	int32_t *labels = (int32_t *)(uintptr_t)c.labels;
	for (int64_t i = 0; i < c.batch * c.length; i++)
		labels[i] = labels[i] == ignored ? X_TRANSFORMERS_IGNORED : labels[i];
	TRY(run(g, &c, (forward_spec){.train.loss = true}, &p, err));
	return add_loss(g, p, loss, err);
}

/* --- segments ------------------------------------------------------------------------------------------------------
 */

/* Take the memories that a segment passes on to the next. */
static status take_memories(golden *g, x_transformers_set *c, plan *p, int number, error *err)
{
	for (int l = 0; l < model_dimensions(c->model)->layers; l++) {
		char name[NAME_BYTES];
		float *rows;
		snprintf(name, sizeof name, "next.memory.%d", l);
		value v = graph_find(plan_graph(p), name);
		extent e = extent_of(graph_value(plan_graph(p), v)->shape);
		TRY(golden_result(g, e, &rows, err, "mems.%d.%d", number, l));
		TRY(plan_read(p, v, rows));
		c->memory[l] = rows;
		c->memory_rows = e.dim[1];
	}
	return STATUS_OK;
}

static status add_segments(golden *g, x_transformers_set *c, error *err)
{
	float *total = NULL;
	void *sums;
	TRY(golden_memory(g, model_tensor_count(c->model), sizeof(float *), &sums, err));
	for (int number = 0; golden_find(g, "ids.%d", number); number++) {
		forward_spec spec = {
		    .out.logits = LOGITS_ALL, .train.loss = true, .train.backward = g->options->spec.gradients};
		plan *p;
		float *loss;
		TRY(x_transformers_set_segment(g, c, number, err));
		TRY(run(g, c, spec, &p, err));
		const graph *made = plan_graph(p);
		TRY(golden_output(g, p, port_find(made, PORT_LOGITS),
		                  EXTENT(c->batch, c->length, model_dimensions(c->model)->outputs), err, "logits.%d",
		                  number));
		TRY(golden_result(g, EXTENT(1), &loss, err, "loss.%d", number));
		TRY(plan_read(p, port_find(made, PORT_LOSS), loss));
		if (!total)
			TRY(golden_result(g, EXTENT(1), &total, err, "loss"));
		total[0] += loss[0];
		if (spec.train.backward)
			TRY(add_gradients(g, c, p, sums, err));
		TRY(take_memories(g, c, p, number, err));
	}
	return STATUS_OK;
}

/* --- sessions ------------------------------------------------------------------------------------------------- */

/* Refuse inputs that a session does not read, by the name of their tensor. */
static status refuse_rows(const x_transformers_set *c, error *err)
{
	const struct {
		const char *name;
		const void *data;
	} whole[] = {{"pos", c->positions},
	             {"context", c->source_rows},
	             {"prepend_embeds", c->before_rows},
	             {"attn_mask", c->visible},
	             {"self_attn_context_mask", c->key_mask},
	             {"keep_index", c->source_kept},
	             {"layer_skip", c->kept}};
	for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
		if (whole[i].data)
			return error_set(err, STATUS_UNSUPPORTED, whole[i].name, "a session has no \"%s\"",
			                 whole[i].name);
	return STATUS_OK;
}

static status begin_sessions(golden *g, const x_transformers_set *c, bool masked, golden_session *out, error *err)
{
	TRY(refuse_rows(c, err));
	TRY(golden_session_new(g, c->model, c->batch, masked, out, err));
	return c->source_ids ? golden_session_encode(g, out, c->source, c->source_ids, c->source_mask, err) : STATUS_OK;
}

/* The rows of c, under names followed by `end`. *loss: the mean. */
static status read_by_sessions(golden *g, const x_transformers_set *c, golden_session *s, const char *end, float *loss,
                               error *err)
{
	const golden_tokens t = {c->length, c->length, c->ids, c->mask, c->labels};
	double sum, labels;
	float *logits, *mean;
	TRY(golden_result(g, EXTENT(c->batch, c->length, model_dimensions(c->model)->outputs), &logits, err, "logits%s",
	                  end));
	TRY(golden_result(g, EXTENT(1), &mean, err, "loss%s", end));
	TRY(golden_session_read(g, s, t, logits, &sum, &labels, err));
	*mean = *loss = labels > 0 ? (float)(sum / labels) : 0;
	return STATUS_OK;
}

static status add_by_sessions(golden *g, x_transformers_set *c, error *err)
{
	golden_session s;
	float loss;
	TRY(x_transformers_set_read(g, c, err));
	TRY(begin_sessions(g, c, c->mask, &s, err));
	return read_by_sessions(g, c, &s, "", &loss, err);
}

/* Read segments one after the other. */
static status add_segments_by_sessions(golden *g, x_transformers_set *c, error *err)
{
	golden_session s;
	float *total;
	char end[NAME_BYTES];
	TRY(golden_result(g, EXTENT(1), &total, err, "loss"));
	for (int number = 0; golden_find(g, "ids.%d", number); number++) {
		float loss;
		TRY(x_transformers_set_segment(g, c, number, err));
		if (c->length != model_dimensions(c->model)->segment)
			return error_set(err, STATUS_INVALID, "recurrent", "sessions read segments of one length");
		if (number == 0)
			TRY(begin_sessions(g, c, false, &s, err));
		snprintf(end, sizeof end, ".%d", number);
		TRY(read_by_sessions(g, c, &s, end, &loss, err));
		*total += loss;
	}
	return STATUS_OK;
}

/* --- greedy decoding -------------------------------------------------------------------------------------------- */

static int32_t largest(const float *logits, int64_t n)
{
	int64_t best = 0;
	for (int64_t i = 1; i < n; i++)
		best = logits[i] > logits[best] ? i : best;
	return (int32_t)best;
}

/* Sequences that grow. */
typedef struct greedy {
	x_transformers_set in;
	int64_t used, room; /* tokens of each */
	int32_t *tokens;    /* [B, room] */
	int64_t vocabulary;
	golden_session session; /* has read the tokens so far */
} greedy;

/* Compute [B, length, V], reading the last `length` tokens again. */
static status read_again(golden *g, greedy *s, int64_t length, float *logits, error *err)
{
	plan *p;
	x_transformers_set *c = &s->in;
	c->length = length;
	TRY(x_transformers_set_columns(g, s->tokens, c->batch, s->room, s->used - length, length, &c->ids, err));
	TRY(run(g, c, (forward_spec){.out.logits = LOGITS_ALL}, &p, err));
	return plan_read(p, port_find(plan_graph(p), PORT_LOGITS), logits);
}

/* Compute the same by sessions. Rows of tokens that they have already read are unchanged. */
static status read_on(golden *g, greedy *s, int64_t length, float *logits, error *err)
{
	double loss, labels;
	if (!s->session.plan || length < s->used)
		TRY(begin_sessions(g, &s->in, false, &s->session, err));
	const int64_t read = s->session.read, count = length - read;
	const golden_tokens t = {.width = s->room, .count = count, .ids = s->tokens + s->used - count};
	void *rows;
	TRY(golden_memory(g, s->in.batch * count * s->vocabulary, sizeof(float), &rows, err));
	TRY(golden_session_read(g, &s->session, t, rows, &loss, &labels, err));
	for (int64_t b = 0; b < s->in.batch; b++)
		memcpy(logits + (b * length + read) * s->vocabulary, (float *)rows + b * count * s->vocabulary,
		       (size_t)(count * s->vocabulary) * sizeof *logits);
	return STATUS_OK;
}

/* The next token of each sequence, from their last `window` tokens. */
static status step(golden *g, greedy *s, int64_t window, int32_t *next, error *err)
{
	const int64_t length = s->used < window ? s->used : window;
	void *logits;
	TRY(golden_memory(g, s->in.batch * length * s->vocabulary, sizeof(float), &logits, err));
	TRY(g->options->spec.recurrent ? read_on(g, s, length, logits, err) : read_again(g, s, length, logits, err));
	for (int64_t b = 0; b < s->in.batch; b++)
		next[b] = largest((float *)logits + ((b + 1) * length - 1) * s->vocabulary, s->vocabulary);
	return STATUS_OK;
}

/* True if every sequence contains the end token. */
static bool all_ended(const greedy *s, int32_t eos)
{
	for (int64_t b = 0; b < s->in.batch; b++) {
		const int32_t *row = s->tokens + b * s->room;
		bool ended = false;
		for (int64_t i = 0; i < s->used; i++)
			ended |= row[i] == eos;
		if (!ended)
			return false;
	}
	return true;
}

/* x-transformers stops when every sequence, including its prompt, has the end token, and blanks the tokens after it. */
static void blank(greedy *s, int32_t eos)
{
	for (int64_t b = 0; b < s->in.batch; b++) {
		int32_t *row = s->tokens + b * s->room;
		int64_t i = 0;
		while (i < s->used && row[i] != eos)
			i++;
		for (i++; i < s->used; i++)
			row[i] = 0;
	}
}

static status add_generated(golden *g, const x_transformers_set *of, const char *name, error *err)
{
	char prompt[NAME_BYTES], tokens[NAME_BYTES], end[NAME_BYTES];
	extent e, out_extent;
	const int32_t *start, *eos = NULL;
	snprintf(prompt, sizeof prompt, "%s.prompt", name);
	snprintf(tokens, sizeof tokens, "%s.tokens", name);
	snprintf(end, sizeof end, "%s.eos", name);
	if (!golden_find(g, "%s", prompt) || !golden_find(g, "%s", tokens))
		return STATUS_OK;
	TRY(golden_rank(g, prompt, 2, &e, err));
	TRY(golden_rank(g, tokens, 2, &out_extent, err));
	int64_t rows = e.dim[0], count = out_extent.dim[1], first = e.dim[1];
	TRY(golden_integers(g, prompt, e, 0, (int32_t)model_dimensions(of->model)->inputs - 1, &start, err));
	TRY(x_transformers_set_optional(g, end, EXTENT(1), &eos, err));
	greedy s = {
	    .in = *of, .used = first, .room = first + count, .vocabulary = model_dimensions(of->model)->outputs};
	s.in.batch = rows;
	s.in.labels = s.in.mask = s.in.key_mask = s.in.visible = NULL;
	void *memory, *next;
	TRY(golden_memory(g, rows * s.room, sizeof(int32_t), &memory, err));
	TRY(golden_memory(g, rows, sizeof(int32_t), &next, err));
	s.tokens = memory;
	for (int64_t b = 0; b < rows; b++)
		memcpy(s.tokens + b * s.room, start + b * first, (size_t)first * sizeof *start);
	bool ended = false;
	for (int64_t i = 0; i < count && !ended; i++) {
		TRY(step(g, &s, transformer_head(of->config)->options.max_seq_len, next, err));
		for (int64_t b = 0; b < rows; b++)
			s.tokens[b * s.room + s.used] = ((int32_t *)next)[b];
		s.used++;
		ended = eos && all_ended(&s, *eos);
	}
	if (ended)
		blank(&s, *eos);
	float *out;
	TRY(golden_result(g, EXTENT(rows, s.used - first), &out, err, "%s", tokens));
	for (int64_t i = 0; i < rows * (s.used - first); i++)
		out[i] = (float)s.tokens[i / (s.used - first) * s.room + first + i % (s.used - first)];
	return STATUS_OK;
}

/* --- all of it -----------------------------------------------------------------------------------------------------
 */

static status evaluate(golden *g, error *err)
{
	static const char *const prompts[] = {"gen", "gen_slide", "gen_eos", "gen_eos_in_prompt"};
	x_transformers_set c = {0};
	const bool recurrent = g->options->spec.recurrent;
	TRY(x_transformers_set_model(g, recurrent, &c, err));
	c.remembers = golden_find(g, "ids.0");
	if (c.remembers && transformer_head(c.config)->options.max_mem_len == 0)
		return error_set(err, STATUS_UNSUPPORTED, "max_mem_len",
		                 "max_mem_len must be at least 1 of a set of segments");
	if (c.remembers && recurrent)
		return add_segments_by_sessions(g, &c, err);
	if (c.remembers) {
		TRY(add_segments(g, &c, err));
	} else if (recurrent) {
		TRY(add_by_sessions(g, &c, err));
	} else {
		TRY(x_transformers_set_read(g, &c, err));
		TRY(add_whole(g, &c, err));
		TRY(add_activations(g, &c, err));
		TRY(add_wrapped_loss(g, &c, "ar_ids", "ar_loss", INT32_MIN, err));
		TRY(add_wrapped_loss(g, &c, "ar_ids_pad", "ar_loss_pad_ignored", 0, err));
	}
	for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
		TRY(add_generated(g, &c, prompts[i], err));
	return STATUS_OK;
}

static bool is_gradient(const char *name)
{
	return strncmp(name, "grad.", 5) == 0 || strncmp(name, "grad_input.", 11) == 0;
}

const golden_reader golden_reader_x_transformers = {
    .source = "a model of x-transformers",
    .recurrent = true,
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = is_gradient,
};
