/* test_emulator.h - cases of the emulator's own tests: each runs in a process of its own. */
#ifndef TEST_EMULATOR_H
#define TEST_EMULATOR_H

#include <stdio.h>
#include <stdlib.h>

#include "cuda/device.cuh"
#include "cuda/ptx.cuh"

struct test_case {
	const char *name;
	void (*run)();
	const char *dies; /* text in its report; NULL: it exits without a report */
	const char *setting; /* NAME=value in the environment */
};
extern const test_case planted_cases[], meaning_cases[], runtime_cases[]; /* the last case has no name */

#define EXPECT(condition)                                                                                              \
	((condition) ? (void)0 : (fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), exit(1)))

cudaStream_t test_stream();

/* Launch a kernel with an attribute; id 0: none. */
template <class... P, class... A>
cudaError_t issue_with(cudaLaunchAttribute attribute, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A... args)
{
	cudaLaunchConfig_t config = {};
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared;
	config.stream = test_stream();
	config.attrs = &attribute;
	config.numAttrs = attribute.id != 0;
	return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}
/* Launch a kernel, with attribute `attribute_id` set to 1, or 0 for none. */
template <class... P, class... A>
cudaError_t issue_as(int attribute_id, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A... args)
{
	cudaLaunchAttribute attribute = {};
	attribute.id = attribute_id;
	attribute.val.cooperative = 1;
	return issue_with(attribute, kernel, grid, threads, shared, args...);
}
template <class... P, class... A>
cudaError_t issue_as_cluster(uint3 size, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A... args)
{
	cudaLaunchAttribute attribute = {};
	attribute.id = cudaLaunchAttributeClusterDimension;
	attribute.val.clusterDim = size;
	return issue_with(attribute, kernel, grid, threads, shared, args...);
}
/* Launch a kernel; early: it may begin before the previous work has ended. */
template <class... P, class... A>
void issue(bool early, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A... args)
{
	EXPECT(issue_as(early ? cudaLaunchAttributeProgrammaticStreamSerialization : 0, kernel, grid, threads, shared, args...) ==
	       cudaSuccess);
}
/* Launch and wait. */
template <class... P, class... A> void run(void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A... args)
{
	issue(false, kernel, grid, threads, shared, args...);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
}

/* Allocate zeroed device memory; copy its contents to the host. */
template <class T> T *device(size_t count)
{
	T *data;
	EXPECT(cudaMalloc((void **)&data, count * sizeof(T)) == cudaSuccess);
	EXPECT(cudaMemsetAsync(data, 0, count * sizeof(T), test_stream()) == cudaSuccess);
	return data;
}
template <class T> void upload(T *to, const T *from, size_t count)
{
	EXPECT(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyHostToDevice, test_stream()) == cudaSuccess);
}
template <class T> void download(T *to, const T *from, size_t count)
{
	EXPECT(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDeviceToHost, test_stream()) == cudaSuccess);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
}

#endif
