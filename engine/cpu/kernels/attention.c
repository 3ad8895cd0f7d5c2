/* additive_attention: one round over whole sequences, by blocks (attention.h).
 *
 * For block j of k tokens:
 *   1. Scan the scores of block j-1 right to left and those of block j left to right. That
 *      gives, for every token, the two aggregates' maxima and sums, so the factors of
 *      g_i = old_i S_i + new_i P_i and M_i are known before any vector is touched.
 *   2. Right to left over block j-1, S = keep S + weight x. The suffix from token q of
 *      block j-1 belongs to token q-1 of block j and is written there, into g itself:
 *      the recurrence runs through the rows of g and needs no memory of its own.
 *   3. Left to right over block j, P = keep P + weight x, and g = old g + new P.
 *
 * x is read twice and g written twice, all but the first time from the cache; nothing is
 * ever subtracted, and every exponent is at most 0. Tried and dropped: one maximum per block (fails
 * when the scores of a block span more than 87), and the normalised carry (M, g), whose
 * log M loses small weights once scores are large. */
#include "engine/cpu/kernels/attention.h"

#include <string.h>

typedef struct forward {
	attention_cut cut;
	const float *x, *score;
	const int32_t *mask;
	float *g, *log_normalizer;
} forward;

/* Scratch of one thread. */
typedef struct workspace {
	attention_scan old, new;
	float *old_factor, *new_factor;
	float *prefix; /* P */
} workspace;

static int64_t workspace_floats(const attention_cut *c)
{
	return 2 * attention_scan_floats(c->block, c->group) + 2 * c->block * c->group + c->group * c->dh;
}

static workspace workspace_at(const attention_cut *c, float *memory)
{
	int64_t scan = attention_scan_floats(c->block, c->group), factors = c->block * c->group;
	workspace w;
	w.old = attention_scan_in(memory, c->block, c->group);
	w.new = attention_scan_in(memory + scan, c->block, c->group);
	w.old_factor = memory + 2 * scan;
	w.new_factor = w.old_factor + factors;
	w.prefix = w.new_factor + factors;
	return w;
}

/* a_j = w_h·x_j / √dh for all tokens and heads. */
static void scores(const backend *b, const op_call *call, const attention_cut *c, float *score)
{
	const float *x = call->in[0].data, *w = call->in[1].data;
	const float scale = 1.0f / sqrtf((float)c->dh);
	int64_t tokens = c->batch * c->length;
	const int threads = kernel_threads(b, tokens * c->d * ATTENTION_COST);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t t = 0; t < tokens; t++) {
		for (int64_t h = 0; h < c->heads; h++)
			score[t * c->heads + h] = scale * attention_dot(x + t * c->d + h * c->dh, w + h * c->dh, c->dh);
	}
}

/* The group's scores of `tokens` tokens from `first` (of the whole batch) on. */
static void load_scores(const forward *f, const attention_unit *u, int64_t first, int64_t tokens, float *out)
{
	const attention_cut *c = &f->cut;
	for (int64_t t = 0; t < tokens; t++) {
		bool there = !f->mask || f->mask[first + t] != 0;
		for (int64_t h = 0; h < c->group; h++)
			out[t * c->group + h] = there ? f->score[(first + t) * c->heads + u->head + h] : -INFINITY;
	}
}

/* Step 1: the factors of `tokens` tokens, and M. */
static void factors(const forward *f, const attention_unit *u, const workspace *w, int64_t first, int64_t tokens)
{
	const attention_cut *c = &f->cut;
	int64_t group = c->group;
	float *log_normalizer = w->new.score; /* the scores are used up */
#pragma omp simd
	for (int64_t e = 0; e < tokens * group; e++) {
		/* Token p of the block goes with the suffix from p + 1. */
		float old_top = w->old.top[e + group], new_top = w->new.top[e];
		float top = old_top > new_top ? old_top : new_top;
		float older = math_exp(old_top - top), newer = math_exp(new_top - top);
		float sum = older * w->old.sum[e + group] + newer * w->new.sum[e];
		float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
		w->old_factor[e] = older * inverse;
		w->new_factor[e] = newer * inverse;
		log_normalizer[e] = sum > 0.0f ? top + math_log(sum) : -INFINITY;
	}
	for (int64_t t = 0; t < tokens; t++)
		memcpy(f->log_normalizer + (first + t) * c->heads + u->head, log_normalizer + t * group,
		       (size_t)group * sizeof(float));
}

