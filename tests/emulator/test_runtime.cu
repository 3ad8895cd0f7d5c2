/* Guarantees for host code, and misuse of it: streams, copies, captures, limits, faults. */
#include "tests/emulator/test_emulator.h"

#include "tests/emulator/count.h"

#include <cublasLt.h>
#include <cuda.h>

__global__ void fill(float *out, float x, int n)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		out[i] = x;
}
__global__ void nothing(void)
{
}

static cudaError_t launch(dim3 grid, unsigned threads, size_t shared)
{
	cudaLaunchConfig_t config = {};
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared;
	config.stream = test_stream();
	return cudaLaunchKernelEx(&config, nothing);
}

static void limits()
{
	EXPECT(launch(1, 1025, 0) == cudaErrorInvalidConfiguration && launch(0, 32, 0) == cudaErrorInvalidConfiguration);
	EXPECT(launch(dim3(1, 65536), 32, 0) == cudaErrorInvalidConfiguration && launch(dim3(1, 1, 65536), 32, 0) != cudaSuccess);
	EXPECT(launch(1, 1024, 48 << 10) == cudaSuccess && launch(1, 32, (48 << 10) + 1) == cudaErrorInvalidValue);
	EXPECT(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) + 1) == cudaErrorInvalidValue);
	EXPECT(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10) == cudaSuccess);
	EXPECT(launch(1, 32, 227 << 10) == cudaSuccess && cudaStreamSynchronize(test_stream()) == cudaSuccess);
	EXPECT(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
}

/* Every block waits for all. */
__global__ void meets(unsigned *arrived)
{
	if (threadIdx.x > 0)
		return;
	add_release(arrived, 1);
	while (poll_relaxed(arrived) < gridDim.x)
		;
}

static void resident()
{
	int blocks = 0;
	cudaDeviceProp prop;
	EXPECT(cudaGetDeviceProperties(&prop, 0) == cudaSuccess && prop.cooperativeLaunch == 1);
	EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 256, 1024) == cudaSuccess && blocks == 1);
	EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 256, 228 << 10) == cudaSuccess && blocks == 0);
	const unsigned most = (unsigned)prop.multiProcessorCount;
	EXPECT(issue_as(cudaLaunchAttributeCooperative, nothing, most, 32, 0) == cudaSuccess);
	EXPECT(issue_as(cudaLaunchAttributeCooperative, nothing, most + 1, 32, 0) == cudaErrorCooperativeLaunchTooLarge);
	EXPECT(issue_as(0, nothing, most + 1, 32, 0) == cudaSuccess && cudaStreamSynchronize(test_stream()) == cudaSuccess);
}

/* A cooperative launch may have as many blocks as the device has processors. */
static void many_resident()
{
	cudaDeviceProp prop;
	EXPECT(cudaGetDeviceProperties(&prop, 0) == cudaSuccess && prop.multiProcessorCount == 132);
	EXPECT(issue_as(cudaLaunchAttributeCooperative, meets, 132, 32, 0, device<unsigned>(1)) == cudaSuccess);
	EXPECT(issue_as(cudaLaunchAttributeCooperative, nothing, 133, 32, 0) == cudaErrorCooperativeLaunchTooLarge);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
}

/* Work runs when it is waited for. A pageable source is read at once, a pinned one when the stream reaches the copy. */
static void sources()
{
	float *to = device<float>(1), *pinned, pageable = 1, got;
	EXPECT(cudaHostAlloc((void **)&pinned, sizeof(float), 0) == cudaSuccess);
	*pinned = 1;
	EXPECT(cudaMemcpyAsync(to, &pageable, sizeof pageable, cudaMemcpyHostToDevice, test_stream()) == cudaSuccess);
	pageable = 2;
	download(&got, to, 1);
	EXPECT(got == 1);
	EXPECT(cudaMemcpyAsync(to, pinned, sizeof got, cudaMemcpyHostToDevice, test_stream()) == cudaSuccess);
	*pinned = 3; /* too early: the device reads this value */
	download(&got, to, 1);
	EXPECT(got == 3);
	EXPECT(cudaMemcpyAsync(pinned, to, sizeof got, cudaMemcpyDeviceToHost, test_stream()) == cudaSuccess);
	*pinned = 5;
	EXPECT(*pinned == 5 && cudaStreamQuery(test_stream()) == cudaSuccess && *pinned == 3);
	EXPECT(cudaFreeHost(pinned) == cudaSuccess);
}

