/* weight_pieces.c - pieces are claimed in order, prepared in any order into a ring, and handed out in order.
 *
 * Two kinds of matrices are read whole before their first rows. The rows of a transposed matrix are spread over the
 * file; the step of a quantised one depends on all weights. Both have one buffer, so their first rows and the next such
 * matrix wait until all claimed pieces are prepared. */
#include "engine/model/weight_pieces.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/workers.h"
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/panel.h"

enum { PIECE_FLOATS = 1 << 18, READY_PIECES = 16 /* prepared while the caller does other work */ };

/* Buffers of one thread. */
typedef struct scratch {
	float *values; /* rows of a piece */
	float *other;  /* rows under their tied name */
} scratch;

/* A piece in the ring. */
typedef struct slot {
	weight_piece piece;
	int64_t row, rows;     /* first row of the parameter, and their number */
	int64_t staged, count; /* elements for `whole`; count 0: the rows of a piece */
	void *packed;          /* buffer for the rows as stored; NULL: they are written to the arena */
	bool ready;
	status result;
	error err;
} slot;

struct weight_pieces {
	const model *m;
	safetensors *file;
	const weight_place *places;
	char *arena;  /* or NULL */
	float *whole; /* buffer for the largest matrix that is read whole, as stored; or NULL */
	float step;   /* quantisation step of the matrix in `whole` */
	slot *slots;  /* [n_slots] */
	int n_slots;
	scratch *scratches; /* [n_threads] */
	int n_threads;
	workers helpers;
	pthread_mutex_t mutex; /* guards all below, and `ready` of the slots */
	pthread_cond_t changed;
	int started;                      /* threads that have their scratch */
	bool stop, held;                  /* held: the caller has the piece after `taken` */
	int at;                           /* place of the next piece to be claimed */
	int64_t row, staged;              /* its first row; elements of its matrix that are claimed for `whole` */
	int64_t claimed, prepared, taken; /* numbers of pieces */
};

static const parameter_spec *parameter_at(const weight_pieces *w, int place)
{
	return &w->m->parameters.items[w->places[place].parameter];
}

/* --- sizes ------------------------------------------------------------------------------------ */

/* True if it is packed from quantised weights. Plain ones are quantised when they are read (ops.h). */
static bool is_quantized(const model *m, const parameter_spec *p)
{
	return p->bits > 0 && p->bits < 32 && dtype_is_panel(model_stored_type(m, p));
}

static bool is_read_whole(const model *m, const parameter_spec *p)
{
	assert(!(p->transposed && is_quantized(m, p)));
	return p->transposed || is_quantized(m, p);
}

/* Return the rows of a parameter in a piece: whole panels, at least one. */
static int64_t piece_rows(const parameter_spec *p)
{
	int64_t k = shape_last(p->shape), rows = k ? PIECE_FLOATS / k / PANEL_WIDTH * PANEL_WIDTH : PANEL_WIDTH;
	int64_t all = shape_rows(p->shape);
	rows = rows < PANEL_WIDTH ? PANEL_WIDTH : rows;
	return rows < all ? rows : all;
}

static status make_buffers(weight_pieces *w, error *err)
{
	const model *m = w->m;
	int64_t whole = 0, piece = 0;
	size_t packed = 0;
	for (int i = 0; i < m->parameters.count; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		int64_t floats = piece_rows(p) * shape_last(p->shape);
		size_t bytes = (size_t)floats * sizeof(float);
		if (dtype_is_panel(model_stored_type(m, p)) &&
		    !panel_bytes(m->weights, piece_rows(p), shape_last(p->shape), &bytes))
			return error_no_memory(err, "a model");
		packed = bytes > packed ? bytes : packed;
		piece = floats > piece ? floats : piece;
		if (is_read_whole(m, p) && shape_count(p->shape) > whole)
			whole = shape_count(p->shape);
	}
	w->whole = whole ? memory_new((size_t)whole, sizeof *w->whole) : NULL;
	bool complete = w->whole || !whole;
	for (int i = 0; i < w->n_threads; i++) {
		scratch *t = &w->scratches[i];
		t->values = memory_new((size_t)piece, sizeof *t->values);
		t->other = memory_new((size_t)piece, sizeof *t->other);
		complete &= t->values && t->other;
	}
	for (int i = 0; i < w->n_slots && m->backend && !w->arena; i++)
		complete &= (w->slots[i].packed = memory_new(packed, 1)) != NULL;
	return complete ? STATUS_OK : error_no_memory(err, "a model");
}

/* --- preparing a piece ------------------------------------------------------------------------- */

/* Refuse weights that make every answer not finite: NaN, infinity (also f64 beyond f32), and values so large that the
 * sum of squares of a row overflows. */
