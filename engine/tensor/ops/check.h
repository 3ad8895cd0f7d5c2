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

/* Was optional argument i given? */
bool check_present(const op_call *call, int i);
/* Argument i is there and of this type. */
status check_type(const op_call *call, int i, const char *name, dtype type, error *err);
/* Argument i is there and f32 or bf16: the first [real] argument of an op. */
status check_real(const op_call *call, int i, const char *name, error *err);
/* Of argument j's type and with its matrix view (already checked). */
status check_like(const op_call *call, int i, const char *name, int j, const char *other, error *err);
/* `type`, exactly this shape; `why` says where the shape comes from ("x's last dimension"). */
status check_shape(const op_call *call, int i, const char *name, dtype type, shape s, const char *reason, error *err);
/* `type` with this many elements, whatever the rank. */
status check_count(const op_call *call, int i, const char *name, dtype type, int64_t count, const char *reason,
                   error *err);
/* Argument `weight` is [N, last dimension of x] and of x's type (x is checked already) or, with an f32 x, panels;
 * argument `bias`, if given, is f32 [N]. */
status check_weight(const op_call *call, int x, const char *x_name, int weight, int bias, error *err);
/* Argument i, if given, is the start of each sequence in the batch of 1 that argument 0 is then; how many sequences
 * there are into *count. */
status check_start(const op_call *call, int i, int64_t *count, error *err);
/* Arguments i … i + 4 of an op that reads argument 0 [B, N, …] into slots: slot, position and length for each sequence,
 * and if given mask for each token and start (ops.h). */
status check_segment(int64_t segment, int64_t window, error *err); /* from 0 to the window */
status check_sequences(const op_call *call, int i, error *err);
/* The op's rows do not meet (op_call.row_inputs). */
void check_by_rows(op_call *call, unsigned inputs, unsigned outputs);
/* Set output o. */
void check_output(op_call *call, int o, dtype type, shape s);

/* A slot of the pool that is input `pool` has room for rows of `width` floats; then the input that they stand for, which
 * is called `name`, is absent. */
status check_stored(const op_call *call, int pool, slot_rows stored, int64_t width, int input, const char *name,
                    error *err);

#endif
