/* family.h - what the families of op cases share.
 *
 * A family is a source NAME.c of this folder: the builders of its ops' graphs, its cases, and op_cases_NAME, which
 * hands the cases to op_cases.c. What arg means stands in front of a builder.
 * Shapes are small and odd, so that every vector width has a remainder: 0, 1, 3, 31, 33. */
#ifndef TESTS_UNIT_SUPPORT_OP_CASES_FAMILY_H
#define TESTS_UNIT_SUPPORT_OP_CASES_FAMILY_H

#include "engine/tensor/ops.h"
#include "tests/unit/support/op_cases.h"

typedef struct op_case_family {
	const op_case *cases;
	int count;
} op_case_family;

/* The family of an array of cases. */
#define OP_CASES(cases)                                                                                                \
	{                                                                                                              \
		cases, sizeof(cases) / sizeof(cases)[0]                                                                \
	}

#define OP_CASE_FAMILY(name) extern const op_case_family op_cases_##name;
#include "gen/op_case_families.def"
#undef OP_CASE_FAMILY

enum { NARROW = 33, LONG = 20011 }; /* LONG: more than one thread's share of an elementwise op */
#define STEP (1.0 / 32)

/* Added to the last argument of a gradient of attention. */
enum { FROZEN = 1000 };

static inline value f32(graph *g, const char *name, shape s)
{
	return graph_input(g, name, DTYPE_F32, s);
}

/* A [real] input, of the case's type. */
static inline value real(graph *g, const int64_t *arg, const char *name, shape s)
{
	return graph_input(g, name, (dtype)arg[OP_CASE_REAL], s);
}

static inline value i32(graph *g, const char *name, shape s)
{
	return graph_input(g, name, DTYPE_I32, s);
}

/* The mask of all tokens of a ragged stream, when arg[5] wants one. */
static inline value ragged_mask(graph *g, const int64_t *arg)
{
	return arg[5] ? i32(g, "mask ragged", SHAPE2(1, arg[1])) : VALUE_NONE;
}

#endif
