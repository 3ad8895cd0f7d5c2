/* initial_values.c - normal values are Box-Muller transforms of Philox words: four normals per block, parameter i on
 * stream PHILOX_STREAM_INIT + i, in double precision. A polar or ziggurat method would be faster but consumes a varying
 * number of words. Elements are drawn by counter, so pieces of a parameter are drawn on several threads. The values of
 * INIT_NORMAL_SEQUENCE follow one from the other and are drawn by one. */
#include "engine/model/initial_values.h"

#include <math.h>
#include <string.h>

#include "engine/base/philox.h"
#include "engine/base/workers.h"

enum { WORDS = 4, PIECE = 1 << 15 /* a multiple of WORDS */ };

/* A parameter whose elements are drawn by counter, in any order. */
typedef struct drawn {
	float *x;
	int64_t count;
	double scale; /* standard deviation, or bound of uniform values */
	uint64_t seed;
	uint32_t stream;
} drawn;

static void draw_normal(const drawn *d, int64_t i, int n)
{
	philox_block random = philox(d->seed, d->stream, 0, (uint64_t)i / WORDS);
	for (int k = 0; k < n; k += 2) {
		/* 1 - u is in (0, 1], so its logarithm is finite. */
		double u = 1 - (double)philox_uniform(random.word[k]), radius = d->scale * sqrt(-2 * log(u));
		double angle = 2 * M_PI * (double)philox_uniform(random.word[k + 1]);
		d->x[i + k] = (float)(radius * cos(angle));
		if (k + 1 < n)
			d->x[i + k + 1] = (float)(radius * sin(angle));
	}
}

static void draw_uniform(const drawn *d, int64_t i, int n)
{
	philox_block random = philox(d->seed, d->stream, 0, (uint64_t)i / WORDS);
	for (int k = 0; k < n; k++)
		d->x[i + k] = (float)(d->scale * (2 * (double)philox_uniform(random.word[k]) - 1));
}

static void draw_piece(const drawn *d, int64_t piece, void (*draw)(const drawn *d, int64_t i, int n))
{
	const int64_t first = piece * PIECE, end = d->count - first < PIECE ? d->count : first + PIECE;
	for (int64_t i = first; i < end; i += WORDS)
		draw(d, i, end - i < WORDS ? (int)(end - i) : WORDS);
}

static void normal_piece(void *context, int64_t piece)
{
	draw_piece(context, piece, draw_normal);
}

static void uniform_piece(void *context, int64_t piece)
{
	draw_piece(context, piece, draw_uniform);
}

static void fill_drawn(int threads, drawn d, void (*piece)(void *context, int64_t piece))
{
	workers_divide(threads, (d.count + PIECE - 1) / PIECE, piece, &d);
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

void initial_values_begin(initial_values *v, uint64_t seed, int threads)
{
	v->seed = seed;
	v->threads = threads;
	v->next = 0;
	mt19937_seed(&v->sequence, (uint32_t)seed);
}

void initial_values_fill(initial_values *v, const parameter_spec *p, float *x)
{
	const uint32_t stream = PHILOX_STREAM_INIT + (uint32_t)v->next++;
	const int64_t count = shape_count(p->shape);
	float constant = p->init == INIT_ONE ? 1 : p->init == INIT_CONSTANT ? p->std : 0;
	if (p->init == INIT_NORMAL)
		fill_drawn(v->threads, (drawn){x, count, (double)p->std, v->seed, stream}, normal_piece);
	else if (p->init == INIT_UNIFORM)
		fill_drawn(v->threads, (drawn){x, count, sqrt(3) * (double)p->std, v->seed, stream}, uniform_piece);
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
