/* model_plan.c - the plans of a model: checking a spec, building its graph, and binding the weights. */
#include <inttypes.h>

#include "engine/base/memory.h"
#include "engine/model/adapter.h"
#include "engine/model/attribution.h"
#include "engine/model/model_private.h"

static bool has_score(const model *m, const forward_spec *spec)
{
	return m->dims.form->head == HEAD_CLASSES ? spec->out.logits != LOGITS_NONE
	                                          : spec->out.logits == LOGITS_LAST && !spec->out.maxima;
}

static status check_adapter_spec(const forward_spec *spec, error *err)
{
	if (forward_recurrent(spec) && !spec->initial_states)
		return error_set(err, STATUS_INVALID, NULL, "an adapter is read from the slots of a recurrent forward");
	if (spec->train.carried)
		return error_set(err, STATUS_UNSUPPORTED, "carry_state",
		                 "an adapter is the state before a text, not one that another row passes on");
	if (spec->explain.log || spec->explain.attribution)
		return error_set(err, STATUS_UNSUPPORTED, "explain", "an adapter's share is not explained");
	return STATUS_OK;
}

/* A model from model_describe has neither pool nor bf16 copy, and needs none. */
static status check_spec(const model *m, const forward_spec *spec, const float *pool, error *err)
{
	const bool encodes = spec->phase == PHASE_ENCODE;
	const model *of = m->base ? m->base : m;
	if (spec->batch < 1 || (encodes ? spec->source : spec->length) < 1)
		return error_set(err, STATUS_INVALID, NULL, "a forward needs a batch and a length of at least 1");
	if (spec->train.backward && (!spec->train.loss || forward_recurrent(spec)))
		return error_set(err, STATUS_INVALID, NULL, "a backward needs a loss and the parallel form");
	if (spec->train.hits && !spec->train.loss)
		return error_set(err, STATUS_INVALID, NULL, "hits are of a loss's labels");
	if (forward_recurrent(spec) && (spec->slots < 1 || (m->arena && !pool)))
		return error_set(err, STATUS_INVALID, NULL, "a recurrent forward needs a state pool");
	if (m->dims.form->source && spec->source < 1 && !forward_recurrent(spec))
		return error_set(err, STATUS_UNSUPPORTED, "model",
		                 "the model attends to a source, which there is none of here");
	if (encodes && !m->dims.source)
		return error_set(err, STATUS_UNSUPPORTED, "model", "the model has no encoder for a source");
	if (forward_recurrent(spec) && m->dims.parallel_only)
		return error_set(err, STATUS_UNSUPPORTED, "model", "the model cannot read token by token: it has %s",
		                 m->dims.parallel_only);
	if (forward_recurrent(spec) && !m->dims.form->stepwise)
		return error_set(err, STATUS_UNSUPPORTED, "model", "the architecture %s cannot read token by token",
		                 m->architecture->name);
	if (encodes && (spec->out.logits != LOGITS_NONE || spec->out.embedding != POOL_NONE || spec->train.loss ||
	                spec->explain.log))
		return error_set(err, STATUS_INVALID, NULL, "a source is encoded without any outputs");
	if (m->dims.segment && !forward_recurrent(spec) && spec->length > m->dims.segment)
		return error_set(err, STATUS_UNSUPPORTED, "model",
		                 "whole sequences have at most the %" PRId64 " tokens of a segment", m->dims.segment);
	if (spec->train.carried && (!m->carried.count || forward_recurrent(spec)))
		return error_set(err, STATUS_INVALID, "model", "no row leaves anything to the next");
	if (spec->train.carried && m->architecture->carries_states &&
	    (spec->bf16 || spec->train.recompute || (m->arena && !pool)))
		return error_set(err, STATUS_UNSUPPORTED, spec->bf16 ? "precision" : "recompute",
		                 "the architecture %s carries its state in fp32, and reads it once",
		                 m->architecture->name);
	if (spec->initial_states)
		TRY(adapter_check(of, err));
	if (m->base && !m->lora.rank)
		TRY(check_adapter_spec(spec, err));
	if (spec->adapters && (!forward_recurrent(spec) || m->base))
		return error_set(err, STATUS_INVALID, NULL, "a bank of adapters is for the recurrent form of a model");
	if (spec->phase == PHASE_READ && (spec->masked || spec->train.loss))
		return error_set(err, STATUS_INVALID, NULL,
		                 "sequences of different lengths have neither mask nor loss");
	if (spec->train.backward && of->weights != DTYPE_F32)
		return error_set(err, STATUS_UNSUPPORTED, NULL, "packed weights have no gradients");
	if (spec->bf16 && (forward_recurrent(spec) || of->weights != DTYPE_F32))
		return error_set(err, STATUS_UNSUPPORTED, NULL, "%s in bf16",
		                 forward_recurrent(spec) ? "there is no recurrent form"
		                                         : "packed weights are not computed with");
	if (spec->bf16 && of->arena && !of->bf16_weights)
		return error_set(err, STATUS_INVALID, NULL, "a forward in bf16 needs the bf16 copy of the weights");
	if (spec->explain.attribution &&
	    (forward_recurrent(spec) || spec->train.backward || spec->bf16 || !has_score(m, spec)))
		return error_set(err, STATUS_INVALID, NULL,
		                 "an attribution needs the parallel form and a row of logits");
	if (spec->explain.attribution && spec->source == spec->length)
		return error_set(err, STATUS_INVALID, NULL, "an attribution needs a source of another length");
	if (spec->out.rows &&
	    (forward_recurrent(spec) || spec->out.logits != LOGITS_LAST || spec->explain.attribution ||
	     spec->out.embedding != POOL_NONE || m->dims.form->head != HEAD_VOCABULARY))
		return error_set(
		    err, STATUS_INVALID, NULL,
		    "rows of logits need the parallel form and a head for tokens, and no vector or attribution");
	if (spec->explain.log && !model_explainer(m))
		return error_set(err, STATUS_UNSUPPORTED, "model", "the architecture %s has no importance weights",
		                 m->architecture->name);
	if (spec->explain.log && model_explainer(m)->recurrent && !forward_recurrent(spec))
		return error_set(err, STATUS_UNSUPPORTED, "explain", "the architecture %s is explained token by token",
		                 m->architecture->name);
	return STATUS_OK;
}

