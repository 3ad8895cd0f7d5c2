/* Every array has the maximum size that nodes can need, so filling cannot fail. */
#include "tests/golden/label_graph.h"

#include "engine/base/memory.h"
#include "engine/tensor/ops/hash_rows.h"

enum { MAX_LABELS = 2 * HASH_ROWS_ROUNDS, MAX_SPANS = 2 };

static void add_label(label_graph *g, const label_options *o, int64_t label)
{
	if (!o->hashed)
		g->label[g->labels++] = (int32_t)label;
	for (int i = 0; i < HASH_ROWS_ROUNDS && o->hashed; i++)
		g->label[g->labels++] = hash_row(label, i);
}

/* Label `base` represents a dropped token; the following labels represent tokens. */
static void add_token(label_graph *g, const label_options *o, int64_t base, int32_t token, mt19937 *random)
{
	add_label(g, o, mt19937_uniform(random) <= o->keep ? base + 1 + token : base);
}

static void add_span(label_spans *s, int64_t start, int64_t finish)
{
	s->start[s->count] = (int32_t)start;
	s->finish[s->count++] = (int32_t)finish;
}

/* first: the start node; own: the node of token t, in the fragment; document: where its document begins there. */
static void add_spans(label_spans *s, int64_t first, int64_t own, int64_t document, int64_t window)
{
	const int64_t reach = own - window + 1, start = reach > document ? reach : document;
	if (start < own)
		add_span(s, first + start, first + own - 1);
	if (start > 0)
		add_span(s, first, first);
}

static bool predicts(const label_options *o, const label_fragment *f, int64_t t, int64_t document)
{
	if (o->targets == LABEL_TARGETS_TAIL)
		return 2 * t >= f->count;
	if (o->targets == LABEL_TARGETS_ANSWER)
		return document > 0 && t + 1 < f->count && f->target[t + 1] == 0;
	return true;
}

/* End a node whose labels and spans are complete. */
static void end_node(label_graph *g, int64_t token)
{
	g->token[g->nodes++] = (int32_t)token;
	g->label_ptr[g->nodes] = (int32_t)g->labels;
	for (int w = 0; w < LABEL_GRAPH_WINDOWS; w++)
		g->spans[w].ptr[g->nodes] = (int32_t)g->spans[w].count;
}

static void add_fragment(label_graph *g, const label_options *o, const label_fragment *f, mt19937 *random)
{
	const int64_t first = g->nodes;
	int64_t document = 0;
	g->label[g->labels++] = 0;
	end_node(g, -1);
	for (int64_t t = 0; t < f->count; t++) {
		add_token(g, o, 1, f->text[t], random);
		if (f->continuation && f->continuation[t] >= 0)
			add_token(g, o, o->vocabulary + 2, f->continuation[t], random);
		if (t > 0 && f->text[t] == o->document)
			document = t + 1;
		for (int w = 0; w < LABEL_GRAPH_WINDOWS; w++)
			add_spans(&g->spans[w], first, t + 1, document, o->window[w]);
		if (predicts(o, f, t, document)) {
			g->target_node[g->targets] = (int32_t)g->nodes;
			g->target_id[g->targets++] = f->target[t];
		}
		end_node(g, t);
	}
}

static bool label_graph_allocate(int32_t **out, int64_t count)
{
	*out = memory_new((size_t)count, sizeof **out);
	return *out != NULL;
}

status label_graph_new(label_graph *out, const label_options *o, const label_fragment *fragments, int count,
                       mt19937 *random)
{
	int64_t nodes = 0;
	*out = (label_graph){0};
	for (int i = 0; i < count; i++)
		nodes += fragments[i].count + 1;
	bool all = label_graph_allocate(&out->label, MAX_LABELS * nodes) &&
	           label_graph_allocate(&out->label_ptr, nodes + 1) && label_graph_allocate(&out->token, nodes) &&
	           label_graph_allocate(&out->target_node, nodes) && label_graph_allocate(&out->target_id, nodes);
	for (int w = 0; w < LABEL_GRAPH_WINDOWS; w++)
		all = all && label_graph_allocate(&out->spans[w].start, MAX_SPANS * nodes) &&
		      label_graph_allocate(&out->spans[w].finish, MAX_SPANS * nodes) &&
		      label_graph_allocate(&out->spans[w].ptr, nodes + 1);
	if (!all) {
		label_graph_free(out);
		return STATUS_NOMEM;
	}
	for (int i = 0; i < count; i++)
		add_fragment(out, o, &fragments[i], random);
	return STATUS_OK;
}

void label_graph_free(label_graph *g)
{
	free(g->label);
	free(g->label_ptr);
	free(g->token);
	free(g->target_node);
	free(g->target_id);
	for (int w = 0; w < LABEL_GRAPH_WINDOWS; w++) {
		free(g->spans[w].start);
		free(g->spans[w].finish);
		free(g->spans[w].ptr);
	}
	*g = (label_graph){0};
}

void label_graph_channels(uint32_t *mask, int64_t words, double keep, mt19937 *random)
{
	for (int64_t i = 0; i < words; i++) {
		mask[i] = 0;
		for (int bit = 0; bit < 32; bit++)
			mask[i] |= (uint32_t)(mt19937_uniform(random) <= keep) << bit;
	}
}