static void events()
{
	cudaStream_t other;
	cudaEvent_t event;
	float *to = device<float>(1), *pinned;
	EXPECT(cudaHostAlloc((void **)&pinned, 2 * sizeof(float), 0) == cudaSuccess);
	EXPECT(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, 0) == cudaSuccess);
	EXPECT(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess && cudaEventQuery(event) == cudaSuccess);
	pinned[0] = 4;
	EXPECT(cudaMemcpyAsync(to, pinned, sizeof *to, cudaMemcpyHostToDevice, test_stream()) == cudaSuccess);
	EXPECT(cudaEventRecord(event, test_stream()) == cudaSuccess && cudaStreamWaitEvent(other, event, 0) == cudaSuccess);
	EXPECT(cudaEventRecord(event, other) == cudaSuccess); /* the wait refers to the first record */
	EXPECT(cudaMemcpyAsync(pinned + 1, to, sizeof *to, cudaMemcpyDeviceToHost, other) == cudaSuccess);
	EXPECT(cudaStreamSynchronize(other) == cudaSuccess && pinned[1] == 4 && cudaEventQuery(event) == cudaSuccess);
	EXPECT(cudaStreamDestroy(other) == cudaSuccess && cudaStreamSynchronize(other) == cudaErrorInvalidResourceHandle);
}

