/* dilated_attention.h - shared by dilated attention, its gradient and its recurrent form: the places of a head's kept
 * rows, and the rows that a span of tokens reads.
 *
 * The rows that a head keeps of a segment are a dense attention of its own, whose rows are r · row apart. They are
 * numbered from 0 within the segment and processed by softmax_attention.h as blocks of queries and tiles of keys. These
 * accept any distance between rows, so nothing is gathered. Every token keeps the maximum and the sum of the
 * exponentials of all branches so far (online softmax over branches). y is divided by the sum in the end.
 *
 * The bits of a token do not depend on its block: tiles begin at row 0 of a segment, and hidden keys add zeros. */
#ifndef ENGINE_CPU_KERNELS_DILATED_ATTENTION_H
#define ENGINE_CPU_KERNELS_DILATED_ATTENTION_H

#include "engine/cpu/kernels/softmax_attention.h"
#include "engine/tensor/ops/dilated.h"

/* One head of one sequence. Tokens position … end - 1 are the call's; the pointers are to token `position`, and the
 * next is `d` further. Earlier tokens are in the ring. */
typedef struct dilated_head {
	const dilated_pattern *pattern;
	int64_t heads, head, dh, d;
	const float *query, *key, *value;
	const int32_t *mask; /* for the call's tokens, or NULL */
	int64_t position, end;
	const float *ring; /* the state at the head's first channel */
	const float *present;
	int64_t window;
	float scale;
	bool causal, zero_keys;
} dilated_head;

/* The kept rows of one segment of one branch: row a is token first + a · step. */
typedef struct dilated_segment {
	int64_t start, rows; /* first token of the segment; its tokens so far */
	int64_t first, step;
	int64_t count; /* kept rows */
	float zeros;   /* keys of zeros beside them */
} dilated_segment;

/* The length of the segments of a branch. */
static inline int64_t dilated_length(const dilated_head *a, int64_t branch)
{
	return kernel_min(a->pattern->segment[branch], a->end);
}

/* Return the segment that begins at token `start`. */
static inline dilated_segment dilated_segment_at(const dilated_head *a, int64_t branch, int64_t start)
{
	const int64_t w = dilated_length(a, branch), r = a->pattern->dilation[branch];
	const int64_t first = dilated_first(a->pattern, branch, a->heads, a->head);
	dilated_segment s = {.start = start, .rows = kernel_min(w, a->end - start), .first = start + first, .step = r};
	s.count = dilated_kept(s.rows, first, r);
	if (a->zero_keys && !a->causal)
		s.zeros = (float)(kernel_parts(w, r) - s.count);
	return s;
}

/* The rows of a segment before token t. */
static inline int64_t dilated_before(const dilated_segment *s, int64_t t)
{
	return kernel_min(s->count, dilated_kept(t - s->start, s->first - s->start, s->step));
}

/* Return up to SOFTMAX_KEYS kept rows from row j on and before row `end`, as many as are contiguous. mask
 * [SOFTMAX_KEYS] is scratch. */
static inline softmax_keys dilated_keys(const dilated_head *a, const dilated_segment *s, int64_t j, int64_t end,
                                        int32_t *mask)
{
	const int64_t token = s->first + j * s->step;
	const int64_t row = s->step * a->d;
	softmax_keys k = {.first = j, .count = kernel_min(SOFTMAX_KEYS, end - j), .key_row = row, .value_row = row};
	if (token >= a->position) {
		const int64_t i = token - a->position;
		k.key = a->key + i * a->d;
		k.value = a->value + i * a->d;
		for (int64_t r = 0; r < k.count && a->mask; r++)
			mask[r] = a->mask[i + r * s->step];
		k.mask = a->mask ? mask : NULL;
		return k;
	}
	const int64_t place = token % a->window;
	k.count = kernel_min(k.count, kernel_parts(a->position - token, s->step));
	k.count = kernel_min(k.count, kernel_parts(a->window - place, s->step));
	k.key = a->ring + dilated_key(a->d, place);
	k.value = a->ring + dilated_value(a->d, a->window, place);
	bool hidden = false;
	for (int64_t r = 0; r < k.count; r++) {
		mask[r] = a->present[place + r * s->step] != 0.0f;
		hidden |= !mask[r];
	}
	k.mask = hidden ? mask : NULL;
	return k;
}

