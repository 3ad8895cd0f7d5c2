#include "engine/model/port.h"

static const char *const names[PORT_ROLES] = {
    [PORT_TOKENS] = "input_ids",
    [PORT_POSITIONS] = "position_ids",
    [PORT_MASK] = "attention_mask",
    [PORT_LABELS] = "labels",
    [PORT_RANDOM] = "rng",
    [PORT_SLOT] = "slot",
    [PORT_POSITION] = "position",
    [PORT_STARTED] = "started",
    [PORT_LENGTH] = "length",
    [PORT_START] = "start",
    [PORT_LAST] = "last",
    [PORT_ENTRY] = "entry",
    [PORT_SOURCE] = "source_ids",
    [PORT_SOURCE_POSITIONS] = "source_position_ids",
    [PORT_SOURCE_MASK] = "source_mask",
    [PORT_MEMORY_MASK] = "memory_mask",
    [PORT_SOURCE_ROWS] = "source_rows",
    [PORT_MEMORY] = "memory.0",
    [PORT_LOGITS] = "logits",
    [PORT_MAXIMA] = "maxima",
    [PORT_HIDDEN] = "hidden",
    [PORT_EMBEDDING] = "embedding",
    [PORT_ENCODINGS] = "encodings",
    [PORT_LOSS] = "loss",
    [PORT_COUNT] = "count",
    [PORT_HITS] = "hits",
    [PORT_LABEL_WEIGHTS] = "label_weights",
    [PORT_LOG_PROBABILITIES] = "log_probabilities",
    [PORT_COEFFICIENTS] = "coefficients",
    [PORT_FACTOR] = "factor",
    [PORT_BASELINE] = "baseline",
    [PORT_WORD_PARTS] = "parts.words",
    [PORT_WORDS] = "words",
    [PORT_WORD_SQUARES] = "words.squares",
    [PORT_POSITION_PARTS] = "parts.positions",
    [PORT_BIAS_PARTS] = "parts.biases",
    [PORT_LAST_PARTS] = "parts.last",
    [PORT_HEAD_PARTS] = "parts.head",
    [PORT_ATTENTION_PARTS] = "parts.attention",
    [PORT_SOURCE_WORD_PARTS] = "parts.source.words",
    [PORT_SOURCE_POSITION_PARTS] = "parts.source.positions",
    [PORT_SOURCE_BIAS_PARTS] = "parts.source.biases",
    [PORT_SOURCE_ATTENTION_PARTS] = "parts.source.attention",
};

const char *port_name(port_role role)
{
	return names[role];
}

value port_find(const graph *g, port_role role)
{
	return graph_find(g, names[role]);
}

int64_t port_width(const graph *g, port_role role)
{
	const value v = port_find(g, role);
	return v == VALUE_NONE ? 0 : shape_last(graph_value(g, v)->shape);
}