static void captures()
{
	float *x = device<float>(4), got[4], host[4] = {};
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cudaStream_t s = test_stream();
	cudaLaunchConfig_t config = {};
	config.gridDim = config.blockDim = dim3(1);
	config.stream = s;
	EXPECT(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
	EXPECT(cudaLaunchKernelEx(&config, fill, x, 2.0f, 4) == cudaSuccess);
	EXPECT(cudaStreamEndCapture(s, &graph) == cudaSuccess && cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
	download(got, x, 4);
	EXPECT(got[3] == 0); /* recorded, not run */
	EXPECT(cudaGraphLaunch(exec, s) == cudaSuccess);
	download(got, x, 4);
	EXPECT(got[3] == 2 && cudaGraphDestroy(graph) == cudaSuccess && cudaGraphExecDestroy(exec) == cudaSuccess);
	for (int i = 0; i < 4; i++) {
		void *data;
		EXPECT(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
		cudaError_t e = i == 0   ? cudaStreamSynchronize(s)
		                : i == 1 ? cudaMalloc(&data, 4)
		                : i == 2 ? cudaMemcpyAsync(x, host, 4, cudaMemcpyHostToDevice, s)
		                         : cudaFree(x);
		EXPECT(e == cudaErrorStreamCaptureUnsupported);
		EXPECT(cudaLaunchKernelEx(&config, fill, x, 2.0f, 4) == cudaErrorStreamCaptureInvalidated);
		EXPECT(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated && graph == nullptr);
	}
	EXPECT(cudaStreamEndCapture(s, &graph) == cudaErrorIllegalState);
}

static void lost()
{
	float *x = device<float>(4);
	void *more;
	cudaLaunchConfig_t config = {};
	config.gridDim = config.blockDim = dim3(1);
	config.stream = test_stream();
	EXPECT(cudaLaunchKernelEx(&config, fill, x, 2.0f, 4) == cudaSuccess);
	EXPECT(cudaLaunchKernelEx(&config, fill, x, 2.0f, 4) == cudaErrorIllegalAddress);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaErrorIllegalAddress && cudaMalloc(&more, 4) == cudaErrorIllegalAddress);
	EXPECT(cudaGetLastError() == cudaErrorIllegalAddress && cudaGetLastError() == cudaErrorIllegalAddress);
	EXPECT(strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") == 0);
	EXPECT(cudaDeviceReset() == cudaSuccess && cudaMalloc(&more, 4) == cudaSuccess);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaErrorInvalidResourceHandle); /* destroyed by the reset too */
}
static void stays_lost()
{
	void *more;
	float y = 0;
	cudaStream_t s;
	EXPECT(cudaDeviceReset() == cudaSuccess && cudaMalloc(&more, 4) == cudaSuccess); /* it was not lost */
	EXPECT(cudaStreamCreateWithPriority(&s, 0, 0) == cudaSuccess);
	setenv("ADDITIVE_EMULATOR_FAULT", "memcpy:1:cudaErrorLaunchFailure", 1);
	EXPECT(cudaMemcpyAsync(more, &y, 4, cudaMemcpyHostToDevice, s) == cudaErrorLaunchFailure);
	EXPECT(cudaDeviceReset() == cudaErrorDevicesUnavailable && cudaMalloc(&more, 4) == cudaErrorDevicesUnavailable);
}
/* One kernel is captured; the planted call fails, and no other. */
static void recording_fails()
{
	float *x = device<float>(4);
	cudaGraph_t graph = nullptr;
	cudaGraphExec_t exec;
	cudaLaunchConfig_t config = {};
	config.gridDim = config.blockDim = dim3(1);
	config.stream = test_stream();
	static const char *const parts[] = {"begin", "capture", "end", "instantiate", "replay"};
	for (int part = 0; part < 5; part++) {
		char fault[64];
		snprintf(fault, sizeof fault, "%s:1:cudaErrorInvalidValue", parts[part]);
		setenv("ADDITIVE_EMULATOR_FAULT", fault, 1);
		cudaError_t e = cudaStreamBeginCapture(test_stream(), cudaStreamCaptureModeThreadLocal);
		EXPECT(e == (part == 0 ? cudaErrorInvalidValue : cudaSuccess));
		if (part == 0)
			continue;
		EXPECT(cudaLaunchKernelEx(&config, fill, x, 2.0f, 4) == (part == 1 ? cudaErrorInvalidValue : cudaSuccess));
		EXPECT(cudaStreamEndCapture(test_stream(), &graph) == (part == 2 ? cudaErrorInvalidValue : cudaSuccess));
		EXPECT((graph == nullptr) == (part == 2));
		if (part == 2)
			continue;
		EXPECT(cudaGraphInstantiate(&exec, graph, 0) == (part == 3 ? cudaErrorInvalidValue : cudaSuccess));
		EXPECT((exec == nullptr) == (part == 3) && cudaGraphDestroy(graph) == cudaSuccess);
		if (part == 3)
			continue;
		EXPECT(cudaGraphLaunch(exec, test_stream()) == (part == 4 ? cudaErrorInvalidValue : cudaSuccess));
		EXPECT(cudaGraphLaunch(exec, test_stream()) == cudaSuccess && cudaGraphExecDestroy(exec) == cudaSuccess);
	}
	unsetenv("ADDITIVE_EMULATOR_FAULT");
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
}
static void lost_by_a_copy()
{
	float *x = device<float>(1), y = 0;
	EXPECT(cudaMemcpyAsync(x, &y, 4, cudaMemcpyHostToDevice, test_stream()) == cudaErrorIllegalAddress);
	EXPECT(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
}
static void refused_once()
{
	void *data;
	EXPECT(cudaMalloc(&data, 4) == cudaSuccess && cudaMalloc(&data, 4) == cudaErrorMemoryAllocation && data == nullptr);
	EXPECT(cudaMalloc(&data, 4) == cudaSuccess && cudaMalloc(&data, (size_t)9 << 30) == cudaErrorMemoryAllocation);
}
static void three_devices()
{
	cudaDeviceProp first, last;
	int count;
	EXPECT(cudaGetDeviceCount(&count) == cudaSuccess && count == 3);
	EXPECT(cudaSetDevice(2) == cudaSuccess && cudaSetDevice(3) == cudaErrorInvalidDevice && cudaSetDevice(-1) == cudaErrorInvalidDevice);
	EXPECT(cudaGetDeviceProperties(&first, 0) == cudaSuccess && cudaGetDeviceProperties(&last, 2) == cudaSuccess);
	EXPECT(memcmp(&first.uuid, &last.uuid, sizeof first.uuid) != 0);
}

/* Make a stream and a byte of memory on a device, which becomes the thread's. */
static cudaStream_t open_device(int device, char **data)
{
	cudaStream_t stream;
	EXPECT(cudaSetDevice(device) == cudaSuccess);
	EXPECT(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess);
	EXPECT(cudaMalloc((void **)data, 1) == cudaSuccess);
	return stream;
}
static void one_of_two_lost()
{
	char *data[2];
	cudaStream_t streams[2] = {open_device(0, &data[0]), open_device(1, &data[1])};
	EXPECT(cudaMemsetAsync(data[1], 1, 1, streams[0]) == cudaErrorInvalidResourceHandle);
	setenv("ADDITIVE_EMULATOR_FAULT_DEVICE", "1", 1);
	setenv("ADDITIVE_EMULATOR_FAULT", "memcpy:2", 1);
	for (int i = 0; i < 3; i++) { /* calls for the first device are not counted */
		char byte;
		EXPECT(cudaSetDevice(0) == cudaSuccess && cudaMemsetAsync(data[0], 7 + i, 1, streams[0]) == cudaSuccess);
		EXPECT(cudaMemcpyAsync(&byte, data[0], 1, cudaMemcpyDeviceToHost, streams[0]) == cudaSuccess);
		EXPECT(cudaStreamSynchronize(streams[0]) == cudaSuccess && byte == 7 + i);
		(void)cudaSetDevice(1);
		EXPECT((cudaMemcpyAsync(&byte, data[1], 1, cudaMemcpyDeviceToHost, streams[1]) == cudaSuccess) == (i == 0));
	}
	EXPECT(cudaDeviceReset() == cudaSuccess); /* resets the second */
	streams[1] = open_device(1, &data[1]);
	EXPECT(cudaSetDevice(0) == cudaSuccess && cudaFree(data[0]) == cudaSuccess);
}
static void others_memory()
{
	char *data[2], byte = 0;
	open_device(0, &data[0]);
	cudaStream_t stream = open_device(1, &data[1]);
	(void)cudaMemcpyAsync(data[0], &byte, 1, cudaMemcpyHostToDevice, stream);
}
static void no_device()
{
	int count = 7;
	cudaDeviceProp prop;
	EXPECT(cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0);
	EXPECT(cudaSetDevice(0) == cudaErrorNoDevice && cudaGetDeviceProperties(&prop, 0) == cudaErrorNoDevice);
}

/* Reserved addresses get memory piece by piece, and keep their bytes. */
static void grows()
{
	const size_t piece = 2 << 20;
	CUmemAllocationProp prop = {};
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr at;
	CUmemGenericAllocationHandle handle[2];
	size_t granularity = 0;
	decltype(&cuMemCreate) create;
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location = access.location;
	EXPECT(cudaGetDriverEntryPointByVersion("cuMemCreate", (void **)&create, 12000, 0) == cudaSuccess && create);
	EXPECT(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS && granularity == piece);
	EXPECT(cuMemAddressReserve(&at, 8 * piece, 0, 0, 0) == CUDA_SUCCESS);
	for (int i = 0; i < 2; i++) {
		EXPECT(create(&handle[i], piece, &prop, 0) == CUDA_SUCCESS);
		EXPECT(cuMemMap(at + i * piece, piece, 0, handle[i], 0) == CUDA_SUCCESS);
		EXPECT(cuMemMap(at + i * piece, piece, 0, handle[i], 0) == CUDA_ERROR_ALREADY_MAPPED);
		EXPECT(cuMemSetAccess(at + i * piece, piece, &access, 1) == CUDA_SUCCESS && cuMemRelease(handle[i]) == CUDA_SUCCESS);
		run(fill, 1, 32, 0, (float *)(at + i * piece), 6.0f, 100);
	}
	float got;
	download(&got, (float *)at + 99, 1);
	EXPECT(got == 6 && cuMemAddressFree(at, 8 * piece) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemUnmap(at, 2 * piece) == CUDA_SUCCESS && cuMemAddressFree(at, 8 * piece) == CUDA_SUCCESS);
}
static void unmapped()
{
	CUdeviceptr at;
	EXPECT(cuMemAddressReserve(&at, 2 << 20, 0, 0, 0) == CUDA_SUCCESS);
	run(fill, 1, 32, 0, (float *)at, 6.0f, 100);
}

/* d [n, m] = 2 x [n, k] w [m, k]ᵀ + bias + 3 c, all in row order, which cuBLAS reads as the transposed in column
 * order. */
static void products()
{
	enum { M = 21, N = 18, K = 35 };
	float w[M * K], x[N * K], bias[M], c[N * M], got[N * M], alpha = 2, beta = 3;
	for (int i = 0; i < M * K; i++)
		w[i] = (float)(i * 7 % 11 - 5);
	for (int i = 0; i < N * K; i++)
		x[i] = (float)(i * 5 % 13 - 6);
	for (int i = 0; i < M; i++)
		bias[i] = (float)i;
	for (int i = 0; i < N * M; i++)
		c[i] = (float)(i % 3);
	float *dw = device<float>(M * K), *dx = device<float>(N * K), *db = device<float>(M), *dc = device<float>(N * M);
	upload(dw, w, M * K);
	upload(dx, x, N * K);
	upload(db, bias, M);
	cublasLtHandle_t handle;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t lw, lx, ld;
	cublasOperation_t transpose = CUBLAS_OP_T;
	cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
	EXPECT(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &db, sizeof db) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatrixLayoutCreate(&lw, CUDA_R_32F, K, M, K) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatrixLayoutCreate(&lx, CUDA_R_32F, K, N, K) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatrixLayoutCreate(&ld, CUDA_R_32F, M, N, M) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatmul(handle, desc, &alpha, dx, lx, dw, lw, &beta, dc, ld, dc, ld, nullptr, nullptr, 0, test_stream()) ==
	       CUBLAS_STATUS_INVALID_VALUE);
	for (float b : {3.0f, 0.0f}) {
		beta = b;
		if (b != 0)
			upload(dc, c, N * M);
		else /* C is not read */
			EXPECT(cudaMemsetAsync(dc, 0xff, sizeof c, test_stream()) == cudaSuccess);
		EXPECT(cublasLtMatmul(handle, desc, &alpha, dw, lw, dx, lx, &beta, dc, ld, dc, ld, nullptr, nullptr, 0, test_stream()) ==
		       CUBLAS_STATUS_SUCCESS);
		download(got, dc, N * M);
		for (int i = 0; i < N; i++)
			for (int j = 0; j < M; j++) {
				float want = bias[j] + b * c[i * M + j];
				for (int k = 0; k < K; k++)
					want += 2 * x[i * K + k] * w[j * K + k];
				EXPECT(got[i * M + j] == want);
			}
	}
}

/* d += a b after the kernel that writes a. An early launch may not read d before it has waited. */
__global__ void reads_ahead(const float *d, bool correct)
{
	if (correct)
		wait_for_previous();
	float x = d[threadIdx.x];
	wait_for_previous();
	if (x == 12345)
		__syncwarp();
}
static void after_a_product(bool correct)
{
	float *a = device<float>(64), *d = device<float>(64), alpha = 1, beta = 0;
	cublasLtHandle_t handle;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t layout;
	EXPECT(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 8, 8, 8) == CUBLAS_STATUS_SUCCESS);
	EXPECT(cublasLtMatmul(handle, desc, &alpha, a, layout, a, layout, &beta, d, layout, d, layout, nullptr, nullptr, 0, test_stream()) ==
	       CUBLAS_STATUS_SUCCESS);
	issue(true, reads_ahead, 1, 64, 0, d, correct);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
}

/* --- counts ------------------------------------------------------------------------------------------ */

/* Thread t of one warp: read in[step t] and in[0], write out[t] twice; one float4 and two neighbours of 2 bytes. */
__global__ void moves(float *out, const float *in, int step)
{
	int t = threadIdx.x;
	float x = in[step * t];
	out[t] = x;
	float y = in[step * 0];
	__syncwarp();
	out[t] = x + y;
}
__global__ void moves_vectors(float4 *out, const float4 *in, uint16_t *half)
{
	int t = threadIdx.x;
	out[t] = in[t];
	half[2 * t] = half[2 * t + 1] = 1;
}
static void expect_work(const emulator_work &w, const char *name, emulator_kind kind, uint64_t read, uint64_t read_once, uint64_t written,
                        uint64_t written_once, uint64_t moved, uint64_t used)
{
	EXPECT(strcmp(w.name, name) == 0 && w.kind == kind && !w.early && w.flop == 0);
	EXPECT(w.read == read && w.read_once == read_once && w.written == written && w.written_once == written_once);
	EXPECT(w.moved == moved && w.used == used);
}
static void counts()
{
	float *in = device<float>(1024), *out = device<float>(1024), host[4];
	uint16_t *half = device<uint16_t>(64);
	size_t n;
	issue(false, fill, 1, 32, 0, out, 1.0f, 8); /* before counting starts */
	emulator_count_begin();
	for (int step : {1, 8})
		issue(false, moves, 1, 32, 0, out, in, step);
	issue(false, moves_vectors, 1, 32, 0, (float4 *)out, (const float4 *)in, half);
	EXPECT(cudaMemcpyAsync(host, out, sizeof host, cudaMemcpyDeviceToHost, test_stream()) == cudaSuccess);
	const emulator_work *w = emulator_count_end(&n);
	EXPECT(n == 4 && w[0].grid[0] == 1 && w[0].threads == 32);
	/* sectors: 4 or 32 of in, 1 of in[0], twice 4 of out */
	expect_work(w[0], "moves", EMULATOR_KERNEL, 256, 128, 256, 128, 32 * (4 + 1 + 8), 128 + 4 + 256);
	expect_work(w[1], "moves", EMULATOR_KERNEL, 256, 128, 256, 128, 32 * (32 + 1 + 8), 128 + 4 + 256);
	expect_work(w[2], "moves_vectors", EMULATOR_KERNEL, 512, 512, 640, 640, 1152, 1152);
	expect_work(w[3], "copy to the host", EMULATOR_COPY, 16, 16, 0, 0, 0, 0);
	issue(true, reads_ahead, 1, 64, 0, in, true); /* after counting has ended */
	after_a_product(true);
	emulator_count_begin();
	after_a_product(true);
	w = emulator_count_end(&n);
	EXPECT(n == 4 && w[2].kind == EMULATOR_PRODUCT && w[2].flop == 2 * 8 * 8 * 8 && w[2].read == 512 && w[2].written == 256);
	EXPECT(w[3].early && w[3].read == 256);
}

/* --- the pool ---------------------------------------------------------------------------------------- */

static size_t left()
{
	size_t left = 0, all = 0;
	EXPECT(cudaMemGetInfo(&left, &all) == cudaSuccess && all == (size_t)64 << 20);
	return left;
}
/* MiB left on the device after 16 were taken from the pool, released, and waited for. */
static size_t left_after(uint64_t threshold)
{
	cudaMemPool_t pool;
	void *data;
	EXPECT(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess);
	EXPECT(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess);
	EXPECT(cudaMallocAsync(&data, 16 << 20, test_stream()) == cudaSuccess && left() == (size_t)48 << 20);
	EXPECT(cudaFreeAsync(data, test_stream()) == cudaSuccess);
	EXPECT(cudaStreamSynchronize(test_stream()) == cudaSuccess);
	return left() >> 20;
}
static void pool()
{
	void *data;
	cudaMemPool_t pool;
	EXPECT(left_after(0) == 64 && left_after(8 << 20) == 56 && left_after(UINT64_MAX) == 48);
	EXPECT(left_after(UINT64_MAX) == 48); /* reuses the same 16 MiB */
	EXPECT(cudaMalloc(&data, 56 << 20) == cudaErrorMemoryAllocation);
	EXPECT(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess && cudaMemPoolTrimTo(pool, 4 << 20) == cudaSuccess);
	EXPECT(left() >> 20 == 60 && cudaMalloc(&data, 56 << 20) == cudaSuccess);
}

static void freed_twice()
{
	float *x = device<float>(4);
	EXPECT(cudaFree(x) == cudaSuccess);
	(void)cudaFree(x);
}
static void beyond()
{
	float x[5] = {};
	upload(device<float>(4), x, 5);
}

const test_case runtime_cases[] = {
    {"launches_beyond_the_limits_are_refused", limits, nullptr, nullptr},
    {"a_cooperative_launch_is_resident_as_a_whole", resident, nullptr, nullptr},
    {"a_cooperative_launch_has_a_block_for_each_processor", many_resident, nullptr, "ADDITIVE_EMULATOR_PROCESSORS=132"},
    {"a_pinned_buffer_reused_too_early_shows", sources, nullptr, nullptr},
    {"events_order_streams", events, nullptr, nullptr},
    {"what_a_capture_forbids_ends_it", captures, nullptr, nullptr},
    {"a_failed_launch_loses_the_device", lost, nullptr, "ADDITIVE_EMULATOR_FAULT=launch:2"},
    {"a_failed_copy_loses_the_device", lost_by_a_copy, nullptr, "ADDITIVE_EMULATOR_FAULT=memcpy:1"},
    {"each_part_of_a_recording_can_fail", recording_fails, nullptr, nullptr},
    {"a_reset_that_does_not_help", stays_lost, nullptr, "ADDITIVE_EMULATOR_RESET=0"},
    {"memory_is_refused_once", refused_once, nullptr, "ADDITIVE_EMULATOR_FAULT=malloc:2"},
    {"there_may_be_no_device", no_device, nullptr, "ADDITIVE_EMULATOR_DEVICES=0"},
    {"there_may_be_several_devices", three_devices, nullptr, "ADDITIVE_EMULATOR_DEVICES=3"},
    {"the_loss_of_a_device_spares_the_other", one_of_two_lost, nullptr, "ADDITIVE_EMULATOR_DEVICES=2"},
    {"memory_of_another_device_is_not_copied", others_memory, "cudaMemcpyAsync, destination: 1 bytes", "ADDITIVE_EMULATOR_DEVICES=2"},
    {"reserved_memory_grows", grows, nullptr, nullptr},
    {"reserved_addresses_are_no_memory", unmapped, "host memory: write of 4 bytes", nullptr},
    {"matrix_products_are_cublas's", products, nullptr, nullptr},
    {"an_early_launch_reads_what_a_product_before_writes", []() { after_a_product(false); }, "and the write by the matrix product before", nullptr},
    {"an_early_launch_waits_for_a_product", []() { after_a_product(true); }, nullptr, nullptr},
    {"bytes_and_sectors_are_counted", counts, nullptr, nullptr},
    {"a_pool_keeps_what_it_is_told_to", pool, nullptr, "ADDITIVE_EMULATOR_MEMORY=64"},
    {"memory_is_freed_once", freed_twice, "was freed before", nullptr},
    {"memory_that_was_not_given_is_not_freed", []() { (void)cudaFree((char *)device<char>(9) + 1); }, "was not given by cudaMalloc", nullptr},
    {"a_copy_of_more_than_there_is", beyond, "cudaMemcpyAsync, destination: 20 bytes at an allocation of 16 bytes", nullptr},
    {"what_is_never_freed_is_told_when_asked", []() { device<float>(4); }, "1 allocations of 16 bytes were never freed",
     "ADDITIVE_EMULATOR_LEAKS=1"},
    {},
};
