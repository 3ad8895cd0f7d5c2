/* Opening a device: its stream, name and table of kernels; recordings; and failures of the device.
 *
 * A CUDA call that fails for good (an illegal address, a lost bus) makes the process's context on the device useless
 * for every stream. So being lost is a property of the device. Its backends share the mark, and all of them return
 * STATUS_DEVICE at once. When the last one is closed, the context is destroyed, so that the next open begins with a new
 * one. Whether that helps depends on the fault and the device, so an open runs a computation (check.cu) before it
 * succeeds. If that fails, its error says that the process has to be restarted. On an H100 a reset did not help after
 * an illegal access: every call returned cudaErrorDevicesUnavailable.
 *
 * Other errors concern one call: a launch with too many resources or an invalid value, a graph that cannot be launched.
 * CUDA does not say so of every error, so after any that is not final the backend runs the same computation. If that
 * succeeds, nothing is lost: the call returns STATUS_DEVICE, `lost` returns false, and later calls work. Errors that a
 * recording can avoid have a status of their own (cuda_status).
 *
 * Recordings are CUDA graphs captured from the stream, in the mode that does not affect other threads. A call
 * that cannot be recorded is not a fault of the device. Any error except a final one ends only the recording, after a
 * check that the device still computes. A recording that failed is made again without programs and early launches; after
 * that its kernels are launched one by one. All of these give the same bits. */
#include "cuda/backend.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels.h"

extern "C" {
#include "engine/base/log.h"
}

/* --- devices -------------------------------------------------------------------------- */

/* Bits of wgmma compared with those of mma.sync; known after the first open. */
enum wgmma_bits { BITS_UNKNOWN, BITS_EQUAL, BITS_DIFFER };

/* State of a device. A device's context belongs to the process, so this does too. */
typedef struct device_record {
	int users; /* open backends */
	bool lost;
	bool was_reset;   /* a context was destroyed */
	wgmma_bits wgmma;
	bool clusters;    /* kernels with clusters were compared too */
	char reason[160]; /* cause of the last loss */
} device_record;

enum { MAX_DEVICES = 64, LEAST_MAJOR = 8, PROMPT_TOKENS = 2048 };
static device_record devices[MAX_DEVICES];
static pthread_mutex_t devices_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards all fields but `lost` */

static status device_take(cuda_backend *c, error *err)
{
	device_record *d = &devices[c->device];
	status s = STATUS_OK;
	pthread_mutex_lock(&devices_mutex);
	c->lost = &d->lost;
	if (cuda_lost(c))
		s = error_set(err, STATUS_DEVICE, NULL, "CUDA device %d is lost, and still in use", c->device);
	else
		d->users++;
	pthread_mutex_unlock(&devices_mutex);
	return s;
}