static status check_values(const parameter_spec *p, const safetensors_entry *e, int64_t first, int64_t count,
                           const float *x, error *err)
{
	const float limit = sqrtf(FLT_MAX / (float)shape_last(p->shape));
	bool good = true;
	int64_t i = 0;
	for (int64_t k = 0; k < count; k++)
		good &= fabsf(x[k]) <= limit; /* false for NaN */
	if (good)
		return STATUS_OK;
	while (fabsf(x[i]) <= limit)
		i++;
	return error_set(err, STATUS_INVALID, e->name, "element %" PRId64 " of tensor \"%.100s\" is %g, %s", first + i,
	                 e->name, (double)x[i],
	                 isfinite(x[i]) ? "which is too large: sums of products with it overflow"
	                                : "which is not a finite fp32 number");
}

/* Read elements first … first + count - 1 as stored; a tied name must agree bit for bit. */
static status read_stored(const weight_pieces *w, slot *s, int64_t first, int64_t count, float *out, float *other)
{
	const weight_place *from = &w->places[s->piece.place];
	const parameter_spec *p = parameter_at(w, s->piece.place);
	TRY(safetensors_load_f32(w->file, from->entry, first, count, out, &s->err));
	TRY(check_values(p, from->entry, first, count, out, &s->err));
	if (!from->tied)
		return STATUS_OK;
	TRY(safetensors_load_f32(w->file, from->tied, first, count, other, &s->err));
	if (memcmp(other, out, (size_t)count * sizeof(float)) == 0)
		return STATUS_OK;
	return error_set(&s->err, STATUS_INVALID, p->alias, "tensor \"%s\" differs from \"%s\", to which it is tied",
	                 p->alias, p->name);
}

/* Copy rows of the matrix whose transpose [inputs, outputs] is in `whole`. */
static void transpose(const weight_pieces *w, const parameter_spec *p, const slot *s, float *out)
{
	int64_t n = p->shape.dim[0], k = p->shape.dim[1];
	for (int64_t i = 0; i < k; i++)
		for (int64_t j = 0; j < s->rows; j++)
			out[j * k + i] = w->whole[i * n + s->row + j];
}

/* Copy rows of a matrix that was read whole, as products read them. */
static void copy_rows(const weight_pieces *w, const parameter_spec *p, const slot *s, float *out)
{
	const int64_t k = shape_last(p->shape);
	const float *from = w->whole + s->row * k;
	if (p->transposed)
		transpose(w, p, s, out);
	else
		for (int64_t i = 0; i < s->rows * k; i++)
			out[i] = quantize_value(from[i], w->step, p->bits);
}

/* Set where the rows go in the arena. */
static void find_place(const weight_pieces *w, const parameter_spec *p, slot *s)
{
	const dtype type = model_stored_type(w->m, p);
	const int64_t k = shape_last(p->shape);
	size_t before = (size_t)(s->row * k) * sizeof(float);
	s->piece.bytes = (size_t)(s->rows * k) * sizeof(float);
	if (dtype_is_panel(type)) {
		bool fits = panel_bytes(type, s->rows, k, &s->piece.bytes);
		assert(fits && s->row % PANEL_WIDTH == 0);
		before = (size_t)(s->row / PANEL_WIDTH) * panel_stride(type, k);
	}
	s->piece.at = (size_t)w->m->offset[w->places[s->piece.place].parameter] * sizeof(float) + before;
}

static status prepare(const weight_pieces *w, slot *s, const scratch *t)
{
	const parameter_spec *p = parameter_at(w, s->piece.place);
	const dtype type = model_stored_type(w->m, p);
	const int64_t k = shape_last(p->shape);
	if (s->count > 0)
		return read_stored(w, s, s->staged, s->count, w->whole + s->staged, t->other);
	find_place(w, p, s);
	void *to = w->arena ? w->arena + s->piece.at : s->packed;
	float *values = dtype_is_panel(type) || !to ? t->values : to;
	if (is_read_whole(w->m, p))
		copy_rows(w, p, s, values);
	else
		TRY(read_stored(w, s, s->row * k, s->rows * k, values, t->other));
	if (dtype_is_panel(type) && to)
		panel_pack_codes(type, values, s->rows, k, is_quantized(w->m, p) ? w->step : 0, to);
	s->piece.data = to;
	return STATUS_OK;
}

/* --- claiming pieces ---------------------------------------------------------------------------- */

/* True if the next piece need not wait for others. Sets the step before a quantised matrix's first rows. */
static bool may_begin(weight_pieces *w, const parameter_spec *p)
{
	const bool whole = is_read_whole(w->m, p), all = w->staged == shape_count(p->shape);
	if (!whole || w->row > 0 || (w->staged > 0 && !all))
		return true;
	if (w->claimed > w->prepared)
		return false;
	if (all && !p->transposed)
		w->step = quantize_tensor_step(w->whole, w->staged);
	return true;
}

