/* The cases of 3Lin's own graph: results of its source for two fragments, and for a fragment of sums and their
 * answers. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/golden/label_graph.h"

static const int32_t first_text[] = {2, 8, 6, 4, 7, 3, 3, 8, 3, 3, 1, 0, 0};
static const int32_t first_target[] = {8, 6, 4, 7, 3, 3, 8, 3, 3, 1, 0, 0, 6};
static const int32_t second_text[] = {3, 1, 2};
static const int32_t second_target[] = {1, 2, 3};
static const int32_t sums_text[] = {0, 4, 5, 1, 0, 2, 2, 4, 0, 8, 1, 7};
static const int32_t sums_target[] = {4, 5, 1, 0, 2, 2, 4, 0, 8, 1, 7, 0};
static const int32_t first_continuation[] = {-1, 7, 3, -1, 7, 7, -1, 0, 5, -1, 3, 1, -1},
                     second_continuation[] = {-1, 2, 3};
static const int32_t plain_labels[] = {0, 4, 10, 8, 6, 9, 5, 5, 10, 5, 5, 3, 2, 2, 0, 5, 3, 4};
static const int32_t drop_labels[] = {0, 4, 10, 1, 1, 9, 5, 1, 1, 5, 5, 1, 2, 1, 0, 5, 1, 4};
static const int32_t ppm_labels[] = {0, 1,  10, 11, 8,  11, 6,  9, 11, 5, 19, 1,  1, 12,
                                     1, 17, 1,  3,  15, 2,  11, 2, 0,  5, 1,  14, 1, 11};
static const int32_t hash_labels[] = {0,    533,  217,  387,  2003, 510,  1424, 831,  1778, 396,  1706, 998,  1416,
                                      393,  1144, 1934, 96,   1631, 1926, 96,   1631, 1926, 2003, 510,  1424, 96,
                                      1631, 1926, 96,   1631, 1926, 971,  851,  897,  1409, 1485, 1407, 1409, 1485,
                                      1407, 0,    96,   1631, 1926, 971,  851,  897,  533,  217,  387};
static const int32_t hashppm_labels[] = {
    0,    1846, 71,   1917, 2003, 510,  1424, 1566, 1924, 914,  831,  1778, 396,  1566, 1924, 914,
    1706, 998,  1416, 393,  1144, 1934, 1566, 1924, 914,  96,   1631, 1926, 112,  950,  931,  1846,
    71,   1917, 1846, 71,   1917, 1128, 1291, 404,  1846, 71,   1917, 987,  169,  1951, 1846, 71,
    1917, 971,  851,  897,  1863, 1437, 923,  1409, 1485, 1407, 1566, 1924, 914,  1409, 1485, 1407,
    0,    96,   1631, 1926, 1846, 71,   1917, 252,  23,   1433, 1846, 71,   1917, 1566, 1924, 914};
static const int32_t grok_labels[] = {0, 2, 6, 7, 3, 2, 4, 4, 6, 2, 10, 3, 9};
static const int32_t ppm_ptr[] = {0, 1, 2, 4, 6, 7, 9, 11, 12, 14, 16, 17, 19, 21, 22, 23, 24, 26, 28};
static const int32_t hashppm_ptr[] = {0, 1, 4, 10, 16, 19, 25, 31, 34, 40, 46, 49, 55, 61, 64, 65, 68, 74, 80};
static const int32_t plain_narrow_start[] = {0, 0, 0, 1, 0, 2, 0, 3, 0,  4, 0,  5,  0,
                                             6, 0, 7, 0, 8, 0, 9, 0, 10, 0, 14, 14, 14};
static const int32_t plain_narrow_finish[] = {0, 1, 2, 3, 0,  4, 0,  5, 0,  6, 0,  7,  0,
                                              8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 14, 15, 16};
static const int32_t plain_narrow_ptr[] = {0, 0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 23, 24, 25, 26};
static const int32_t plain_wide_start[] = {0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 14, 14, 14};
static const int32_t plain_wide_finish[] = {0, 1, 2, 3, 4, 5, 6, 0, 7, 0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 14, 15, 16};
static const int32_t plain_wide_ptr[] = {0, 0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 20, 21, 22, 23};
static const int32_t doc_narrow_start[] = {0, 0, 0, 1, 0, 2, 0, 0, 0, 7, 0, 0, 0, 10, 0, 10, 0, 10, 0, 14, 14, 14};
static const int32_t doc_narrow_finish[] = {0, 1, 2, 3, 0, 4, 0, 0, 0, 7, 0, 0, 0, 10, 0, 11, 0, 12, 0, 14, 15, 16};
static const int32_t doc_narrow_ptr[] = {0, 0, 1, 2, 3, 5, 7, 8, 9, 11, 12, 13, 15, 17, 19, 19, 20, 21, 22};
static const int32_t doc_wide_start[] = {0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 10, 0, 10, 0, 10, 0, 14, 14, 14};
static const int32_t doc_wide_finish[] = {0, 1, 2, 3, 4, 0, 0, 7, 0, 0, 0, 10, 0, 11, 0, 12, 0, 14, 15, 16};
static const int32_t doc_wide_ptr[] = {0, 0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 15, 17, 17, 18, 19, 20};
static const int32_t grok_narrow_start[] = {0, 0, 0, 1, 0, 0, 5, 0, 5, 0, 5, 0, 0, 9, 0, 9, 0, 9, 0};
static const int32_t grok_narrow_finish[] = {0, 1, 2, 3, 0, 0, 5, 0, 6, 0, 7, 0, 0, 9, 0, 10, 0, 11, 0};
static const int32_t grok_narrow_ptr[] = {0, 0, 1, 2, 3, 5, 6, 8, 10, 12, 13, 15, 17, 19};
static const int32_t grok_wide_start[] = {0, 0, 0, 0, 0, 5, 0, 5, 0, 5, 0, 0, 9, 0, 9, 0, 9, 0};
static const int32_t grok_wide_finish[] = {0, 1, 2, 3, 0, 5, 0, 6, 0, 7, 0, 0, 9, 0, 10, 0, 11, 0};
static const int32_t grok_wide_ptr[] = {0, 0, 1, 2, 3, 4, 5, 7, 9, 11, 12, 14, 16, 18};
static const int32_t plain_nodes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17};
static const int32_t tail_nodes[] = {8, 9, 10, 11, 12, 13, 17};
static const int32_t grok_nodes[] = {7, 11};
static const int32_t plain_ids[] = {8, 6, 4, 7, 3, 3, 8, 3, 3, 1, 0, 0, 6, 1, 2, 3}, tail_ids[] = {3, 3, 1, 0, 0, 6, 3},
                     grok_ids[] = {4, 7};
static const int32_t places[] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, -1, 0, 1, 2};

enum { VOCABULARY = 9, WORDS = 2 };
#define LIST(x) x, sizeof(x) / sizeof *(x)
#define SPANS(name)                                                                                                    \
	{                                                                                                              \
		{name##_narrow_start, name##_narrow_finish, name##_narrow_ptr},                                        \
		{                                                                                                      \
			name##_wide_start, name##_wide_finish, name##_wide_ptr                                         \
		}                                                                                                      \
	}

typedef struct graph_case {
	uint32_t seed;
	label_options options;
	double channels;
	bool continuations, sums;
	const int32_t *labels;
	size_t n_labels;
	const int32_t *label_ptr; /* NULL: one label, or three, for each node except start nodes */
	const int32_t *spans[LABEL_GRAPH_WINDOWS][3];
	const int32_t *nodes;
	size_t n_targets;
	const int32_t *ids;
	uint32_t mask[WORDS];
} graph_case;

