#include "engine/tensor/panel.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/base/memory.h"

enum { PANEL_ALIGNMENT = 64 };

_Static_assert(sizeof(panel_header) % PANEL_ALIGNMENT == 0, "quantised inputs begin aligned");
_Static_assert(PANEL_WIDTH * sizeof(float) % PANEL_ALIGNMENT == 0, "panels of f32 end aligned");
_Static_assert(PANEL_WIDTH *PANEL_PAIR * sizeof(uint16_t) % PANEL_ALIGNMENT == 0, "panels of bf16 end aligned");
_Static_assert(PANEL_WIDTH *PANEL_GROUP % PANEL_ALIGNMENT == 0, "panels of int8 end aligned");

/* Panels of n outputs, groups of k inputs. */
static int64_t parts(int64_t count, int64_t size)
{
	return count / size + (count % size > 0);
}

/* Bytes before the inputs, inputs in a group, and bytes of a group. */
typedef struct layout {
	int64_t header, group, bytes;
} layout;

static layout layout_of(dtype type)
{
	if (type == DTYPE_PANEL_F32)
		return (layout){0, 1, PANEL_WIDTH * sizeof(float)};
	if (type == DTYPE_PANEL_BF16)
		return (layout){0, PANEL_PAIR, PANEL_WIDTH * PANEL_PAIR * sizeof(uint16_t)};
	return (layout){sizeof(panel_header), PANEL_GROUP, PANEL_WIDTH * PANEL_GROUP};
}

size_t panel_stride(dtype type, int64_t k)
{
	layout l = layout_of(type);
	return (size_t)(l.header + parts(k, l.group) * l.bytes);
}

bool panel_bytes(dtype type, int64_t n, int64_t k, size_t *out)
{
	layout l = layout_of(type);
	int64_t bytes;
	if (!memory_product(parts(k, l.group), l.bytes, &bytes) || __builtin_add_overflow(bytes, l.header, &bytes) ||
	    !memory_product(parts(n, PANEL_WIDTH), bytes, &bytes))
		return false;
	*out = (size_t)bytes;
	return true;
}

/* Offset of input k of output j, in inputs. */
static inline int64_t place(int64_t group, int64_t k, int64_t j)
{
	return (k / group * PANEL_WIDTH + j) * group + k % group;
}

static void pack_f32(const float *w, int64_t k, int64_t j, float *to)
{
	for (int64_t i = 0; i < k; i++)
		to[place(1, i, j)] = w[i];
}

static void pack_bf16(const float *w, int64_t k, int64_t j, uint16_t *to)
{
	for (int64_t i = 0; i < k; i++)
		to[place(PANEL_PAIR, i, j)] = panel_bf16(w[i]);
}

/* Scale of a row: its largest weight becomes PANEL_INT8_MAX. */
static float row_scale(const float *w, int64_t k)
{
	float top = 0;
	bool finite = true;
	for (int64_t i = 0; i < k; i++) {
		top = fabsf(w[i]) > top ? fabsf(w[i]) : top;
		finite = finite && isfinite(w[i]);
	}
	return finite ? fmaxf(top / PANEL_INT8_MAX, FLT_MIN) : NAN;
}

static void pack_int8(const float *w, int64_t k, int64_t j, float scale, panel_header *header, int8_t *q)
{
	header->scale[j] = scale;
	for (int64_t i = 0; i < k && !isnan(scale); i++) {
		int32_t rounded = (int32_t)lrintf(w[i] / scale);
		q[place(PANEL_GROUP, i, j)] = (int8_t)rounded;
		header->sum[j] += rounded;
	}
}

void panel_pack(dtype type, const float *w, int64_t n, int64_t k, void *out)
{
	panel_pack_codes(type, w, n, k, 0, out);
}

void panel_pack_codes(dtype type, const float *w, int64_t n, int64_t k, float step, void *out)
{
	size_t stride = panel_stride(type, k);
	memset(out, 0, (size_t)parts(n, PANEL_WIDTH) * stride);
	for (int64_t row = 0; row < n; row++) {
		unsigned char *panel = (unsigned char *)out + (size_t)(row / PANEL_WIDTH) * stride;
		const float *from = w + row * k;
		int64_t j = row % PANEL_WIDTH;
		if (type == DTYPE_PANEL_F32)
			pack_f32(from, k, j, (float *)panel);
		else if (type == DTYPE_PANEL_BF16)
			pack_bf16(from, k, j, (uint16_t *)panel);
		else
			pack_int8(from, k, j, step > 0 ? step : row_scale(from, k), (panel_header *)panel,
			          (int8_t *)(panel + sizeof(panel_header)));
	}
}

float panel_stored(dtype type, const void *panels, int64_t k, int64_t n, float *out)
{
	const unsigned char *panel = (const unsigned char *)panels + (size_t)(n / PANEL_WIDTH) * panel_stride(type, k);
	const int64_t j = n % PANEL_WIDTH;
	if (type == DTYPE_PANEL_F32) {
		const float *w = (const float *)panel;
		for (int64_t i = 0; i < k; i++)
			out[i] = w[place(1, i, j)];
		return 1;
	}
	if (type == DTYPE_PANEL_BF16) {
		const uint16_t *w = (const uint16_t *)panel;
		for (int64_t i = 0; i < k; i++)
			out[i] = panel_f32(w[place(PANEL_PAIR, i, j)]);
		return 1;
	}
	const panel_header *header = (const panel_header *)panel;
	const int8_t *q = (const int8_t *)(panel + sizeof *header);
	for (int64_t i = 0; i < k; i++)
		out[i] = q[place(PANEL_GROUP, i, j)];
	return header->scale[j];
}

void panel_row(dtype type, const void *panels, int64_t k, int64_t n, float *out)
{
	float scale = panel_stored(type, panels, k, n, out);
	for (int64_t i = 0; i < k && type == DTYPE_PANEL_INT8; i++)
		out[i] *= scale;
}