/* Return the slot of the next piece; NULL: it has to wait, or there is none. The caller holds the mutex. */
static slot *claim(weight_pieces *w)
{
	if (w->at == w->m->parameters.count || w->claimed - w->taken == w->n_slots)
		return NULL;
	const parameter_spec *p = parameter_at(w, w->at);
	const int64_t all = shape_count(p->shape), k = shape_last(p->shape), most = piece_rows(p);
	if (!may_begin(w, p))
		return NULL;
	slot *s = &w->slots[w->claimed++ % w->n_slots];
	s->piece = (weight_piece){.place = w->at};
	s->ready = false;
	s->err = (error)ERROR_INIT;
	s->row = w->row;
	s->rows = s->count = 0;
	s->staged = w->staged;
	if (is_read_whole(w->m, p) && w->staged < all) {
		s->count = all - w->staged < most * k ? all - w->staged : most * k;
		w->staged += s->count;
		return s;
	}
	s->rows = shape_rows(p->shape) - w->row < most ? shape_rows(p->shape) - w->row : most;
	w->row += s->rows;
	s->piece.last = w->row == shape_rows(p->shape);
	if (s->piece.last) {
		w->at++;
		w->row = w->staged = 0;
	}
	return s;
}

/* Prepare a claimed piece. The caller holds the mutex, which is released meanwhile. */
static void prepare_unlocked(weight_pieces *w, slot *s, const scratch *t)
{
	pthread_mutex_unlock(&w->mutex);
	s->result = prepare(w, s, t);
	pthread_mutex_lock(&w->mutex);
	s->ready = true;
	w->prepared++;
	pthread_cond_broadcast(&w->changed);
}

static void *prepare_pieces(void *context)
{
	weight_pieces *w = context;
	pthread_mutex_lock(&w->mutex);
	const scratch *t = &w->scratches[w->started++];
	while (!w->stop) {
		slot *s = claim(w);
		if (s)
			prepare_unlocked(w, s, t);
		else
			pthread_cond_wait(&w->changed, &w->mutex);
	}
	pthread_mutex_unlock(&w->mutex);
	return NULL;
}

/* --- handing out ---------------------------------------------------------------------------------- */

status weight_pieces_next(weight_pieces *w, weight_piece *out, error *err)
{
	pthread_mutex_lock(&w->mutex);
	w->taken += w->held;
	w->held = true;
	pthread_cond_broadcast(&w->changed);
	slot *s = &w->slots[w->taken % w->n_slots];
	if (w->helpers.count == 0)
		prepare_unlocked(w, claim(w), w->scratches);
	while (w->claimed == w->taken || !s->ready)
		pthread_cond_wait(&w->changed, &w->mutex);
	pthread_mutex_unlock(&w->mutex);
	*out = s->piece;
	return s->result == STATUS_OK ? STATUS_OK : error_set(err, s->result, s->err.param, "%s", s->err.message);
}

status weight_pieces_new(weight_pieces **out, const model *m, safetensors *file, const weight_place *places,
                         char *arena, int threads, error *err)
{
	weight_pieces *w = *out = memory_new(1, sizeof *w);
	if (!w)
		return error_no_memory(err, "a model");
	const int64_t most = m->count / PIECE_FLOATS; /* threads that have something to do */
	threads = threads > SAFETENSORS_MAX_THREADS ? SAFETENSORS_MAX_THREADS : threads;
	threads = threads > most ? (int)most : threads;
	w->n_threads = threads < 1 ? 1 : threads;
	w->m = m;
	w->file = file;
	w->places = places;
	w->arena = arena;
	w->n_slots = threads > 1 ? threads + READY_PIECES : 1;
	pthread_mutex_init(&w->mutex, NULL);
	pthread_cond_init(&w->changed, NULL);
	w->slots = memory_new((size_t)w->n_slots, sizeof *w->slots);
	w->scratches = memory_new((size_t)w->n_threads, sizeof *w->scratches);
	status s = w->slots && w->scratches ? make_buffers(w, err) : error_no_memory(err, "a model");
	if (s != STATUS_OK) {
		weight_pieces_free(w);
		*out = NULL;
	} else if (threads > 1) {
		safetensors_use_threads(file, threads);
		workers_start(&w->helpers, threads, prepare_pieces, w);
	}
	return s;
}

void weight_pieces_free(weight_pieces *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->mutex);
	w->stop = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->mutex);
	workers_join(&w->helpers);
	for (int i = 0; i < w->n_slots && w->slots; i++)
		free(w->slots[i].packed);
	for (int i = 0; i < w->n_threads && w->scratches; i++) {
		free(w->scratches[i].values);
		free(w->scratches[i].other);
	}
	free(w->slots);
	free(w->scratches);
	free(w->whole);
	pthread_mutex_destroy(&w->mutex);
	pthread_cond_destroy(&w->changed);
	free(w);
}
