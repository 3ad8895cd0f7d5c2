/* family.h - shared by the families of op cases.
 *
 * A family is a source NAME.c of this folder: the builders of its ops' graphs, its cases, and op_cases_NAME, which
 * op_cases.c lists. A comment before each builder gives the meaning of arg.
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

/* Cases of streams: the op on trial continues from a state that has read tokens. arg[0] sequences; arg[1] tokens of
 * each or, in a ragged call, of all, with the sequences concatenated; arg[5] masked. A state starts at STREAM_OFFSET of
 * its slot. */
enum { STREAM_OFFSET = 5 };

/* The call that reads the earlier tokens. There are more slots than sequences. */
static inline stream_values stream_before(graph *g, const int64_t *arg, int64_t slot_floats)
{
	stream_values at = {.start = VALUE_NONE};
	at.pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, slot_floats));
	at.slot = i32(g, "slot", SHAPE1(arg[0]));
	at.position = i32(g, "position zero", SHAPE1(arg[0]));
	at.length = i32(g, "length before", SHAPE1(arg[0]));
	at.mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	return at;
}

/* The call on trial. */
static inline stream_values stream_now(graph *g, const int64_t *arg, stream_values before, bool ragged)
{
	stream_values at = before;
	at.position = i32(g, "position", SHAPE1(arg[0]));
	at.length = i32(g, ragged ? "length ragged" : "length", SHAPE1(arg[0]));
	if (ragged) {
		at.mask = arg[5] ? i32(g, "mask ragged", SHAPE2(1, arg[1])) : VALUE_NONE;
		at.start = i32(g, "start", SHAPE1(arg[0]));
	}
	return at;
}

/* The shape of a call's tokens. */
static inline shape stream_shape(const int64_t *arg, int64_t channels, bool ragged)
{
	return ragged ? SHAPE3(1, arg[1], channels) : SHAPE3(arg[0], arg[1], channels);
}

#endif
