#include "tests/golden/label_results.h"

status label_results_list(golden *g, const int32_t *x, int64_t n, const char *prefix, const char *name, error *err)
{
	float *out;
	TRY(golden_result(g, EXTENT(n), &out, err, "%s%s", prefix, name));
	for (int64_t i = 0; i < n; i++)
		out[i] = (float)x[i];
	return STATUS_OK;
}

status label_results_add(golden *g, const label_graph *x, const char *prefix, error *err)
{
	const label_spans *narrow = &x->spans[LABEL_GRAPH_NARROW], *wide = &x->spans[LABEL_GRAPH_WIDE];
	const struct {
		const char *name;
		const int32_t *values;
		int64_t count;
	} lists[] = {
	    {"label_arr", x->label, x->labels},
	    {"label_ptr", x->label_ptr, x->nodes + 1},
	    {"target_node", x->target_node, x->targets},
	    {"target_id", x->target_id, x->targets},
	    {"narrow_span_start", narrow->start, narrow->count},
	    {"narrow_span_finish", narrow->finish, narrow->count},
	    {"narrow_span_ptr", narrow->ptr, x->nodes + 1},
	    {"wide_span_start", wide->start, wide->count},
	    {"wide_span_finish", wide->finish, wide->count},
	    {"wide_span_ptr", wide->ptr, x->nodes + 1},
	};
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		TRY(label_results_list(g, lists[i].values, lists[i].count, prefix, lists[i].name, err));
	return STATUS_OK;
}