/* A block of queries: `count` rows of a segment from row `first` on. */
static inline softmax_queries dilated_queries(const dilated_head *a, int64_t first, int64_t end)
{
	return (softmax_queries){.first = first,
	                         .count = kernel_min(SOFTMAX_LANES, end - first),
	                         .window = (int64_t)1 << 40, /* larger than any number of rows */
	                         .dh = a->dh,
	                         .dv = a->dh,
	                         .bidirectional = !a->causal};
}

/* Return the end of the rows that a block of queries reads: its own last row, or all rows. */
static inline int64_t dilated_end(const dilated_head *a, const dilated_segment *s, const softmax_queries *q)
{
	return a->causal ? q->first + q->count : s->count;
}

/* Outputs of a span of tokens begin … end - 1. */
typedef struct dilated_span {
	int64_t begin, end;
	float *y;              /* for token begin; the next one is `d` further */
	float *top, *total;    /* [end - begin] */
	const float *mixture;  /* the weight of each branch, or NULL */
	float *log_normalizer; /* for token begin in branch 0, or NULL; the next one is `heads` further */
	int64_t branch_floats; /* distance to the next branch */
} dilated_span;

/* Merge the sums of a block into those of its tokens. */
static inline void dilated_merge(const dilated_head *a, const dilated_span *o, const softmax_block *w,
                                 const softmax_queries *q, int64_t branch, int64_t token, int64_t step, float zeros)
{
	for (int64_t l = 0; l < q->count; l++, token += step) {
		const int64_t i = token - o->begin;
		float *y = o->y + i * a->d, top = w->top[l], total = w->total[l], shrink = 1.0f;
		if (zeros > 0.0f) { /* scores of 0 */
			const float high = top > 0.0f ? top : 0.0f;
			shrink = math_exp(top - high);
			total = total * shrink + zeros * math_exp(-high);
			top = high;
		}
		if (o->log_normalizer)
			o->log_normalizer[branch * o->branch_floats + i * a->heads] =
			    total > 0.0f ? top + math_log(total) : -INFINITY;
		if (total == 0.0f)
			continue;
		float keep = 1.0f, add = shrink;
		if (o->mixture) {
			add *= o->mixture[branch] / total;
		} else {
			const float high = top > o->top[i] ? top : o->top[i];
			keep = math_exp(o->top[i] - high);
			add *= math_exp(top - high);
			o->total[i] = keep * o->total[i] + total * math_exp(top - high);
			o->top[i] = high;
		}
		for (int64_t d = 0; d < a->dh; d++)
			y[d] = keep * y[d] + add * w->pooled[d * SOFTMAX_LANES + l];
	}
}

static inline void dilated_branch(const dilated_head *a, const dilated_span *o, const softmax_block *w, int64_t branch)
{
	const int64_t length = dilated_length(a, branch);
	int32_t mask[SOFTMAX_KEYS];
	for (int64_t start = o->begin / length * length; start < o->end; start += length) {
		const dilated_segment s = dilated_segment_at(a, branch, start);
		const int64_t end = dilated_before(&s, o->end);
		for (int64_t first = dilated_before(&s, o->begin); first < end; first += SOFTMAX_LANES) {
			const softmax_queries q = dilated_queries(a, first, end);
			const int64_t token = s.first + first * s.step, last = dilated_end(a, &s, &q);
			softmax_block_open(w, &q, a->query + (token - a->position) * a->d, s.step * a->d, a->scale);
			for (int64_t j = 0, next; j < last; j = next) {
				softmax_keys k = dilated_keys(a, &s, j, last, mask);
				next = j + k.count;
				softmax_block_tile(w, &q, &k, NULL);
			}
			dilated_merge(a, o, w, &q, branch, token, s.step, s.zeros);
		}
	}
}