static void device_leave(cuda_backend *c)
{
	device_record *d = &devices[c->device];
	pthread_mutex_lock(&devices_mutex);
	if (--d->users == 0 && cuda_lost(c)) {
		(void)cudaSetDevice(c->device);
		(void)cudaDeviceReset();
		(void)cudaGetLastError();
		d->was_reset = true;
		__atomic_store_n(&d->lost, false, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&devices_mutex);
}

/* --- errors --------------------------------------------------------------------------- */

void cuda_lose(cuda_backend *c, const char *what, const char *reason)
{
	device_record *d = &devices[c->device];
	if (__atomic_exchange_n(c->lost, true, __ATOMIC_ACQ_REL))
		return;
	log_line(LOG_ERROR, "CUDA device %d is lost: %s: %s", c->device, what, reason);
	pthread_mutex_lock(&devices_mutex);
	snprintf(d->reason, sizeof d->reason, "%s: %s", what, reason);
	pthread_mutex_unlock(&devices_mutex);
}

/* Errors that "leave the process in an inconsistent state" (CUDA's reference), and failures of memory or links. After
 * one, every later call on any stream fails too. */
static bool is_final(cudaError_t e)
{
	static const cudaError_t errors[] = {cudaErrorECCUncorrectable,
	                                     cudaErrorNvlinkUncorrectable,
	                                     cudaErrorContained,
	                                     cudaErrorIllegalAddress,
	                                     cudaErrorLaunchTimeout,
	                                     cudaErrorContextIsDestroyed,
	                                     cudaErrorAssert,
	                                     cudaErrorHardwareStackError,
	                                     cudaErrorIllegalInstruction,
	                                     cudaErrorMisalignedAddress,
	                                     cudaErrorInvalidAddressSpace,
	                                     cudaErrorInvalidPc,
	                                     cudaErrorLaunchFailure,
	                                     cudaErrorExternalDevice,
	                                     cudaErrorDevicesUnavailable};
	bool found = false;
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		found |= e == errors[i];
	return found;
}

/* Errors of calls that a stream under capture refuses. The recording is void, but the device is not lost. */
static bool is_capture_error(cudaError_t e)
{
	return (int)e >= (int)cudaErrorStreamCaptureUnsupported && (int)e <= (int)cudaErrorStreamCaptureUnsupported + 8;
}

status cuda_status(cuda_backend *c, cudaError_t e)
{
	if (cuda_lost(c))
		return STATUS_DEVICE;
	if (e == cudaSuccess)
		return STATUS_OK;
	(void)cudaGetLastError(); /* clear it, or a later call would report it again */
	if (c->recording && c->refusal == cudaSuccess)
		c->refusal = e;
	if (e == cudaErrorMemoryAllocation)
		return STATUS_NOMEM;
	if (is_capture_error(e) || (c->recording && !is_final(e)))
		return STATUS_UNSUPPORTED;
	if (!is_final(e))
		return cuda_refuse(c, cudaGetErrorName(e), cudaGetErrorString(e));
	cuda_lose(c, cudaGetErrorName(e), cudaGetErrorString(e));
	return STATUS_DEVICE;
}

status cuda_refuse(cuda_backend *c, const char *name, const char *reason)
{
	if (!c->checks) {
		cuda_lose(c, name, reason);
		return STATUS_DEVICE;
	}
	TRY(cuda_check(c));
	log_line(LOG_ERROR, "CUDA device %d refuses a call: %s: %s", c->device, name, reason);
	return STATUS_DEVICE;
}

status cuda_launched(cuda_backend *c, cudaError_t e, const void *kernel)
{
	if (e == cudaSuccess && c->each_waits)
		e = cudaStreamSynchronize(c->stream);
	if (e != cudaSuccess && c->each_waits) {
		const char *name = "a product";
		if (kernel)
			(void)cudaFuncGetName(&name, kernel);
		log_line(LOG_ERROR, "CUDA device %d: %s: %s", c->device, name, cudaGetErrorString(e));
	}
	return cuda_status(c, e);
}

status cuda_enter(cuda_backend *c)
{
	return cuda_lost(c) ? STATUS_DEVICE : cuda_status(c, cudaSetDevice(c->device));
}

/* --- the stream ----------------------------------------------------------------------- */

static status cuda_synchronize(backend *b)
{
	cuda_backend *c = cuda_of(b);
	TRY(cuda_enter(c));
	return cuda_status(c, cudaStreamSynchronize(c->stream));
}

static bool cuda_busy(backend *b)
{
	cuda_backend *c = cuda_of(b);
	if (cuda_enter(c) != STATUS_OK)
		return false;
	cudaError_t e = cudaStreamQuery(c->stream);
	if (e == cudaErrorNotReady)
		return true;
	(void)cuda_status(c, e);
	return false;
}

static bool cuda_is_lost(const backend *b)
{
	return cuda_lost(cuda_of(b));
}

/* --- recordings ----------------------------------------------------------------------- */

typedef struct recording {
	cudaGraphExec_t exec;
	bool early;   /* its kernels may begin early */
	bool program; /* some of its kernels are a program */
} recording;

/* Handle a failure of a recording. STATUS_BUSY: retry without programs and early launches; programs are off from then
 * on. STATUS_DEVICE: the device does not compute either, and is lost. */
static status refuse_recording(cuda_backend *c, const recording *r, const char *what)
{
	const char *name = cudaGetErrorName(c->refusal);
	TRY(cuda_check(c));
	bool *logged = r->program ? &c->single_logged : r->early ? &c->plain_logged : &c->direct_logged;
	if (!*logged)
		log_line(LOG_WARN, "CUDA device %d: %s: %s fails with %s. More of these are not logged", c->device,
		         r->program ? "plans are recorded kernel by kernel"
		         : r->early ? "a plan is recorded without early launches"
		                    : "a plan runs kernel by kernel",
		         what, name);
	*logged = true;
	c->persistent = r->program ? 0 : c->persistent;
	c->record_plainly = r->early || r->program;
	return r->program || r->early ? STATUS_BUSY : STATUS_UNSUPPORTED;
}

static status cuda_record_begin(backend *b)
{
	cuda_backend *c = cuda_of(b);
	TRY(cuda_enter(c));
	if (!c->recorded)
		return STATUS_UNSUPPORTED;
	c->recording = true;
	c->refusal = cudaSuccess;
	status s = cuda_status(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal));
	c->recording = s == STATUS_OK;
	c->recorded_early = c->early && !c->record_plainly && c->recording;
	c->record_plainly = false;
	c->recorded_program = false;
	c->after_kernel = false;
	if (s != STATUS_OK && s != STATUS_DEVICE) {
		const recording none = {};
		return refuse_recording(c, &none, "beginning to record");
	}
	c->early_without_recording = c->early;
	c->early = c->recorded_early;
	return s;
}