static void check_labels(const graph_case *c, const label_graph *g)
{
	assert_int_equal(g->labels, c->n_labels);
	assert_memory_equal(g->label, c->labels, c->n_labels * sizeof *c->labels);
	assert_int_equal(g->label_ptr[g->nodes], g->labels);
	for (int64_t i = 0, end = 0; i < g->nodes; i++) {
		end += c->options.hashed && g->token[i] >= 0 ? 3 : 1;
		assert_int_equal(g->label_ptr[i + 1], c->label_ptr ? c->label_ptr[i + 1] : end);
	}
}

static void check_spans(const int32_t *const known[3], const label_graph *g, const label_spans *s)
{
	assert_int_equal(s->ptr[g->nodes], s->count);
	assert_memory_equal(s->ptr, known[2], (size_t)(g->nodes + 1) * sizeof *s->ptr);
	assert_memory_equal(s->start, known[0], (size_t)s->count * sizeof *s->start);
	assert_memory_equal(s->finish, known[1], (size_t)s->count * sizeof *s->finish);
}

static void check_graph(const graph_case *c)
{
	const label_fragment two[] =
	    {
	        {first_text, first_target, c->continuations ? first_continuation : NULL, 13},
	        {second_text, second_target, c->continuations ? second_continuation : NULL, 3},
	    },
	                     one = {sums_text, sums_target, NULL, 12};
	label_options options = c->options;
	label_graph g;
	mt19937 random;
	uint32_t mask[WORDS];
	options.vocabulary = VOCABULARY;
	options.window[LABEL_GRAPH_NARROW] = 4;
	options.window[LABEL_GRAPH_WIDE] = 7;
	mt19937_seed(&random, c->seed);
	assert_int_equal(label_graph_new(&g, &options, c->sums ? &one : two, c->sums ? 1 : 2, &random), STATUS_OK);
	label_graph_channels(mask, WORDS, c->channels, &random);
	assert_memory_equal(mask, c->mask, sizeof mask);
	assert_int_equal(g.nodes, c->sums ? 13 : 18);
	if (!c->sums)
		assert_memory_equal(g.token, places, sizeof places);
	check_labels(c, &g);
	for (int w = 0; w < LABEL_GRAPH_WINDOWS; w++)
		check_spans(c->spans[w], &g, &g.spans[w]);
	assert_int_equal(g.targets, c->n_targets);
	assert_memory_equal(g.target_node, c->nodes, c->n_targets * sizeof *c->nodes);
	assert_memory_equal(g.target_id, c->ids, c->n_targets * sizeof *c->ids);
	label_graph_free(&g);
}

