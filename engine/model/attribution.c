#include "engine/model/attribution.h"

/* ⟨gradient of v, x⟩ of each token. */
static void parts_of(const builder *b, value v, value x, port_role role)
{
	value gradient = graph_gradient(b->g, v);
	if (gradient != VALUE_NONE)
		graph_output(b->g, op_dot_rows(b->g, gradient, x, 1), "%s", port_name(role));
}

static void collected(const builder *b, graph_sum which, shape s, bool head, port_role role)
{
	value sum = graph_collected(b->g, which, s, head);
	if (sum != VALUE_NONE)
		graph_output(b->g, sum, "%s", port_name(role));
}

void attribution_append(builder *b)
{
	graph *g = b->g;
	const forward_spec *spec = b->spec;
	if (graph_status(g, NULL) != STATUS_OK)
		return;
	const bool frozen = spec->attribution == ATTRIBUTION_FROZEN;
	const value words = frozen ? b->words : b->scaled, sources[] = {words, b->places};
	const graph_rule rule = {.frozen = frozen, .share = spec->share, .collects = true, .apart = b->row};
	const shape tokens = SHAPE1(spec->batch * spec->length), rows = SHAPE1(spec->batch);
	const shape logits = graph_value(g, b->logits)->shape;
	value coefficients = graph_input(g, port_name(PORT_COEFFICIENTS), DTYPE_F32, logits);
	graph_pull_back(g, b->logits, coefficients, sources, frozen && b->places != VALUE_NONE ? 2 : 1, rule);
	parts_of(b, words, b->words, PORT_WORD_PARTS);
	if (frozen) {
		parts_of(b, b->places, b->places, PORT_POSITION_PARTS);
		collected(b, SUM_BIASES, tokens, false, PORT_BIAS_PARTS);
		if (spec->length > 1)
			collected(b, SUM_BIASES, rows, false, PORT_LAST_PARTS);
		collected(b, SUM_BIASES, rows, true, PORT_HEAD_PARTS);
	} else {
		collected(b, SUM_ATTENTION, tokens, false, PORT_ATTENTION_PARTS);
	}
}
