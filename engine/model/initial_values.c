/* initial_values.c - normal values are Box-Muller transforms of Philox words: four normals per block, parameter i on
 * stream PHILOX_STREAM_INIT + i, in double precision. A polar or ziggurat method would be faster but consumes a varying
 * number of words. */
#include "engine/model/initial_values.h"

#include <math.h>
#include <string.h>

#include "engine/base/philox.h"

static void fill_normal(float *x, int64_t count, double std, uint64_t seed, uint32_t stream)
{
	for (int64_t i = 0; i < count; i += 4) {
		philox_block random = philox(seed, stream, 0, (uint64_t)i / 4);
		for (int k = 0; k < 4 && i + k < count; k++) {
			/* 1 - u is in (0, 1], so its logarithm is finite. */
			double u = 1 - (double)philox_uniform(random.word[k & 2]);
			double angle = 2 * M_PI * (double)philox_uniform(random.word[k | 1]);
			x[i + k] = (float)(std * sqrt(-2 * log(u)) * (k & 1 ? sin(angle) : cos(angle)));
		}
	}
}

static void fill_uniform(float *x, int64_t count, double bound, uint64_t seed, uint32_t stream)
{
	for (int64_t i = 0; i < count; i++) {
		philox_block random = philox(seed, stream, 0, (uint64_t)i / 4);
		x[i] = (float)(bound * (2 * (double)philox_uniform(random.word[i % 4]) - 1));
	}
}

static void fill_sequence(float *x, const parameter_spec *p, mt19937 *sequence)
{
	const int64_t rows = shape_rows(p->shape), width = shape_last(p->shape);
	for (int64_t r = 0; r < rows; r++) {
		float *row = x + (r < p->drawn_first ? rows - 1 - r : r - p->drawn_first) * width;
		for (int64_t i = 0; i < width; i++)
			row[i] = (float)((double)p->std * mt19937_normal(sequence));
	}
}

static void fill_curve(float *x, int64_t count, const parameter_curve *c)
{
	for (int64_t i = 0; i < count; i++)
		x[i] = (float)(c->offset + c->scale * pow((double)i / c->length, c->exponent));
}

void initial_values_begin(initial_values *v, uint64_t seed)
{
	v->seed = seed;
	v->next = 0;
	mt19937_seed(&v->sequence, (uint32_t)seed);
}

void initial_values_fill(initial_values *v, const parameter_spec *p, float *x)
{
	const uint64_t seed = v->seed;
	const uint32_t stream = PHILOX_STREAM_INIT + (uint32_t)v->next++;
	const int64_t count = shape_count(p->shape);
	float constant = p->init == INIT_ONE ? 1 : p->init == INIT_CONSTANT ? p->std : 0;
	if (p->init == INIT_NORMAL)
		fill_normal(x, count, (double)p->std, seed, stream);
	else if (p->init == INIT_UNIFORM)
		fill_uniform(x, count, sqrt(3) * (double)p->std, seed, stream);
	else if (p->init == INIT_NORMAL_SEQUENCE)
		fill_sequence(x, p, &v->sequence);
	else if (p->init == INIT_CURVE)
		fill_curve(x, count, &p->curve);
	else if (p->init == INIT_VALUES)
		memcpy(x, p->values, (size_t)count * sizeof *x);
	else
		for (int64_t k = 0; k < count; k++)
			x[k] = constant;
}