/* Instantiate the graph of the work issued since record_begin. */
static status instantiate(cuda_backend *c, cudaGraphExec_t *out)
{
	cudaGraph_t graph = NULL;
	status s = cuda_status(c, cudaStreamEndCapture(c->stream, &graph));
	if (s == STATUS_OK && c->refusal == cudaSuccess)
		s = cuda_status(c, cudaGraphInstantiate(out, graph, 0));
	if (graph)
		(void)cudaGraphDestroy(graph);
	return s;
}

static status cuda_record_end(backend *b, void **out)
{
	cuda_backend *c = cuda_of(b);
	recording made = {NULL, c->recorded_early, false};
	*out = NULL;
	status s = cuda_enter(c);
	if (s == STATUS_OK) {
		(void)cuda_program_end(c); /* a failure is in c->refusal */
		s = instantiate(c, &made.exec);
	}
	made.program = c->recorded_program;
	c->recording = c->after_kernel = false;
	c->early = c->early_without_recording;
	if (s != STATUS_DEVICE && c->refusal != cudaSuccess)
		return refuse_recording(c, &made, "recording");
	TRY(s);
	recording *r = (recording *)malloc(sizeof *r);
	if (r)
		*r = made;
	else
		(void)cudaGraphExecDestroy(made.exec);
	*out = r;
	return r ? STATUS_OK : STATUS_NOMEM;
}

/* Replay a recording. A launch that fails has issued nothing. */
static status cuda_replay(backend *b, void *recorded)
{
	cuda_backend *c = cuda_of(b);
	const recording *r = (const recording *)recorded;
	TRY(cuda_enter(c));
	TRY(cuda_exchange_use(c));
	c->after_kernel = false;
	c->recording = true; /* so that errors count as those of a recording */
	c->refusal = cudaSuccess;
	status s = cuda_status(c, cudaGraphLaunch(r->exec, c->stream));
	c->recording = false;
	if (s == STATUS_OK || s == STATUS_DEVICE)
		return s;
	return refuse_recording(c, r, "replaying");
}

/* Free a recording; if it is running, after it has ended. On a lost device too, since part of it is in host memory. */
static void cuda_forget(backend *b, void *recorded)
{
	recording *r = (recording *)recorded;
	(void)cuda_enter(cuda_of(b));
	if (r)
		(void)cudaGraphExecDestroy(r->exec);
	free(r);
}

/* --- opening and closing ---------------------------------------------------------------- */

/* Close a backend. On a lost device as far as possible; the rest ends with its context. */
static void cuda_close(backend *b)
{
	cuda_backend *c = cuda_of(b);
	c->checks = false;
	b->collective_close(b, true);
	if (cuda_enter(c) == STATUS_OK && c->stream)
		(void)cuda_status(c, cudaStreamSynchronize(c->stream));
	cuda_products_close(c);
	cuda_program_close(c);
	cuda_memory_close(c);
	if (c->stream)
		(void)cudaStreamDestroy(c->stream);
	cuda_partition_close(c);
	device_leave(c);
	free(c);
}

