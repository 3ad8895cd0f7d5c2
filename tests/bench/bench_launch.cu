/* bench_launch - the cost of a kernel that does almost nothing, in a chain of kernels that depend on each other.
 *
 *   bench_launch [quick]
 *
 * Lines of JSON: nanoseconds per kernel of a chain of NODES, issued to a stream or replayed as a graph, plain or early.
 * "early": programmatic dependent launch, as cuda_launch_early does it; the kernel waits for its predecessor before it
 * reads what that wrote. `blocks` is the grid; each thread adds 1 to a float of its own. The result is checked. A program
 * of its own, so that it measures the card and the driver rather than the engine. */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

enum { NODES = 256, THREADS = 128, WARM = 5, SAMPLES = 50 };

static void check(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return;
	fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
	exit(EXIT_FAILURE);
}
#define CHECK(call) check(call, #call)

/* add: 0 for a node that touches no memory. */
template <bool EARLY> __global__ void node(float *x, float add)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
	if (EARLY) {
		asm volatile("griddepcontrol.launch_dependents;");
		asm volatile("griddepcontrol.wait;" ::: "memory");
	}
#endif
	if (add != 0)
		x[blockIdx.x * THREADS + threadIdx.x] += add;
}

static void issue(cudaStream_t stream, bool early, unsigned blocks, float *x, float add)
{
	cudaLaunchAttribute attribute = {};
	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	cudaLaunchConfig_t config = {};
	config.gridDim = blocks;
	config.blockDim = THREADS;
	config.stream = stream;
	config.attrs = &attribute;
	config.numAttrs = early;
	CHECK(early ? cudaLaunchKernelEx(&config, node<true>, x, add) : cudaLaunchKernelEx(&config, node<false>, x, add));
}

static void issue_chain(cudaStream_t stream, bool early, unsigned blocks, float *x, float add)
{
	for (int i = 0; i < NODES; i++)
		issue(stream, early, blocks, x, add);
}

static double now_ns()
{
	return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void measure(cudaStream_t stream, bool recorded, bool early, unsigned blocks, float add, float *x, int samples)
{
	const size_t bytes = (size_t)blocks * THREADS * sizeof(float);
	std::vector<double> device, host;
	std::vector<float> result(blocks * THREADS);
	cudaEvent_t from, to;
	cudaGraph_t graph;
	cudaGraphExec_t chain = nullptr;
	CHECK(cudaEventCreate(&from));
	CHECK(cudaEventCreate(&to));
	CHECK(cudaMemsetAsync(x, 0, bytes, stream));
	if (recorded) {
		CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
		issue_chain(stream, early, blocks, x, add);
		CHECK(cudaStreamEndCapture(stream, &graph));
		CHECK(cudaGraphInstantiate(&chain, graph, 0));
		CHECK(cudaGraphDestroy(graph));
	}
	for (int i = 0; i < WARM + samples; i++) {
		float ms;
		double began = now_ns();
		CHECK(cudaEventRecord(from, stream));
		if (recorded)
			CHECK(cudaGraphLaunch(chain, stream));
		else
			issue_chain(stream, early, blocks, x, add);
		CHECK(cudaEventRecord(to, stream));
		double issued = now_ns();
		CHECK(cudaStreamSynchronize(stream));
		CHECK(cudaEventElapsedTime(&ms, from, to));
		if (i >= WARM) {
			device.push_back(ms * 1e6 / NODES);
			host.push_back((issued - began) / NODES);
		}
	}
	CHECK(cudaMemcpy(result.data(), x, bytes, cudaMemcpyDeviceToHost));
	for (float f : result)
		if (f != (float)((WARM + samples) * NODES) * add) {
			fprintf(stderr, "a node ran before the one before it: %g\n", f);
			exit(EXIT_FAILURE);
		}
	std::sort(device.begin(), device.end());
	std::sort(host.begin(), host.end());
	printf("{\"op\": \"launch\", \"recorded\": %s, \"early\": %s, \"blocks\": %u, \"writes\": %s, \"median_ns\": %.0f, "
	       "\"p95_ns\": %.0f, \"host_ns\": %.0f}\n",
	       recorded ? "true" : "false", early ? "true" : "false", blocks, add != 0 ? "true" : "false",
	       device[device.size() / 2], device[device.size() * 95 / 100], host[host.size() / 2]);
	fflush(stdout);
	if (chain)
		CHECK(cudaGraphExecDestroy(chain));
	CHECK(cudaEventDestroy(from));
	CHECK(cudaEventDestroy(to));
}

int main(int argc, char **argv)
{
	int samples = argc > 1 && strcmp(argv[1], "quick") == 0 ? 3 : SAMPLES;
	cudaDeviceProp prop;
	cudaStream_t stream;
	float *x;
	CHECK(cudaGetDeviceProperties(&prop, 0));
	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	const unsigned all = (unsigned)prop.multiProcessorCount, grids[] = {1, all, 8 * all};
	CHECK(cudaMalloc(&x, (size_t)8 * all * THREADS * sizeof *x));
	for (unsigned blocks : grids)
		for (int recorded = 0; recorded < 2; recorded++)
			for (int early = 0; early <= (prop.major >= 9); early++)
				measure(stream, recorded, early, blocks, 1, x, samples);
	for (int recorded = 0; recorded < 2; recorded++)
		measure(stream, recorded, false, 1, 0, x, samples);
	return EXIT_SUCCESS;
}
