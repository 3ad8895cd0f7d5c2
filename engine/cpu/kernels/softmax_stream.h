/* softmax_stream.h - queries of a call against keys in a slot; shared by softmax_stream and source_attention. */
#ifndef ENGINE_CPU_KERNELS_SOFTMAX_STREAM_H
#define ENGINE_CPU_KERNELS_SOFTMAX_STREAM_H

#include "engine/cpu/kernels/softmax_attention.h"
#include "engine/tensor/ops/softmax.h"
#include "engine/tensor/ops/softmax_stream.h"

/* A bf16 in a ring, whose memory is floats. */
typedef uint16_t ring_bf16 __attribute__((may_alias));

/* One sequence of a call, and a head of its queries. */
typedef struct stream {
	softmax_heads n;
	softmax_store store;
	const float *q, *k, *v; /* for the call's first token; k and v NULL: its tokens are only queries */
	int64_t q_row, k_row, v_row;
	const int32_t *mask;   /* for the call's tokens, or NULL */
	float *y;              /* rows of n.heads · n.value; NULL: not requested */
	float *log_normalizer; /* rows of n.heads, or NULL */
	float *state;
	const float *memory_k, *memory_v, *bias; /* bias NULL: none */
	int64_t memories;
	int64_t position; /* tokens in the store, or that went through it */
	int64_t length, room;
	int64_t reach;   /* number of these, the last ones including its own, that a query sees; without k and v all
	                  * stored ones */
	int64_t past;    /* <= 0: no limit */
	int64_t segment; /* 0: none */
	float scale;
	const float *key_step; /* for the call's first token; NULL: no ring of codes */
	float value_step, query_step;
	float *tile; /* for a ring of codes or bf16: keys [SOFTMAX_KEYS, n.key], values [SOFTMAX_KEYS, n.value],
	              * scratch; otherwise NULL */
	int64_t head, key_at,
	    value_at; /* the head, and the first channels that it reads of a token's keys and values */
} stream;

/* The sequences of a call: their common data, and the function that sets the rest for one of them. */
typedef struct stream_call {
	int64_t sequences;
	stream common;
	void (*set)(const op_call *call, int64_t sequence, stream *s);
} stream_call;

static inline stream stream_at(const op_call *call, const stream_call *all, int64_t sequence)
{
	stream s = all->common;
	all->set(call, sequence, &s);
	return s;
}

/* Bytes of scratch that the answer needs. */
size_t KERNEL(stream_answer_scratch)(const backend *b, softmax_heads n, softmax_format format);

/* Write all of y and log_normalizer: the results of the call's queries, and zeros past the length of each sequence. */
void KERNEL(stream_answer)(backend *b, const op_call *call, const stream_call *all);

#endif