static void a_batch_has_the_graph_of_3lin(void **state)
{
	(void)state;
	static const graph_case cases[] = {
	    {5,
	     {.keep = 1, .document = -1},
	     1,
	     false,
	     false,
	     LIST(plain_labels),
	     NULL,
	     SPANS(plain),
	     LIST(plain_nodes),
	     plain_ids,
	     {UINT32_MAX, UINT32_MAX}},
	    {5,
	     {.keep = 0.5, .document = -1},
	     0.5,
	     false,
	     false,
	     LIST(drop_labels),
	     NULL,
	     SPANS(plain),
	     LIST(plain_nodes),
	     plain_ids,
	     {2089281301, 2173728277}},
	    {5,
	     {.keep = 1, .document = 3},
	     1,
	     false,
	     false,
	     LIST(plain_labels),
	     NULL,
	     SPANS(doc),
	     LIST(plain_nodes),
	     plain_ids,
	     {UINT32_MAX, UINT32_MAX}},
	    {77,
	     {.keep = 0.6, .document = -1},
	     0.9,
	     true,
	     false,
	     LIST(ppm_labels),
	     ppm_ptr,
	     SPANS(plain),
	     LIST(plain_nodes),
	     plain_ids,
	     {2113765341, 4269801471}},
	    {5,
	     {.keep = 1, .hashed = true, .document = -1},
	     1,
	     false,
	     false,
	     LIST(hash_labels),
	     NULL,
	     SPANS(plain),
	     LIST(plain_nodes),
	     plain_ids,
	     {UINT32_MAX, UINT32_MAX}},
	    {77,
	     {.keep = 0.6, .hashed = true, .document = -1},
	     0.9,
	     true,
	     false,
	     LIST(hashppm_labels),
	     hashppm_ptr,
	     SPANS(plain),
	     LIST(plain_nodes),
	     plain_ids,
	     {2113765341, 4269801471}},
	    {5,
	     {.keep = 1, .document = -1, .targets = LABEL_TARGETS_TAIL},
	     1,
	     false,
	     false,
	     LIST(plain_labels),
	     NULL,
	     SPANS(plain),
	     LIST(tail_nodes),
	     tail_ids,
	     {UINT32_MAX, UINT32_MAX}},
	    {5,
	     {.keep = 1, .document = 0, .targets = LABEL_TARGETS_ANSWER},
	     1,
	     false,
	     true,
	     LIST(grok_labels),
	     NULL,
	     SPANS(grok),
	     LIST(grok_nodes),
	     grok_ids,
	     {UINT32_MAX, UINT32_MAX}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_graph(&cases[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_batch_has_the_graph_of_3lin),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