static status no_driver(error *err)
{
	int driver = 0;
	if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "there is no NVIDIA driver");
	return error_set(err, STATUS_UNAVAILABLE, NULL, "the NVIDIA driver serves CUDA %d.%d, this program needs %d.%d",
	                 driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

static status find_device(int *out, bool wrap, cudaDeviceProp *prop, error *err)
{
	int count = 0;
	cudaError_t e = cudaGetDeviceCount(&count);
	(void)cudaGetLastError();
	if (e == cudaErrorInsufficientDriver)
		return no_driver(err);
	if (e == cudaErrorNoDevice || (e == cudaSuccess && count == 0))
		return error_set(err, STATUS_UNAVAILABLE, NULL, "there is no CUDA device");
	if (e != cudaSuccess)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "CUDA cannot be started: %s", cudaGetErrorString(e));
	const int device = *out = wrap ? *out % count : *out;
	if (device < 0 || device >= count || device >= MAX_DEVICES)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "there is no CUDA device %d, there %s %d", device,
		                 count == 1 ? "is" : "are", count);
	e = cudaGetDeviceProperties(prop, device);
	if (e != cudaSuccess)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "CUDA device %d cannot be used: %s", device,
		                 cudaGetErrorString(e));
	if (prop->major < LEAST_MAJOR)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "%.95s has compute capability %d.%d, %d.0 is the least",
		                 prop->name, prop->major, prop->minor, LEAST_MAJOR);
	return STATUS_OK;
}

