/* sample: a token from each row of logits. */
#include "engine/tensor/ops/sample.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

_Static_assert(sizeof(sample_setting) == SAMPLE_WORDS * sizeof(int32_t), "a setting is words without padding");
_Static_assert(sizeof(sample_adjust) == 3 * sizeof(int32_t), "a row of adjust is three words");

value op_sample(graph *g, value logits, value setting, value adjust, value maxima)
{
	return graph_apply_one(g, OP_sample, (value[]){logits, setting, adjust, maxima}, 4, NULL);
}

status op_sample_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "logits", DTYPE_F32, err));
	shape logits = call->in[0].shape;
	if (logits.rank != 2)
		return error_set(err, STATUS_INVALID, "logits", "logits has %d dimensions, needs rows and a vocabulary",
		                 logits.rank);
	if (logits.dim[1] > SAMPLE_MAX_VOCAB)
		return error_set(err, STATUS_INVALID, "logits",
		                 "logits has a vocabulary of %" PRId64 ", at most %d can be weighed", logits.dim[1],
		                 SAMPLE_MAX_VOCAB);
	TRY(check_shape(call, 1, "setting", DTYPE_I32, SHAPE2(logits.dim[0], SAMPLE_WORDS), "a setting for each row",
	                err));
	TRY(check_type(call, 2, "adjust", DTYPE_I32, err));
	shape adjust = call->in[2].shape;
	if (adjust.rank != 2 || adjust.dim[1] != 3 || adjust.dim[0] > INT32_MAX) {
		char text[96];
		return error_set(err, STATUS_INVALID, "adjust", "adjust is %s, must be rows of token, count and bias",
		                 shape_text(adjust, text, sizeof text));
	}
	if (check_present(call, 3))
		TRY(check_shape(call, 3, "maxima", DTYPE_F32,
		                SHAPE2(logits.dim[0], (logits.dim[1] + LINEAR_BLOCK - 1) / LINEAR_BLOCK),
		                "a maximum for each block of the logits", err));
	check_output(call, 0, DTYPE_I32, SHAPE1(logits.dim[0]));
	return STATUS_OK;
}
