/* label_results.h - a graph of labels (tests/golden/label_graph.h) as values of a golden set. */
#ifndef TESTS_GOLDEN_LABEL_RESULTS_H
#define TESTS_GOLDEN_LABEL_RESULTS_H

#include "tests/golden/golden.h"
#include "tests/golden/label_graph.h"

/* Add PREFIX with label_arr, label_ptr, target_node, target_id and {narrow,wide}_span_{start,finish,ptr}. */
status label_results_add(golden *g, const label_graph *x, const char *prefix, error *err);
/* One of them: PREFIX NAME [n]. */
status label_results_list(golden *g, const int32_t *x, int64_t n, const char *prefix, const char *name, error *err);

#endif