/* Step 2. With fewer tokens in block j than in a window, the suffixes that nobody needs
 * are carried in its last row until the first that is needed. */
static void suffixes(const forward *f, const workspace *w, const float *x, float *g, int64_t tokens)
{
	const attention_cut *c = &f->cut;
	const float *from = w->prefix; /* zeros */
	for (int64_t q = c->block - 1; q > 0; q--) {
		float *to = g + (kernel_min(q, tokens) - 1) * c->d;
		for (int64_t h = 0; h < c->group; h++) {
			const float keep = w->old.keep[q * c->group + h], weight = w->old.weight[q * c->group + h];
			int64_t first = h * c->dh, last = first + c->dh;
#pragma omp simd
			for (int64_t i = first; i < last; i++)
				to[i] = keep * from[i] + weight * x[q * c->d + i];
		}
		from = to;
	}
}

/* Step 3 for token p of a block; `old`: its row of g holds a suffix. */
static inline void prefix(const forward *f, const workspace *w, int64_t p, bool old, const float *x, float *g)
{
	const attention_cut *c = &f->cut;
	float *carry = w->prefix;
	for (int64_t h = 0; h < c->group; h++) {
		int64_t e = p * c->group + h, first = h * c->dh, last = first + c->dh;
		const float keep = w->new.keep[e], weight = w->new.weight[e];
		const float older = w->old_factor[e], newer = w->new_factor[e];
		if (old) {
#pragma omp simd
			for (int64_t i = first; i < last; i++) {
				carry[i] = keep * carry[i] + weight * x[i];
				g[i] = older * g[i] + newer * carry[i];
			}
		} else {
#pragma omp simd
			for (int64_t i = first; i < last; i++) {
				carry[i] = keep * carry[i] + weight * x[i];
				g[i] = newer * carry[i];
			}
		}
	}
}

static void forward_block(const forward *f, const attention_unit *u, const workspace *w, int64_t block)
{
	const attention_cut *c = &f->cut;
	int64_t first = u->sequence * c->length + block * c->block;
	int64_t tokens = kernel_min(c->block, c->length - block * c->block);
	const float *x = f->x + first * c->d + u->channel;
	float *g = f->g + first * c->d + u->channel;
	load_scores(f, u, first, tokens, w->new.score);
	attention_scan_run(w->new, tokens, c->group, 1, NULL);
	if (block > 0) {
		load_scores(f, u, first - c->block, c->block, w->old.score);
		attention_scan_run(w->old, c->block, c->group, -1, NULL);
	} else {
		attention_scan_clear(w->old, c->block, c->group);
	}
	factors(f, u, w, first, tokens);
	memset(w->prefix, 0, (size_t)(c->group * c->dh) * sizeof *w->prefix);
	if (block > 0)
		suffixes(f, w, x - c->block * c->d, g, tokens);
	/* The last token of a full block has no suffix. */
	for (int64_t p = 0; p < tokens; p++)
		prefix(f, w, p, block > 0 && p < c->block - 1, x + p * c->d, g + p * c->d);
}

size_t KERNEL(additive_attention_scratch)(const backend *b, const op_call *call)
{
	attention_cut c = attention_cut_of(call);
	int64_t floats = ((const cpu *)b)->threads * workspace_floats(&c);
	for (int i = 0; i < call->n_out; i++)
		floats += kernel_spare_floats(call, i);
	return (size_t)floats * sizeof(float);
}

status KERNEL(additive_attention)(backend *b, const op_call *call)
{
	float *memory = call->scratch;
	float *g = kernel_output(call, 0, &memory), *score = kernel_output(call, 1, &memory);
	forward f = {.cut = attention_cut_of(call),
	             .x = call->in[0].data,
	             .score = score,
	             .mask = kernel_optional(call, 2),
	             .g = g,
	             .log_normalizer = kernel_output(call, 2, &memory)};
	const attention_cut *c = &f.cut;
	scores(b, call, c, score);
	int64_t units = c->batch * c->spans * c->groups;
	int threads = kernel_threads(b, c->batch * c->length * c->d * ATTENTION_COST);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		workspace w = workspace_at(c, memory + thread * workspace_floats(c));
		for (int64_t i = thread; i < units; i += threads) {
			attention_unit u = attention_unit_at(c, i);
			int64_t last = kernel_min(c->blocks, (u.span + 1) * c->span);
			for (int64_t block = u.span * c->span; block < last; block++)
				forward_block(&f, &u, &w, block);
		}
	}
	return STATUS_OK;
}