/* y and log_normalizer of the span. */
static inline void dilated_attend(const dilated_head *a, const dilated_span *o, const softmax_block *w)
{
	const int64_t count = o->end - o->begin;
	for (int64_t i = 0; i < count; i++) {
		o->top[i] = -INFINITY;
		o->total[i] = 0.0f;
		memset(o->y + i * a->d, 0, (size_t)a->dh * sizeof(float));
		for (int64_t b = 0; b < a->pattern->branches && o->log_normalizer; b++)
			o->log_normalizer[b * o->branch_floats + i * a->heads] = -INFINITY;
	}
	for (int64_t b = 0; b < a->pattern->branches; b++)
		dilated_branch(a, o, w, b);
	for (int64_t i = 0; i < count && !o->mixture; i++) {
		const float inverse = o->total[i] > 0.0f ? 1.0f / o->total[i] : 0.0f;
		for (int64_t d = 0; d < a->dh; d++)
			o->y[i * a->d + d] *= inverse;
	}
}

/* Tokens of a span: enough for whole blocks of queries in every branch. Bits do not depend on it. */
static inline int64_t dilated_span_tokens(const dilated_pattern *p, int64_t length)
{
	int64_t most = 1;
	for (int64_t i = 0; i < p->branches; i++)
		most = p->dilation[i] > most ? p->dilation[i] : most;
	most = kernel_min(most, kernel_parts(length, SOFTMAX_LANES)) * SOFTMAX_LANES;
	return kernel_min(most > 1024 ? most : 1024, length);
}

/* Floats of scratch for a thread: a block, then top and total of a span. */
static inline int64_t dilated_floats(const dilated_pattern *p, int64_t dh, int64_t length)
{
	return softmax_block_floats(dh, dh, false) + 2 * dilated_span_tokens(p, length);
}

/* Keys that a token reads in all branches, on average at most. */
static inline int64_t dilated_work(const dilated_pattern *p, int64_t length)
{
	int64_t work = 1;
	for (int64_t i = 0; i < p->branches; i++) {
		const int64_t r = p->dilation[i], keys = kernel_min(p->segment[i], length) / r;
		work += keys / r;
	}
	return work;
}

/* mixture [branches] as weights: softmax(mixture). */
static inline void dilated_weights(const float *mixture, int64_t branches, float *c)
{
	float top = -INFINITY, sum = 0.0f;
	for (int64_t i = 0; i < branches; i++)
		top = mixture[i] > top ? mixture[i] : top;
	for (int64_t i = 0; i < branches; i++)
		sum += c[i] = math_exp(mixture[i] - top);
	for (int64_t i = 0; i < branches; i++)
		c[i] /= sum;
}

/* Head `head` (of all sequences' heads) of a call of dilated_attention or its gradient. */
static inline dilated_head dilated_head_of(const op_call *call, int64_t head)
{
	const dilated_params *p = call->params;
	const shape s = call->in[0].shape;
	const int32_t *mask = kernel_optional(call, 3);
	const int64_t sequence = head / p->heads, dh = s.dim[2] / p->heads;
	const int64_t first = sequence * s.dim[1] * s.dim[2] + head % p->heads * dh;
	return (dilated_head){.pattern = &p->pattern,
	                      .heads = p->heads,
	                      .head = head % p->heads,
	                      .dh = dh,
	                      .d = s.dim[2],
	                      .query = (const float *)call->in[0].data + first,
	                      .key = (const float *)call->in[1].data + first,
	                      .value = (const float *)call->in[2].data + first,
	                      .mask = mask ? mask + sequence * s.dim[1] : NULL,
	                      .end = s.dim[1],
	                      .scale = p->scale,
	                      .causal = p->causal,
	                      .zero_keys = p->zero_keys};
}

#endif