/* True if a parameter is read from the bf16 copy. An adapter has none. */
static bool is_bf16(const model *m, const parameter_spec *p, const forward_spec *spec)
{
	return spec->bf16 && p->shape.rank >= 2 && !m->base;
}

/* VALUE_NONE: not trained, or the loss does not depend on it. */
static value gradient_of(const graph *g, const parameter_spec *p)
{
	return p->fixed ? VALUE_NONE : graph_gradient(g, graph_find(g, p->name));
}

static void add_weights(graph *g, const model *m, const forward_spec *spec)
{
	if (m->base)
		add_weights(g, m->base, spec);
	for (int i = 0; i < m->parameters.count; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		graph_weight(g, p->name, is_bf16(m, p, spec) ? DTYPE_BF16 : model_stored_type(m, p), p->shape);
	}
}

static graph *model_build(const model *m, const forward_spec *spec)
{
	graph *g = graph_new();
	if (!g)
		return NULL;
	add_weights(g, m, spec);
	builder b = builder_begin(g, spec, &m->states);
	if (spec->train.carried && m->architecture->carries_states)
		builder_carry(&b);
	b.parameters = &(m->base ? m->base : m)->parameters;
	lora_begin(&b, m->lora.rank ? (float)(m->lora.alpha / (double)m->lora.rank) : 0);
	m->architecture->forward(m->config, &b);
	if (spec->explain.attribution)
		attribution_append(&b);
	if (!spec->train.backward)
		return g;
	graph_backward(g, port_find(g, PORT_LOSS));
	for (int i = 0; i < m->parameters.count && graph_status(g, NULL) == STATUS_OK; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		value gradient = gradient_of(g, p);
		if (gradient != VALUE_NONE)
			graph_output(g, gradient, "grad.%s", p->name);
	}
	value rows = port_find(g, PORT_SOURCE_ROWS);
	if (rows != VALUE_NONE && graph_gradient(g, rows) != VALUE_NONE)
		graph_output(g, graph_gradient(g, rows), "grad.%s", port_name(PORT_SOURCE_ROWS));
	return g;
}

/* Bind the weights and, unless it is NULL, the arena of gradients; return the number of bindings. */
static int bind_weights(const model *m, const forward_spec *spec, const graph *g, float *gradients,
                        plan_binding *bindings)
{
	int n = m->base ? bind_weights(m->base, spec, g, NULL, bindings) : 0;
	for (int i = 0; i < m->parameters.count; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		value gradient = gradients && spec->train.backward ? gradient_of(g, p) : VALUE_NONE;
		bindings[n].v = graph_find(g, p->name);
		if (is_bf16(m, p, spec))
			bindings[n++].data = m->bf16_weights + m->offset[i];
		else
			bindings[n++].data = m->arena + m->offset[i];
		if (gradient != VALUE_NONE)
			bindings[n++] = (plan_binding){gradient, gradients + m->offset[i]};
	}
	return n;
}

/* Fill bindings (room for 2 * parameters + 1 + inputs) and return their number. */
static int bind(const model *m, const forward_spec *spec, const graph *g, float *gradients, float *pool,
                plan_binding *bindings)
{
	int n = bind_weights(m, spec, g, gradients, bindings);
	value state = graph_find(g, STATE_POOL);
	if (state != VALUE_NONE)
		bindings[n++] = (plan_binding){state, pool};
	for (const forward_input *i = spec->inputs; i && i->name; i++) {
		value input = i->data ? graph_find(g, i->name) : VALUE_NONE;
		if (input != VALUE_NONE)
			bindings[n++] = (plan_binding){input, i->data};
	}
	return n;
}

status model_graph(graph **out, const model *m, const forward_spec *spec, error *err)
{
	*out = NULL;
	TRY(check_spec(m, spec, NULL, err));
	*out = model_build(m, spec);
	return *out ? graph_status(*out, err) : error_no_memory(err, "a model");
}

status model_plan(plan **out, const model *m, const forward_spec *spec, float *gradients, float *pool, error *err)
{
	*out = NULL;
	TRY(check_spec(m, spec, pool, err));
	graph *g = model_build(m, spec);
	size_t inputs = 0;
	while (spec->inputs && spec->inputs[inputs].name)
		inputs++;
	const int weights = m->parameters.count + (m->base ? m->base->parameters.count : 0);
	plan_binding *bindings = memory_new(2 * (size_t)weights + 1 + inputs, sizeof *bindings);
	status s = g && bindings ? graph_status(g, err) : error_no_memory(err, "a model");
	if (s == STATUS_OK)
		s = plan_new(out, g, m->backend, bindings, bind(m, spec, g, gradients, pool, bindings), err);
	else
		graph_free(g);
	free(bindings);
	return s;
}

int model_gradient_node(const model *m, const plan *p, int index)
{
	const value gradient = gradient_of(plan_graph(p), &m->parameters.items[index]);
	return gradient == VALUE_NONE ? -1 : plan_node_of(p, gradient);
}