static void fill_table(cuda_backend *c, const cudaDeviceProp *prop)
{
	backend *b = &c->base;
	b->name = "cuda";
	snprintf(b->device, sizeof b->device, "%.60s, %zu GiB, sm_%d%d", prop->name, prop->totalGlobalMem >> 30,
	         prop->major, prop->minor);
	b->bf16 = true;
	b->prompt_tokens = PROMPT_TOKENS;
#define OP(name, ...)                                                                                                  \
	b->kernel[OP_##name] = cuda_##name;                                                                            \
	b->scratch[OP_##name] = cuda_##name##_scratch;
#include "engine/tensor/ops.def"
#undef OP
	b->synchronize = cuda_synchronize;
	b->busy = cuda_busy;
	b->lost = cuda_is_lost;
	b->record_begin = cuda_record_begin;
	b->record_end = cuda_record_end;
	b->replay = cuda_replay;
	b->forget = cuda_forget;
	b->fuse = cuda_fuse;
	cuda_collective_fill(b);
	b->close = cuda_close;
}

/* Value of a switch in the environment: 0 or 1. */
static bool is_on(const char *name, bool fallback)
{
	const char *value = getenv(name);
	return value && *value ? *value != '0' : fallback;
}

/* Without the switch: not before a GPU has run it. */
#ifdef __CUDACC__
enum { USES_WGMMA = false };
#else
enum { USES_WGMMA = true };
#endif

/* Use wgmma if its bits are those of mma.sync. A process compares them once. A comparison that fails for
 * another reason counts as a difference for this backend, unless the device is lost. */
static status choose_wgmma(cuda_backend *c)
{
	device_record *d = &devices[c->device];
	c->clusters = c->clusters && cuda_wgmma_fits_clusters(c);
	pthread_mutex_lock(&devices_mutex);
	wgmma_bits bits = d->wgmma;
	c->clusters = c->clusters && (bits == BITS_UNKNOWN || d->clusters);
	pthread_mutex_unlock(&devices_mutex);
	if (bits == BITS_UNKNOWN) {
		bool same;
		const status s = cuda_wgmma_check(c, &same);
		if (cuda_lost(c)) {
			log_line(LOG_ERROR,
			         "CUDA device %d was lost while wgmma was compared with mma.sync; ADDITIVE_CUDA_WGMMA=0 "
			         "avoids that",
			         c->device);
			return STATUS_DEVICE;
		}
		bits = s == STATUS_OK && same ? BITS_EQUAL : BITS_DIFFER;
		if (bits == BITS_DIFFER)
			log_line(LOG_WARN, "CUDA device %d: products do not use wgmma: %s", c->device,
			         s == STATUS_OK ? "its bits are not those of mma.sync" : status_text(s));
		pthread_mutex_lock(&devices_mutex);
		d->wgmma = s == STATUS_OK ? bits : BITS_UNKNOWN;
		d->clusters = c->clusters;
		pthread_mutex_unlock(&devices_mutex);
	}
	c->wgmma = bits == BITS_EQUAL;
	c->wgmma_attention = c->wgmma && is_on("ADDITIVE_CUDA_WGMMA_ATTENTION", USES_WGMMA);
	const size_t end = strlen(c->base.device);
	if (c->wgmma)
		snprintf(c->base.device + end, sizeof c->base.device - end, ", wgmma");
	return STATUS_OK;
}

static status open_parts(cuda_backend *c, bool background)
{
	int least = 0, greatest = 0;
	TRY(cuda_enter(c));
	TRY(cuda_status(c, cudaDeviceGetStreamPriorityRange(&least, &greatest)));
	const char *kept = background ? getenv("ADDITIVE_CUDA_SERVING_PROCESSORS") : NULL;
	if (kept && strtol(kept, NULL, 10) > 0)
		TRY(cuda_partition_open(c, (int)strtol(kept, NULL, 10), least));
	if (!c->stream)
		TRY(cuda_status(c, cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking,
		                                                background ? least : greatest)));
	TRY(cuda_memory_open(c));
	TRY(cuda_products_open(c));
	if (c->persistent > 0)
		TRY(cuda_program_open(c));
	TRY(cuda_check(c));
	c->checks = true;
	return c->wgmma ? choose_wgmma(c) : STATUS_OK;
}

/* Say which parts could not be opened. Called while the backend still counts as a user. */
static void backend_explain(const cuda_backend *c, status s, error *err)
{
	const device_record *d = &devices[c->device];
	pthread_mutex_lock(&devices_mutex);
	error_set(err, s, NULL, "CUDA device %d cannot be set up: %s", c->device,
	          cuda_lost(c) ? d->reason : status_text(s));
	pthread_mutex_unlock(&devices_mutex);
}

static bool was_reset(int device)
{
	pthread_mutex_lock(&devices_mutex);
	const bool was = device >= 0 && device < MAX_DEVICES && devices[device].was_reset;
	pthread_mutex_unlock(&devices_mutex);
	return was;
}

/* Most blocks of a program; 0: there are no programs. All blocks are resident at once, so a background backend, which
 * gives way to others, has none. */
static int program_blocks(const cuda_backend *c, const cudaDeviceProp *prop)
{
	const char *value = getenv("ADDITIVE_CUDA_PERSISTENT");
	const long blocks = value ? strtol(value, NULL, 10) : 0;
	if (c->background || !prop->cooperativeLaunch || prop->major != 9 || prop->minor != 0 || blocks <= 0)
		return 0;
	return blocks > 1 && blocks < c->processors ? (int)blocks : c->processors;
}

static status open_device(backend **out, const backend_options *o, error *err)
{
	cudaDeviceProp prop;
	int device = o->device;
	TRY(find_device(&device, o->wrap, &prop, err));
	cuda_backend *c = (cuda_backend *)calloc(1, sizeof *c);
	if (!c)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory for the CUDA backend");
	c->device = device;
	c->processors = prop.multiProcessorCount;
	c->shared_limit = prop.sharedMemPerBlockOptin;
	c->memory_bytes = prop.totalGlobalMem;
	c->cache_bytes = prop.l2CacheSize;
	c->early = prop.major >= 9 && is_on("ADDITIVE_CUDA_EARLY", true);
	c->wgmma = prop.major == 9 && prop.minor == 0 && is_on("ADDITIVE_CUDA_WGMMA", USES_WGMMA);
	c->clusters = is_on("ADDITIVE_CUDA_CLUSTERS", true);
	c->fused = is_on("ADDITIVE_CUDA_FUSE", true);
	c->ahead = is_on("ADDITIVE_CUDA_AHEAD", false);
	c->each_waits = is_on("ADDITIVE_CUDA_WAIT", false);
	c->background = o->background;
	c->recorded = is_on("ADDITIVE_CUDA_RECORD", true) && !c->each_waits;
	c->persistent = program_blocks(c, &prop);
	fill_table(c, &prop);
	c->base.records = c->recorded;
	status s = device_take(c, err);
	if (s != STATUS_OK) {
		free(c);
		return s;
	}
	s = open_parts(c, o->background);
	if (s != STATUS_OK) {
		backend_explain(c, s, err);
		cuda_close(&c->base);
		return s;
	}
	*out = &c->base;
	return STATUS_OK;
}

static status cuda_open(backend **out, const backend_options *o, error *err)
{
	const bool again = was_reset(o->device);
	error cause = ERROR_INIT;
	*out = NULL;
	status s = open_device(out, o, &cause);
	if (s == STATUS_OK)
		return s;
	if (again && s != STATUS_NOMEM)
		return error_set(err, STATUS_DEVICE, NULL,
		                 "%s. It was lost before and a reset did not recover it: restart the "
		                 "process",
		                 error_message(&cause));
	return error_set(err, s, NULL, "%s", error_message(&cause));
}

extern "C" const backend_plugin additive_backend_plugin = {BACKEND_ABI, "cuda", cuda_open};
