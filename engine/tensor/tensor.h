/* tensor.h - shapes and views.
 *
 * A tensor here is a contiguous, row-major block of at most four dimensions.
 * There are no strides: an op that needs another layout says so. Views never
 * own memory; a plan or a caller does. */
#ifndef ENGINE_TENSOR_TENSOR_H
#define ENGINE_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { TENSOR_MAX_RANK = 4 };

typedef enum dtype {
	DTYPE_F32,
	DTYPE_I32,
	DTYPE_BF16, /* the upper half of a float, rounded to nearest even */
	/* Weights for serving, packed for products (panel.h): read by linear, gather and linear_cross_entropy, and not
	 * differentiable. */
	DTYPE_PANEL_F32,
	DTYPE_PANEL_BF16,
	DTYPE_PANEL_INT8,
	DTYPE_COUNT
} dtype;

typedef struct shape {
	int rank; /* 0 is a scalar: one element */
	int64_t dim[TENSOR_MAX_RANK];
} shape;

typedef struct tensor {
	void *data; /* device address; NULL is an absent optional argument */
	dtype type;
	struct shape shape;
} tensor;

#define SHAPE0() ((shape){0, {0}})
#define SHAPE1(a) ((shape){1, {(a)}})
#define SHAPE2(a, b) ((shape){2, {(a), (b)}})
#define SHAPE3(a, b, c) ((shape){3, {(a), (b), (c)}})
#define SHAPE4(a, b, c, d) ((shape){4, {(a), (b), (c), (d)}})

/* Bytes of one element of a plain type. */
size_t dtype_bytes(dtype type);
const char *dtype_name(dtype type);
bool dtype_is_panel(dtype type);
/* True for f32 and bf16, the types of activations and gradients. */
bool dtype_is_real(dtype type);

/* Check rank and dimensions (0 is legal), and that their product does not overflow. */
status shape_check(shape s);
/* Elements of a checked shape. */
int64_t shape_count(shape s);
/* Product of all dimensions but the last: the rows of a matrix view. */
int64_t shape_rows(shape s);
/* The last dimension, 1 for a scalar. */
int64_t shape_last(shape s);
bool shape_equal(shape a, shape b);
/* Bytes of a checked shape; false on overflow. */
bool shape_bytes(shape s, dtype type, size_t *out);
/* "[8, 512, 128]" into buf; returns buf. */
const char *shape_text(shape s, char *buf, size_t size);

#endif
