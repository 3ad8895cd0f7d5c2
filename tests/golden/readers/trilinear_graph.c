/* 3Lin's nodes: their labels, spans and targets, by tests/golden/label_graph.h.
 *
 * A case has two fragments text{0,1}, target{0,1} [n] with continuations ppm{0,1} (65535: none); case grok has one,
 * grok.text and grok.target. config: V, D, window, wide_window. Values:
 *
 *   CASE.{label_arr,label_ptr,target_node,target_id,{narrow,wide}_span_{start,finish,ptr}}
 *   CASE.sample_index [nodes]       index of a token in its fragment
 *   CASE.test_target_node           the nodes that an evaluation predicts from
 *   CASE.drop_table [D / 32]        a bit for each channel, set if it is kept; drawn after the labels
 *   lr_tailT_maxM_lrR [M + 1]       the rate R of the schedule tail T before each of M steps and after the last
 *
 * The cases are the source's own: plain; drop (keeps labels and channels with probability 0.5); doc (token 3 ends a
 * document); ppm (continuations, kept with 0.6); hash and hashppm (hashed rows); tail; grok. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/golden/label_results.h"
#include "engine/train/trainer.h"

enum {
	FRAGMENTS = 2,
	MAX_VOCABULARY = 1 << 20,
	MAX_STEPS = 1 << 20,
	MAX_CHANNELS = 1 << 16,
	NO_CONTINUATION = 65535,
	NAME_BYTES = 32
};

typedef struct graph_case {
	const char *name;
	uint32_t seed;
	double keep, channel_keep;
	int32_t document;
	bool hashed, continued, tail;
} graph_case;

static const graph_case cases[] = {
    {.name = "plain", .seed = 5, .keep = 1, .channel_keep = 1, .document = -1},
    {.name = "drop", .seed = 5, .keep = 0.5, .channel_keep = 0.5, .document = -1},
    {.name = "doc", .seed = 5, .keep = 1, .channel_keep = 1, .document = 3},
    {.name = "ppm", .seed = 77, .keep = 0.6, .channel_keep = 0.9, .document = -1, .continued = true},
    {.name = "hash", .seed = 5, .keep = 1, .channel_keep = 1, .document = -1, .hashed = true},
    {.name = "hashppm",
     .seed = 77,
     .keep = 0.6,
     .channel_keep = 0.9,
     .document = -1,
     .hashed = true,
     .continued = true},
    {.name = "tail", .seed = 5, .keep = 1, .channel_keep = 1, .document = -1, .tail = true},
};
static const graph_case answers = {.name = "grok", .seed = 5, .keep = 1, .channel_keep = 1, .document = 0};

static bool recognises(const golden *g)
{
	return golden_find(g, "plain.label_ptr") && golden_find(g, "text0");
}

static status read_options(golden *g, const graph_case *c, label_options *o, error *err)
{
	*o = (label_options){.keep = c->keep, .hashed = c->hashed, .document = c->document};
	TRY(golden_config_integer(g, "V", MAX_VOCABULARY, &o->vocabulary, err));
	TRY(golden_config_integer(g, "window", MAX_STEPS, &o->window[LABEL_GRAPH_NARROW], err));
	return golden_config_integer(g, "wide_window", MAX_STEPS, &o->window[LABEL_GRAPH_WIDE], err);
}

static status read_list(golden *g, const char *name, int64_t count, int32_t most, const int32_t **out, error *err)
{
	return golden_integers(g, name, EXTENT(count), 0, most, out, err);
}

static status read_fragment(golden *g, const char *text, const char *target, int32_t vocabulary, label_fragment *out,
                            error *err)
{
	extent e;
	TRY(golden_rank(g, text, 1, &e, err));
	*out = (label_fragment){.count = e.dim[0]};
	TRY(read_list(g, text, out->count, vocabulary - 1, &out->text, err));
	return read_list(g, target, out->count, vocabulary - 1, &out->target, err);
}

static status read_continuation(golden *g, int i, int32_t vocabulary, label_fragment *out, error *err)
{
	char name[NAME_BYTES];
	const int32_t *given;
	void *ids;
	snprintf(name, sizeof name, "ppm%d", i);
	TRY(read_list(g, name, out->count, NO_CONTINUATION, &given, err));
	TRY(golden_memory(g, out->count, sizeof(int32_t), &ids, err));
	for (int64_t k = 0; k < out->count; k++) {
		if (given[k] >= vocabulary && given[k] != NO_CONTINUATION)
			return error_set(err, STATUS_INVALID, name, "tensor \"%s\" has a token past the vocabulary",
			                 name);
		((int32_t *)ids)[k] = given[k] == NO_CONTINUATION ? -1 : given[k];
	}
	out->continuation = ids;
	return STATUS_OK;
}

/* random: seeded; after the call it has drawn the numbers of the labels. */
static status make(label_graph *x, const label_options *o, const label_fragment *f, int count, uint32_t seed,
                   mt19937 *random, error *err)
{
	mt19937_seed(random, seed);
	status s = label_graph_new(x, o, f, count, random);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "out of memory");
}

