/* A stream on part of a device's processors, by a green context of the driver (CUDA 12.5). Kernels of all other streams
 * have the rest for themselves, besides their share of this part. A kernel that is recorded keeps the part. */
#include "cuda/driver.h"

extern "C" {
#include "engine/base/log.h"
}

enum { VERSION = 12050 };

struct cuda_partition {
	CUgreenCtx context;
	decltype(&cuGreenCtxDestroy) destroy;
};

typedef struct green_functions {
	decltype(&cuDeviceGet) device;
	decltype(&cuDeviceGetDevResource) resource;
	decltype(&cuDevSmResourceSplitByCount) split;
	decltype(&cuDevResourceGenerateDesc) describe;
	decltype(&cuGreenCtxCreate) create;
	decltype(&cuGreenCtxStreamCreate) stream;
	decltype(&cuGreenCtxDestroy) destroy;
} green_functions;

static bool find_all(green_functions *f)
{
	return cuda_find_function("cuDeviceGet", VERSION, &f->device) &&
	       cuda_find_function("cuDeviceGetDevResource", VERSION, &f->resource) &&
	       cuda_find_function("cuDevSmResourceSplitByCount", VERSION, &f->split) &&
	       cuda_find_function("cuDevResourceGenerateDesc", VERSION, &f->describe) &&
	       cuda_find_function("cuGreenCtxCreate", VERSION, &f->create) &&
	       cuda_find_function("cuGreenCtxStreamCreate", VERSION, &f->stream) &&
	       cuda_find_function("cuGreenCtxDestroy", VERSION, &f->destroy);
}

/* Divide the processors. *most: all but `kept` or more, in whole groups of the device. The rest of a division may not
 * run clusters, so it is not what is used. */
static CUresult leave_some(const green_functions *f, CUdevice device, unsigned kept, CUdevResource *most)
{
	CUdevResource all = {}, rest = {};
	unsigned groups = 1;
	CUresult r = f->resource(device, &all, CU_DEV_RESOURCE_TYPE_SM);
	if (r != CUDA_SUCCESS)
		return r;
	const unsigned group = all.sm.smCoscheduledAlignment ? all.sm.smCoscheduledAlignment : 1;
	const unsigned least = all.sm.smCount > kept ? (all.sm.smCount - kept) / group * group : 0;
	if (least == 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	r = f->split(most, &groups, &all, &rest, 0, least);
	return r == CUDA_SUCCESS && (groups != 1 || all.sm.smCount - most->sm.smCount < kept) ? CUDA_ERROR_NOT_SUPPORTED : r;
}

static CUresult open_stream(cuda_backend *c, const green_functions *f, int kept, int priority)
{
	CUdevice device;
	CUdevResource most = {};
	CUdevResourceDesc description;
	CUresult r = f->device(&device, c->device);
	if (r == CUDA_SUCCESS)
		r = leave_some(f, device, (unsigned)kept, &most);
	if (r == CUDA_SUCCESS)
		r = f->describe(&description, &most, 1);
	if (r == CUDA_SUCCESS)
		r = f->create(&c->partition->context, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
	if (r == CUDA_SUCCESS)
		r = f->stream((CUstream *)&c->stream, c->partition->context, CU_STREAM_NON_BLOCKING, priority);
	if (r == CUDA_SUCCESS)
		c->processors = (int)most.sm.smCount;
	return r;
}

status cuda_partition_open(cuda_backend *c, int kept, int priority)
{
	green_functions f;
	c->partition = (cuda_partition *)calloc(1, sizeof *c->partition);
	if (!c->partition)
		return STATUS_NOMEM;
	CUresult r = CUDA_ERROR_NOT_SUPPORTED;
	if (find_all(&f)) {
		c->partition->destroy = f.destroy;
		r = open_stream(c, &f, kept, priority);
	}
	if (r == CUDA_SUCCESS)
		return STATUS_OK;
	log_line(LOG_WARN, "CUDA device %d cannot keep %d processors free of training: error %d of the driver", c->device,
	         kept, (int)r);
	cuda_partition_close(c);
	return STATUS_OK;
}

void cuda_partition_close(cuda_backend *c)
{
	if (c->partition && c->partition->context)
		(void)c->partition->destroy(c->partition->context);
	free(c->partition);
	c->partition = NULL;
}
