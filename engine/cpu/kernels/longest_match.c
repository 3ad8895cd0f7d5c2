/* longest_match, longest_match_stream: tokens are copied to one contiguous row. At an earlier place only one token is
 * compared: the one that would make the match longer than the longest so far. */
#include "engine/tensor/ops/longest_match.h"

#include <assert.h>
#include <string.h>

#include "engine/cpu/kernels/kernels.h"
#include "engine/tensor/ops/sequence.h"

static int32_t longest_match_next_of(const int32_t *x, int64_t i, const longest_match_params *p)
{
	const int64_t least = longest_match_least(i, p->window, p->length);
	int64_t longest = 0, at = -1;
	for (int64_t j = i - 1; j >= least && j >= longest && longest < p->length && x[i - longest] >= 0; j--) {
		if (x[j - longest] != x[i - longest])
			continue;
		int64_t m = 0;
		while (m < p->length && m <= j && x[i - m] >= 0 && x[j - m] == x[i - m])
			m++;
		if (m > longest) {
			longest = m;
			at = j;
		}
	}
	return at < 0 ? -1 : x[at + 1];
}

/* Process `count` tokens that follow `before` others, the last of which are in the ring if there is one. mask and next
 * may be NULL. */
static void longest_match_read_tokens(const longest_match_params *p, const int32_t *x, const int32_t *mask,
                                      int64_t count, float *ring, int64_t before, int32_t *next)
{
	int32_t row[2 * LONGEST_MATCH_MAX_WINDOW];
	int64_t have = before < p->window ? before : p->window;
	for (int64_t i = 0; i < have; i++)
		row[i] = (int32_t)ring[(before - have + i) % p->window];
	for (int64_t done = 0, n; done < count; done += n) {
		n = count - done < p->window ? count - done : p->window;
		for (int64_t i = 0; i < n; i++)
			row[have + i] = mask && !mask[done + i] ? -1 : x[done + i];
		for (int64_t i = 0; i < n && next; i++)
			next[done + i] = longest_match_next_of(row, have + i, p);
		for (int64_t i = 0; i < n && ring; i++)
			ring[(before + done + i) % p->window] = (float)row[have + i];
		const int64_t left = have + n < p->window ? have + n : p->window;
		memmove(row, row + have + n - left, (size_t)left * sizeof *row);
		have = left;
	}
}

static void longest_match_rows(const op_call *call, int64_t first, int64_t last)
{
	const int64_t n = call->in[0].shape.dim[1];
	const int32_t *x = call->in[0].data, *mask = kernel_optional(call, 1);
	for (int64_t b = first; b < last; b++)
		longest_match_read_tokens(call->params, x + b * n, mask ? mask + b * n : NULL, n, NULL, 0,
		                          (int32_t *)call->out[0].data + b * n);
}

static int64_t work_of(const op_call *call)
{
	return shape_count(call->in[0].shape) * ((const longest_match_params *)call->params)->window;
}

status KERNEL(longest_match)(backend *b, const op_call *call)
{
	return kernel_for(b, call, call->in[0].shape.dim[0], work_of(call), longest_match_rows);
}

enum { START = 6 /* the input */ };

static void sequences(const op_call *call, int64_t first, int64_t last)
{
	const longest_match_params *p = call->params;
	const int32_t *x = call->in[0].data, *mask = kernel_optional(call, 5);
	for (int64_t b = first; b < last; b++) {
		const sequence tokens = sequence_at(call, START, b);
		const int64_t slot = ((const int32_t *)call->in[2].data)[b],
		              before = ((const int32_t *)call->in[3].data)[b],
		              length = ((const int32_t *)call->in[4].data)[b];
		assert(length >= 0 && length <= tokens.room && before >= 0 && slot >= 0 &&
		       slot < call->in[1].shape.dim[0]);
		float *ring = (float *)call->in[1].data + slot * call->in[1].shape.dim[1] + p->offset;
		int32_t *next = call->out[0].data ? (int32_t *)call->out[0].data + tokens.first : NULL;
		longest_match_read_tokens(p, x + tokens.first, mask ? mask + tokens.first : NULL, length, ring, before,
		                          next);
		for (int64_t i = length; i < tokens.room && next; i++)
			next[i] = -1;
	}
}

status KERNEL(longest_match_stream)(backend *b, const op_call *call)
{
	return kernel_for(b, call, sequence_count(call, START), work_of(call), sequences);
}