static status add_channels(golden *g, const graph_case *c, mt19937 *random, error *err)
{
	int64_t channels, *out;
	uint32_t word;
	if (!golden_find(g, "%s.drop_table", c->name))
		return STATUS_OK;
	TRY(golden_config_integer(g, "D", MAX_CHANNELS, &channels, err));
	const int64_t words = (channels + 31) / 32;
	TRY(golden_result_integers(g, EXTENT(words), &out, err, "%s.drop_table", c->name));
	for (int64_t i = 0; i < words; i++) {
		label_graph_channels(&word, 1, c->channel_keep, random);
		out[i] = word;
	}
	return STATUS_OK;
}

static status add_case(golden *g, const graph_case *c, const label_options *o, const label_fragment *f, int count,
                       error *err)
{
	char prefix[NAME_BYTES];
	label_options asked = *o;
	label_graph x;
	mt19937 random;
	snprintf(prefix, sizeof prefix, "%s.", c->name);
	TRY(make(&x, o, f, count, c->seed, &random, err));
	status s = label_results_add(g, &x, prefix, err);
	if (s == STATUS_OK)
		s = label_results_list(g, x.token, x.nodes, prefix, "sample_index", err);
	if (s == STATUS_OK)
		s = add_channels(g, c, &random, err);
	label_graph_free(&x);
	if (s != STATUS_OK)
		return s;
	if (c->tail)
		asked.targets = LABEL_TARGETS_TAIL;
	TRY(make(&x, &asked, f, count, c->seed, &random, err));
	s = label_results_list(g, x.target_node, x.targets, prefix, "test_target_node", err);
	label_graph_free(&x);
	return s;
}

static status add_fragments(golden *g, const graph_case *c, error *err)
{
	label_options o;
	label_fragment f[FRAGMENTS];
	TRY(read_options(g, c, &o, err));
	const int32_t vocabulary = (int32_t)o.vocabulary;
	for (int i = 0; i < FRAGMENTS; i++) {
		char text[NAME_BYTES], target[NAME_BYTES];
		snprintf(text, sizeof text, "text%d", i);
		snprintf(target, sizeof target, "target%d", i);
		TRY(read_fragment(g, text, target, vocabulary, &f[i], err));
		if (c->continued)
			TRY(read_continuation(g, i, vocabulary, &f[i], err));
	}
	return add_case(g, c, &o, f, FRAGMENTS, err);
}

static status add_answers(golden *g, error *err)
{
	label_options o;
	label_fragment f;
	TRY(read_options(g, &answers, &o, err));
	o.targets = LABEL_TARGETS_ANSWER;
	TRY(read_fragment(g, "grok.text", "grok.target", (int32_t)o.vocabulary, &f, err));
	return add_case(g, &answers, &o, &f, 1, err);
}

static status add_rates(golden *g, const char *name, error *err)
{
	train_options o;
	float *out;
	train_options_default(&o);
	o.schedule = SCHEDULE_TAIL;
	o.warmup_steps = 0;
	if (sscanf(name, "lr_tail%lf_max%" SCNd64 "_lr%lf", &o.tail, &o.max_steps, &o.learning_rate) != 3 ||
	    o.max_steps < 1 || o.max_steps > MAX_STEPS)
		return STATUS_OK;
	TRY(golden_result(g, EXTENT(o.max_steps + 1), &out, err, "%s", name));
	for (int64_t t = 0; t <= o.max_steps; t++)
		out[t] = (float)train_learning_rate(&o, t);
	return STATUS_OK;
}

static status evaluate(golden *g, error *err)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (golden_find(g, "%s.label_arr", cases[i].name))
			TRY(add_fragments(g, &cases[i], err));
	if (golden_find(g, "grok.text"))
		TRY(add_answers(g, err));
	for (int i = 0; i < g->count; i++)
		TRY(add_rates(g, g->tensors[i].entry->name, err));
	return STATUS_OK;
}

const golden_reader golden_reader_trilinear_graph = {
    .source = "3Lin's graph of labels",
    .recognises = recognises,
    .evaluate = evaluate,
};
