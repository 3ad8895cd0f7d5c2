#include "engine/train/gradient_sum.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/memory.h"

typedef struct bucket {
	int64_t first, floats;
	int complete_at; /* number of backward nodes that must have run */
} bucket;

struct gradient_sum {
	ranks *ranks;
	backend *backend;
	bool devices; /* the backend sums */
	float *gradients;
	float *host;     /* a copy of the gradients if the host sums for a device; otherwise the gradients */
	bucket *buckets; /* in the order in which the backward completes them */
	int n, n_begun;
	float share;
	float beside[3]; /* the loss; the numbers of ranks that want to stop, and to save */
	float *weights;  /* being exchanged */
	const int64_t *at;
};

/* End the last bucket at `end`. */
static void close_bucket(gradient_sum *s, int64_t end)
{
	bucket *b = &s->buckets[s->n++];
	b->floats = end - b->first;
}

/* Cut from the start of one parameter to that of another, so padding of the arena belongs to the bucket before it.
 * Parameters that are fixed follow the gradients. */
static void gradient_sum_cut(gradient_sum *s, const model *m, const plan *backward)
{
	for (int i = 0; i < model_tensor_count(m); i++) {
		const int64_t at = model_parameter_offset(m, i);
		if (model_parameter(m, i)->fixed)
			continue;
		if (at - s->buckets[s->n].first >= GRADIENT_SUM_FLOATS) {
			close_bucket(s, at);
			s->buckets[s->n].first = at;
		}
		const int node = backward ? model_gradient_node(m, backward, i) + 1 : 0;
		bucket *b = &s->buckets[s->n];
		b->complete_at = node > b->complete_at ? node : b->complete_at;
	}
	close_bucket(s, model_trained_floats(m));
}

/* Ranks must start sums in the same order: that of the plan, ties in the order of the arena. */
static int by_completion(const void *a, const void *b)
{
	const bucket *x = a, *y = b;
	return x->complete_at != y->complete_at ? (x->complete_at > y->complete_at) - (x->complete_at < y->complete_at)
	                                        : (x->first > y->first) - (x->first < y->first);
}

status gradient_sum_new(gradient_sum **out, ranks *r, const model *m, const plan *backward, float *gradients,
                        error *err)
{
	*out = NULL;
	gradient_sum *s = memory_new(1, sizeof *s);
	if (!s)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	assert(!r->devices || model_backend(m)->collective_sum);
	s->ranks = r;
	s->backend = model_backend(m);
	s->gradients = gradients;
	s->devices = r->devices;
	s->host = s->devices || s->backend->host_memory ? gradients
	                                                : memory_new((size_t)model_trained_floats(m), sizeof *s->host);
	s->buckets = memory_new((size_t)model_tensor_count(m), sizeof *s->buckets);
	if (!s->host || !s->buckets) {
		gradient_sum_free(s);
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	}
	gradient_sum_cut(s, m, backward);
	qsort(s->buckets, (size_t)s->n, sizeof *s->buckets, by_completion);
	*out = s;
	return STATUS_OK;
}

void gradient_sum_free(gradient_sum *s)
{
	if (!s)
		return;
	if (s->host != s->gradients)
		free(s->host);
	free(s->buckets);
	free(s);
}

void gradient_sum_begin(gradient_sum *s, float share)
{
	s->n_begun = 0;
	s->share = share;
}

static status begin_bucket(gradient_sum *s, const bucket *b)
{
	float *numbers = s->host + b->first;
	if (s->devices)
		return s->backend->collective_sum(s->backend, numbers, b->floats, s->share);
	if (s->host != s->gradients)
		TRY(s->backend->download(s->backend, numbers, s->gradients + b->first,
		                         (size_t)b->floats * sizeof(float)));
	for (int64_t i = 0; i < b->floats; i++)
		numbers[i] *= s->share;
	return s->ranks->begin_sum(s->ranks, numbers, b->floats);
}

int gradient_sum_next(const gradient_sum *s, int node, int end)
{
	for (int i = s->devices ? 0 : s->n; i < s->n; i++)
		if (s->buckets[i].complete_at > node)
			return s->buckets[i].complete_at < end ? s->buckets[i].complete_at : end;
	return end;
}

/* Poll the sums that have started: buckets, and the loss. */
static status poll_sums(gradient_sum *s, bool *complete)
{
	bool device = true;
	TRY(s->ranks->poll(s->ranks, complete));
	if (s->devices)
		TRY(s->backend->collective_poll(s->backend, &device));
	*complete = *complete && device;
	return STATUS_OK;
}

status gradient_sum_passed(gradient_sum *s, int node)
{
	bool complete;
	if (s->n_begun > 0)
		TRY(poll_sums(s, &complete));
	for (; s->n_begun < s->n && s->buckets[s->n_begun].complete_at <= node; s->n_begun++)
		TRY(begin_bucket(s, &s->buckets[s->n_begun]));
	return STATUS_OK;
}

status gradient_sum_rest(gradient_sum *s, float loss)
{
	for (; s->n_begun < s->n; s->n_begun++)
		TRY(begin_bucket(s, &s->buckets[s->n_begun]));
	s->beside[0] = loss;
	s->beside[1] = s->ranks->wants_stop;
	s->beside[2] = s->ranks->wants_save;
	return s->ranks->begin_sum(s->ranks, s->beside, 3);
}

status gradient_sum_poll(gradient_sum *s, bool *complete, float *loss)
{
	TRY(poll_sums(s, complete));
	if (!*complete)
		return STATUS_OK;
	*loss = s->beside[0];
	s->ranks->stop = s->beside[1] > 0;
	s->ranks->save = s->beside[2] > 0;
	for (int i = 0; i < s->n && s->host != s->gradients; i++) {
		const bucket *b = &s->buckets[i];
		TRY(s->backend->upload(s->backend, s->gradients + b->first, s->host + b->first,
		                       (size_t)b->floats * sizeof(float)));
	}
	return STATUS_OK;
}

status gradient_sum_exchange(gradient_sum *s, float *weights, const int64_t *at)
{
	const int64_t own = at[s->ranks->rank], end = at[s->ranks->rank + 1];
	s->weights = weights;
	s->at = at;
	if (s->devices)
		return s->backend->collective_gather(s->backend, weights, at);
	if (s->host == s->gradients)
		return s->ranks->begin_gather(s->ranks, weights, at);
	TRY(s->backend->download(s->backend, s->host + own, weights + own, (size_t)(end - own) * sizeof(float)));
	return s->ranks->begin_gather(s->ranks, s->host, at);
}

status gradient_sum_exchanged(gradient_sum *s, bool *complete)
{
	TRY(poll_sums(s, complete));
	for (int i = 0; i < s->ranks->count && *complete && s->host != s->gradients; i++)
		if (i != s->ranks->rank)
			TRY(s->backend->upload(s->backend, s->weights + s->at[i], s->host + s->at[i],
			                       (size_t)(s->at[i + 1] - s->at[i]) * sizeof(float)));
	return STATUS_OK;
}
