#include "engine/model/attribution.h"

/* ⟨gradient of v, x⟩ of each row, or VALUE_NONE. */
static value part_of(const builder *b, value v, value x)
{
	value gradient = v == VALUE_NONE ? VALUE_NONE : graph_gradient(b->g, v);
	return gradient == VALUE_NONE ? VALUE_NONE : op_dot_rows(b->g, gradient, x, 1);
}

static value sum(const builder *b, value x, value y)
{
	return x == VALUE_NONE ? y : y == VALUE_NONE ? x : op_add(b->g, x, y);
}

static void name_part(const builder *b, value part, port_role role)
{
	if (part != VALUE_NONE)
		graph_output(b->g, part, "%s", port_name(role));
}

/* The rows of two tables are of the same positions; a row that is no token's belongs to no position. */
static void add_constant_parts(const builder *b, shape tokens, shape rows)
{
	graph *g = b->g;
	value positions = VALUE_NONE;
	for (int i = 0; i < b->n_places; i++)
		positions = sum(b, positions, part_of(b, b->places[i], b->places[i]));
	name_part(b, positions, PORT_POSITION_PARTS);
	name_part(b, graph_collected(g, SUM_BIASES, tokens, false), PORT_BIAS_PARTS);
	if (b->spec->length > 1)
		name_part(b, graph_collected(g, SUM_BIASES, rows, false), PORT_LAST_PARTS);
	name_part(b, sum(b, graph_collected(g, SUM_BIASES, rows, true), part_of(b, b->front, b->front)),
	          PORT_HEAD_PARTS);
}

void attribution_append(builder *b)
{
	graph *g = b->g;
	const forward_spec *spec = b->spec;
	if (graph_status(g, NULL) != STATUS_OK)
		return;
	const bool frozen = spec->attribution == ATTRIBUTION_FROZEN;
	const graph_rule rule = {.frozen = frozen, .share = spec->share, .collects = true, .apart = b->row};
	const shape tokens = SHAPE1(spec->batch * spec->length), rows = SHAPE1(spec->batch);
	const value words = frozen ? b->words : b->scaled;
	value sources[4] = {words}, logits = b->logits;
	int n = 1;
	for (int i = 0; i < b->n_places && frozen; i++)
		sources[n++] = b->places[i];
	if (b->front != VALUE_NONE && frozen)
		sources[n++] = b->front;
	value coefficients = graph_input(g, port_name(PORT_COEFFICIENTS), DTYPE_F32, graph_value(g, logits)->shape);
	graph_pull_back(g, logits, coefficients, sources, n, rule);
	name_part(b, part_of(b, words, b->words), PORT_WORD_PARTS);
	if (frozen)
		add_constant_parts(b, tokens, rows);
	else
		name_part(b, graph_collected(g, SUM_ATTENTION, tokens, false), PORT_ATTENTION_PARTS);
}
