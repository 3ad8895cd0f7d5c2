/* check.h - the argument checks that ops share.
 *
 * A check runs while the graph is built, before any memory exists: a present
 * argument has a non-NULL `data` that must not be read, an absent one NULL.
 * Arguments are compared as matrix views [rows, last dimension], because tensors are
 * contiguous: [2, 5, 8] and [10, 8] match.
 *
 * Every function names the argument in err and returns STATUS_INVALID on a misfit. */
#ifndef ENGINE_TENSOR_OPS_CHECK_H
#define ENGINE_TENSOR_OPS_CHECK_H

#include "engine/tensor/op.h"
#include "engine/tensor/ops.h"

/* True if optional argument i is given. */
bool check_present(const op_call *call, int i);
/* Require argument i, of this type. */
status check_type(const op_call *call, int i, const char *name, dtype type, error *err);
/* Require argument i, of type f32 or bf16: the first [real] argument of an op. */
status check_real(const op_call *call, int i, const char *name, error *err);
/* Require argument j's type and its matrix view (already checked). */
status check_like(const op_call *call, int i, const char *name, int j, const char *other, error *err);
/* Require `type` and exactly this shape; `reason` tells where the shape comes from ("x's last dimension"). */
status check_shape(const op_call *call, int i, const char *name, dtype type, shape s, const char *reason, error *err);
/* Require that argument 0 is [batch, length, channels] and its channels are `heads` times a width. */
status check_split(const op_call *call, const char *name, int64_t heads, error *err);
/* Require `type` and this number of elements, with any rank. */
status check_count(const op_call *call, int i, const char *name, dtype type, int64_t count, const char *reason,
                   error *err);
/* Require that argument `weight` is [N, last dimension of x] and of x's type (x is checked already) or, with an f32 x,
 * panels. Argument `bias`, if given, is f32 [N]. */
status check_weight(const op_call *call, int x, const char *x_name, int weight, int bias, error *err);
/* If argument i is given, it is the start of each sequence in argument 0, which is then a batch of 1. *count: the
 * number of sequences. */
status check_start(const op_call *call, int i, int64_t *count, error *err);
/* Check arguments i … i + 4 of an op that reads argument 0 [B, N, …] into slots (ops.h). These are slot, position and
 * length for each sequence, and if given mask for each token and start. */
status check_segment(int64_t segment, int64_t window, error *err); /* from 0 to the window */
status check_sequences(const op_call *call, int i, error *err);
/* Mark the op's rows as independent (op_call.row_inputs). */
void check_by_rows(op_call *call, unsigned inputs, unsigned outputs);
/* Set the type and shape of output o. */
void check_output(op_call *call, int o, dtype type, shape s);

/* Require that a slot of the pool in input `pool` has room for rows of `width` floats. The input that these rows
 * replace, called `name`, is absent then. */
status check_stored(const op_call *call, int pool, slot_rows stored, int64_t width, int input, const char *name,
                    error *err);

#endif
