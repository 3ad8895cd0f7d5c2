/* Green contexts: parts of the processors, in groups of GROUP, and streams on them. Work is not really confined to a
 * part; the sizes and the order of calls are checked. */
#include <cuda.h>
#include <cuda_runtime.h>

#include "emulator.h"

struct CUdevResourceDesc_st {
	unsigned processors;
};
struct CUgreenCtx_st {
	unsigned processors;
	int device;
};

namespace {

enum : unsigned { GROUP = 2 };

CUdevResource part(unsigned processors)
{
	return {CU_DEV_RESOURCE_TYPE_SM, {processors, GROUP, GROUP}};
}

} // namespace

extern "C" {

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
	int count = 0;
	if (!out || cudaGetDeviceCount(&count) != cudaSuccess || ordinal < 0 || ordinal >= count)
		return CUDA_ERROR_INVALID_DEVICE;
	*out = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *out, CUdevResourceType type)
{
	if (!out || type != CU_DEV_RESOURCE_TYPE_SM || device != emulator::current_device())
		return CUDA_ERROR_INVALID_VALUE;
	*out = part(emulator::processors());
	return CUDA_SUCCESS;
}

/* The parts have at least `least` processors, in whole groups; as many parts as fit, at most *groups. */
CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups, const CUdevResource *input, CUdevResource *remaining,
                                     unsigned flags, unsigned least)
{
	if (!result || !groups || !input || input->type != CU_DEV_RESOURCE_TYPE_SM || flags || least > input->sm.smCount)
		return CUDA_ERROR_INVALID_VALUE;
	const unsigned each = least > 0 ? (least + GROUP - 1) / GROUP * GROUP : (unsigned)GROUP;
	const unsigned fit = input->sm.smCount / each, made = *groups < fit ? *groups : fit;
	for (unsigned i = 0; i < made; i++)
		result[i] = part(each);
	if (remaining)
		*remaining = part(input->sm.smCount - made * each);
	*groups = made;
	return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned count)
{
	if (!out || !resources || count != 1 || resources[0].sm.smCount == 0)
		return CUDA_ERROR_INVALID_VALUE;
	static CUdevResourceDesc_st descriptions[64]; /* the driver has no call that frees one */
	static unsigned made;
	*out = &descriptions[made++ % 64];
	(*out)->processors = resources[0].sm.smCount;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc description, CUdevice device, unsigned flags)
{
	if (!out || !description || flags != CU_GREEN_CTX_DEFAULT_STREAM || device != emulator::current_device())
		return CUDA_ERROR_INVALID_VALUE;
	*out = new CUgreenCtx_st{description->processors, device};
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx context, unsigned flags, int priority)
{
	if (!out || !context || flags != CU_STREAM_NON_BLOCKING || context->device != emulator::current_device())
		return CUDA_ERROR_INVALID_VALUE;
	return (CUresult)cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, priority);
}

CUresult cuGreenCtxDestroy(CUgreenCtx context)
{
	delete context;
	return CUDA_SUCCESS;
}

} /* extern "C" */
