/* check.cu - tests whether a device computes: a kernel writes a pattern to new memory, and the host compares it.
 *
 * After a fault, calls may fail at once, or succeed until a kernel runs. Only a comparison of results shows that a
 * context is sound. 4 KiB, one launch. */
#include "cuda/backend.h"

#include "cuda/device.cuh"

enum { WORDS = 1024, THREADS = 256 };

static __host__ __device__ inline uint32_t pattern(uint32_t i)
{
	return (i + 1) * 2654435761u;
}

static __global__ void __launch_bounds__(THREADS) write_pattern(uint32_t *out)
{
	const uint32_t i = blockIdx.x * THREADS + threadIdx.x;
	out[i] = pattern(i);
}

static status compute(backend *b, bool *right)
{
	uint32_t back[WORDS];
	void *data;
	*right = true;
	TRY(b->allocate(b, sizeof back, &data));
	status s = cuda_launch(b, write_pattern, dim3(WORDS / THREADS), THREADS, 0, (uint32_t *)data);
	if (s == STATUS_OK)
		s = b->download(b, back, data, sizeof back);
	for (uint32_t i = 0; i < WORDS && s == STATUS_OK; i++)
		*right &= back[i] == pattern(i);
	b->release(b, data);
	return s;
}

/* A device whose memory is full counts as sound, since nothing else can be tested. */
status cuda_check(cuda_backend *c)
{
	bool right;
	const bool checks = c->checks;
	c->checks = false;
	status s = compute(&c->base, &right);
	c->checks = checks;
	if (s == STATUS_DEVICE || (s == STATUS_OK && right) || s == STATUS_NOMEM)
		return s == STATUS_NOMEM ? STATUS_OK : s;
	cuda_lose(c, "it does not compute", s == STATUS_OK ? "a kernel's results are wrong" : status_text(s));
	return STATUS_DEVICE;
}

static __global__ void write_to(uint32_t *address)
{
	*address = 1;
}

status additive_cuda_plant_fault(backend *b)
{
	enum : uintptr_t { NOWHERE = 64 };
	return cuda_launch(b, write_to, dim3(1), WARP, 0, (uint32_t *)NOWHERE);
}
