#include "tests/unit/support/op_cases.h"

#include <stdlib.h>

#include "tests/unit/support/op_cases/family.h"

static const op_case_family *const families[] = {
#define OP_CASE_FAMILY(name) &op_cases_##name,
#include "gen/op_case_families.def"
#undef OP_CASE_FAMILY
};
enum { FAMILY_COUNT = sizeof families / sizeof families[0] };

int op_cases_count(void)
{
	int count = 0;
	for (int f = 0; f < FAMILY_COUNT; f++)
		count += families[f]->count;
	return count;
}

const op_case *op_cases_at(int index)
{
	int f = 0;
	while (index >= families[f]->count)
		index -= families[f++]->count;
	return &families[f]->cases[index];
}

bool op_cases_bf16(const op_case *c, op_case *out)
{
	*out = *c;
	out->arg[OP_CASE_REAL] = DTYPE_BF16;
	out->step = 0; /* finite differences need unrounded numbers */
	if (c->arg[OP_CASE_REAL] == DTYPE_BF16)
		return false;
	graph *g = graph_new();
	if (!g)
		abort();
	out->build(g, out->arg);
	bool found = false;
	for (value v = 0; v < graph_value_count(g); v++)
		found |= graph_value(g, v)->role == ROLE_INPUT && graph_value(g, v)->type == DTYPE_BF16;
	graph_free(g);
	return found;
}
