#include "engine/tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/base/memory.h"
#include "engine/tensor/panel.h"

static const struct {
	const char *name;
	size_t bytes;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {"f32", sizeof(float)},       [DTYPE_I32] = {"i32", sizeof(int32_t)},
    [DTYPE_BF16] = {"bf16", sizeof(uint16_t)},  [DTYPE_PANEL_F32] = {"panels of f32", 0},
    [DTYPE_PANEL_BF16] = {"panels of bf16", 0}, [DTYPE_PANEL_INT8] = {"panels of int8", 0},
};

size_t dtype_bytes(dtype type)
{
	return dtypes[type].bytes;
}

const char *dtype_name(dtype type)
{
	return dtypes[type].name;
}

bool dtype_is_panel(dtype type)
{
	return dtypes[type].bytes == 0;
}

bool dtype_is_real(dtype type)
{
	return type == DTYPE_F32 || type == DTYPE_BF16;
}

/* Zero dimensions count as one here: otherwise [2^40, 2^40, 0] would pass with an
 * element count of 0 while products over some of its dimensions overflow. */
status shape_check(shape s)
{
	if (s.rank < 0 || s.rank > TENSOR_MAX_RANK)
		return STATUS_INVALID;
	int64_t count = 1;
	for (int i = 0; i < s.rank; i++)
		if (s.dim[i] < 0 || (s.dim[i] > 0 && !memory_product(count, s.dim[i], &count)))
			return STATUS_INVALID;
	return STATUS_OK;
}

int64_t shape_count(shape s)
{
	return shape_rows(s) * shape_last(s);
}

int64_t shape_rows(shape s)
{
	int64_t rows = 1;
	for (int i = 0; i + 1 < s.rank; i++)
		rows *= s.dim[i];
	return rows;
}

int64_t shape_last(shape s)
{
	return s.rank ? s.dim[s.rank - 1] : 1;
}

bool shape_equal(shape a, shape b)
{
	if (a.rank != b.rank)
		return false;
	for (int i = 0; i < a.rank; i++)
		if (a.dim[i] != b.dim[i])
			return false;
	return true;
}

bool shape_bytes(shape s, dtype type, size_t *out)
{
	if (dtype_is_panel(type))
		return panel_bytes(type, shape_rows(s), shape_last(s), out);
	return !__builtin_mul_overflow((size_t)shape_count(s), dtype_bytes(type), out);
}

const char *shape_text(shape s, char *buf, size_t size)
{
	size_t used = (size_t)snprintf(buf, size, "[");
	for (int i = 0; i < s.rank && used < size; i++)
		used += (size_t)snprintf(buf + used, size - used, "%s%" PRId64, i ? ", " : "", s.dim[i]);
	if (used < size)
		snprintf(buf + used, size - used, "]");
	return buf;
}
