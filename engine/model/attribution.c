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

static value sum_of_places(const builder *b, const value *places, int n)
{
	value positions = VALUE_NONE;
	for (int i = 0; i < n; i++)
		positions = sum(b, positions, part_of(b, places[i], places[i]));
	return positions;
}

/* Rows of two tables are of the same positions; a row without a token has no position. */
static void add_constant_parts(const builder *b, shape tokens, shape rows)
{
	graph *g = b->g;
	name_part(b, sum_of_places(b, b->places, b->n_places), PORT_POSITION_PARTS);
	name_part(b, graph_collected(g, SUM_BIASES, tokens, false), PORT_BIAS_PARTS);
	if (b->spec->length > 1)
		name_part(b, graph_collected(g, SUM_BIASES, rows, false), PORT_LAST_PARTS);
	name_part(b, sum(b, graph_collected(g, SUM_BIASES, rows, true), part_of(b, b->front, b->front)),
	          PORT_HEAD_PARTS);
}

/* Sums over rows of a source and of the tokens are distinguished by their number of rows, which must differ. */
static void add_source_parts(const builder *b, bool frozen)
{
	graph *g = b->g;
	const shape tokens = SHAPE1(b->spec->batch * b->spec->source);
	if (b->source_words == VALUE_NONE)
		return;
	name_part(b, part_of(b, frozen ? b->source_words : b->source_scaled, b->source_words), PORT_SOURCE_WORD_PARTS);
	name_part(b, sum_of_places(b, b->source_places, frozen ? b->n_source_places : 0), PORT_SOURCE_POSITION_PARTS);
	if (b->spec->source > 1)
		name_part(b, graph_collected(g, frozen ? SUM_BIASES : SUM_ATTENTION, tokens, false),
		          frozen ? PORT_SOURCE_BIAS_PARTS : PORT_SOURCE_ATTENTION_PARTS);
}

void attribution_append(builder *b)
{
	graph *g = b->g;
	const forward_spec *spec = b->spec;
	if (graph_status(g, NULL) != STATUS_OK)
		return;
	const bool frozen = spec->explain.attribution == ATTRIBUTION_FROZEN;
	const graph_rule rule = {.frozen = frozen, .share = spec->explain.share, .collects = true, .apart = b->row};
	const shape tokens = SHAPE1(spec->batch * spec->length), rows = SHAPE1(spec->batch);
	const value words = frozen ? b->words : b->scaled;
	value sources[8] = {words}, logits = b->logits;
	int n = 1;
	for (int i = 0; i < b->n_places && frozen; i++)
		sources[n++] = b->places[i];
	if (b->front != VALUE_NONE && frozen)
		sources[n++] = b->front;
	if (b->source_words != VALUE_NONE)
		sources[n++] = frozen ? b->source_words : b->source_scaled;
	for (int i = 0; i < b->n_source_places && frozen; i++)
		sources[n++] = b->source_places[i];
	value coefficients = graph_input(g, port_name(PORT_COEFFICIENTS), DTYPE_F32, graph_value(g, logits)->shape);
	graph_pull_back(g, logits, coefficients, sources, n, rule);
	name_part(b, part_of(b, words, frozen ? b->words : b->away), PORT_WORD_PARTS);
	if (frozen)
		add_constant_parts(b, tokens, rows);
	else
		name_part(b, graph_collected(g, SUM_ATTENTION, tokens, false), PORT_ATTENTION_PARTS);
	add_source_parts(b, frozen);
}
