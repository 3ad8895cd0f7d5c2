/* The runtime half of the emulator. Over 600 lines, since it is one library's functions on one state (streams, events,
 * captures, faults).
 *
 * Work that is issued to a stream runs when the host waits for it, never earlier, as late as on any device. So code
 * that forgets to wait reads old bytes, and code that reuses a buffer too early sends new ones. Copies from pageable
 * memory read it at once, as CUDA's do; copies from pinned memory read it when the stream reaches them.
 *
 * Settings in the environment: README.md. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "emulator.h"

using work = std::function<void()>;

struct emulator_graph {
	std::vector<work> nodes;
};
struct emulator_stream {
	int device;
	std::deque<work> queue;
	emulator::previous_work last;
	emulator_graph *capture = nullptr;
	cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
	std::thread::id capturer;
	bool invalid = false; /* the capture is invalid */
};
/* One record of an event; the event may be recorded again before the stream reaches it. */
struct emulator_mark {
	emulator_stream *stream;
	bool done;
	bool captured;
	double ms = 0; /* the device's clock when it was reached */
};
struct emulator_event {
	std::shared_ptr<emulator_mark> mark;
};

namespace
{

std::recursive_mutex lock;
struct device_state {
	cudaError_t last_error, lost; /* lost: the error that every call returns until the device is reset */
	uint64_t pool_threshold;      /* bytes that the pool keeps when the host waits */
} states[emulator::DEVICES];
std::set<emulator_stream *> streams;
std::map<uintptr_t, size_t> pinned;
std::map<const void *, int> shared_limits; /* by kernel */
int at_work;
enum { MAJOR = 9 }; /* compute capability 9.0 */
bool waits; /* the running work waits for another process */
thread_local int current; /* the device of the thread */

device_state &here()
{
	return states[current];
}

cudaError_t give(cudaError_t e)
{
	if (e != cudaSuccess && e != cudaErrorNotReady)
		here().last_error = e;
	return e;
}

template <class F> cudaError_t call(F f)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	return give(here().lost != cudaSuccess ? here().lost : f());
}

/* While this object exists the device works, and its memory may be touched. */
struct device_at_work {
	device_at_work()
	{
		if (at_work++ == 0)
			emulator::memory_open(true);
	}
	~device_at_work()
	{
		if (--at_work == 0 && guarded())
			emulator::memory_open(false);
	}
	static bool guarded()
	{
		static const bool is = []() {
			const char *s = getenv("ADDITIVE_EMULATOR_GUARD");
			emulator::watch_faults();
			return emulator::checked && !(s && strcmp(s, "0") == 0);
		}();
		return is;
	}
};

/* --- planted faults --- */

struct error_row {
	const char *name;
	cudaError_t value;
};
const error_row error_rows[] = {
#define CUDA_ERROR(name, value, text) {#name, name},
#include <emulator_errors.def>
#undef CUDA_ERROR
};

/* Calls that may fail, with the error unless another is named. */
const error_row fault_rows[] = {
    {"launch", cudaErrorIllegalAddress}, {"memcpy", cudaErrorIllegalAddress},    {"malloc", cudaErrorMemoryAllocation},
    {"begin", cudaErrorNotSupported},    {"capture", cudaErrorNotSupported},     {"early", cudaErrorNotSupported},
    {"end", cudaErrorNotSupported},      {"instantiate", cudaErrorNotSupported}, {"replay", cudaErrorNotSupported},
    {"cooperative", cudaErrorCooperativeLaunchTooLarge},
    {"algorithm", cudaErrorUnknown},     {"group", cudaErrorUnknown},            {"sum", cudaErrorUnknown}};

template <size_t n> const error_row *find_row(const error_row (&rows)[n], const std::string &name)
{
	for (const error_row &r : rows)
		if (name == r.name)
			return &r;
	return nullptr;
}

/* WHAT:N[+][:ERROR] */
struct planted_fault {
	std::string what;
	long left = 0;
	bool each = false; /* the N-th call and all later ones */
	cudaError_t error = cudaSuccess;
};

planted_fault read_fault(const std::string &s)
{
	planted_fault f;
	size_t colon = s.find(':');
	f.what = s.substr(0, colon);
	char *end = nullptr;
	f.left = colon == std::string::npos ? 0 : strtol(s.c_str() + colon + 1, &end, 10);
	f.each = end && *end == '+';
	end += f.each;
	const error_row *row = find_row(fault_rows, f.what),
	                *error = end && *end == ':' ? find_row(error_rows, end + 1) : row;
	if (!row || !error || f.left < 1 || (*end && *end != ':'))
		emulator::fail("ADDITIVE_EMULATOR_FAULT=%s is no WHAT:N[+][:ERROR] (README.md)", s.c_str());
	f.error = error->value;
	return f;
}

/* ADDITIVE_EMULATOR_FAULT_PROCESSES=N:FILE: only the first N processes that reach this have faults. FILE grows by a
 * byte in each; a program that re-executes itself counts as another process. */
bool has_faults()
{
	static const bool has = []() {
		const char *s = getenv("ADDITIVE_EMULATOR_FAULT_PROCESSES"), *file = s ? strchr(s, ':') : nullptr;
		FILE *f = file ? fopen(file + 1, "ab") : nullptr;
		if (s && (!f || fputc('x', f) == EOF || fflush(f) != 0))
			emulator::fail("ADDITIVE_EMULATOR_FAULT_PROCESSES=%s is no N:FILE that can be written", s);
		bool is = !s || ftell(f) <= strtol(s, nullptr, 10);
		if (f)
			fclose(f);
		return is;
	}();
	return has;
}

/* The error of the call that ADDITIVE_EMULATOR_FAULT names, if it is this one. Counting restarts when the variable
 * changes. */
cudaError_t planted(const char *what)
{
	static std::string named;
	static planted_fault fault;
	const char *s = getenv("ADDITIVE_EMULATOR_FAULT"), *on = getenv("ADDITIVE_EMULATOR_FAULT_DEVICE");
	if (on && *on && atoi(on) != current)
		return cudaSuccess;
	if (named != (s ? s : "")) {
		named = s ? s : "";
		fault = s && *s ? read_fault(named) : planted_fault();
	}
	if (named.empty() || fault.what != what || !has_faults() || fault.left <= 0 || --fault.left > 0)
		return cudaSuccess;
	fault.left = fault.each;
	return fault.error;
}

/* True for errors of the device, not of a call. */
bool is_final(cudaError_t e)
{
	return e == cudaErrorECCUncorrectable || e == cudaErrorDevicesUnavailable ||
	       (e >= cudaErrorIllegalAddress && e < cudaErrorNotPermitted && e != cudaErrorLaunchOutOfResources &&
	        e != cudaErrorCooperativeLaunchTooLarge);
}

cudaError_t lose(cudaError_t e)
{
	for (emulator_stream *s : streams)
		if (s->device == current)
			s->queue.clear();
	return here().lost = e;
}

/* Make the call fail if it is the planted one, and lose the device if the error is final. */
cudaError_t fails(const char *what)
{
	cudaError_t e = planted(what);
	return e != cudaSuccess && is_final(e) ? lose(e) : e;
}

/* Run the next work of a stream; false if it waits and has to be retried. */
bool next(emulator_stream *s)
{
	work w = std::move(s->queue.front());
	s->queue.pop_front();
	device_at_work at;
	emulator::previous_work *outer = emulator::previous; /* that of a stream that waits for this one */
	emulator::previous = &s->last;
	w();
	emulator::previous = outer;
	if (!waits)
		return true;
	waits = false;
	s->queue.push_front(std::move(w));
	return false;
}

/* next, for a host that has nothing else to do. */
void next_at_last(emulator_stream *s)
{
	while (!next(s))
		usleep(100);
}

void drain(emulator_stream *s)
{
	device_at_work at;
	while (!s->queue.empty())
		next_at_last(s);
}

/* Called when the host has waited for a stream, an event or the device. */
cudaError_t waited()
{
	emulator::pool_trim(here().pool_threshold);
	return here().lost;
}

/* Run the work of the thread's device. */
void drain_all()
{
	for (emulator_stream *s : streams)
		if (s->device == current)
			drain(s);
}

cudaError_t check_stream(emulator_stream *s)
{
	if (!s)
		emulator::fail("the default stream is not used here");
	return streams.count(s) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t issue(emulator_stream *s, work &&w)
{
	cudaError_t e = check_stream(s);
	if (e == cudaSuccess && s->device != current)
		e = cudaErrorInvalidResourceHandle;
	if (e != cudaSuccess)
		return e;
	if (s->capture && s->invalid)
		return cudaErrorStreamCaptureInvalidated;
	if (s->capture)
		s->capture->nodes.push_back(std::move(w));
	else
		s->queue.push_back(std::move(w));
	return cudaSuccess;
}

/* End the stream's capture, because of a call that a capture does not allow. */
cudaError_t refuse(emulator_stream *s)
{
	if (s->invalid)
		return cudaErrorStreamCaptureInvalidated;
	s->invalid = true;
	return cudaErrorStreamCaptureUnsupported;
}

/* Refuse a call that is not allowed while a stream captures, unless in relaxed mode or in another thread's own. */
cudaError_t check_no_capture()
{
	const auto self = std::this_thread::get_id();
	for (emulator_stream *s : streams)
		if (s->capture && (s->mode == cudaStreamCaptureModeGlobal ||
		                   (s->mode == cudaStreamCaptureModeThreadLocal && s->capturer == self)))
			return refuse(s);
	return cudaSuccess;
}

bool is_pinned(const void *at, size_t bytes)
{
	auto p = pinned.upper_bound((uintptr_t)at);
	return p != pinned.begin() && (uintptr_t)at + bytes <= (--p)->first + p->second;
}

/* Record a finished copy or set; it ends before anything after it begins. */
void did(emulator_kind kind, const char *name, size_t read, size_t written)
{
	emulator::count_work(kind, name, read, written);
	*emulator::previous = {};
}

int device_count()
{
	const char *s = getenv("ADDITIVE_EMULATOR_DEVICES");
	return s && *s ? std::min(atoi(s), (int)emulator::DEVICES) : 1;
}

cudaError_t check_device(int device)
{
	return device_count() == 0                          ? cudaErrorNoDevice
	       : device >= 0 && device < device_count() ? cudaSuccess
	                                                : cudaErrorInvalidDevice;
}

/* Number of clusters of this size that are resident; 0: none fits. */
int most_clusters(dim3 size)
{
	const char *s = getenv("ADDITIVE_EMULATOR_REFUSES");
	const uint64_t blocks = (uint64_t)size.x * size.y * size.z;
	if (blocks == 0 || blocks > emulator::RESIDENT || (blocks > 1 && s && strcmp(s, "clusters") == 0))
		return 0;
	return (int)(emulator::RESIDENT / blocks);
}

cudaError_t check_launch(const emulator::launch &l)
{
	if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0 || l.block.x == 0 || l.block.y == 0 || l.block.z == 0)
		return cudaErrorInvalidConfiguration;
	if ((uint64_t)l.block.x * l.block.y * l.block.z > 1024 || l.grid.x > INT32_MAX || l.grid.y > 65535 ||
	    l.grid.z > 65535)
		return cudaErrorInvalidConfiguration;
	auto limit = shared_limits.find(l.kernel);
	if (l.shared_bytes > (limit == shared_limits.end() ? emulator::SHARED_DEFAULT : (size_t)limit->second))
		return cudaErrorInvalidValue;
	if (l.cooperative && (uint64_t)l.grid.x * l.grid.y * l.grid.z > emulator::processors())
		return cudaErrorCooperativeLaunchTooLarge;
	if (most_clusters(l.cluster) == 0 || l.grid.x % l.cluster.x || l.grid.y % l.cluster.y || l.grid.z % l.cluster.z)
		return cudaErrorInvalidClusterSize;
	if (l.block.y != 1 || l.block.z != 1)
		emulator::fail("%s: only blocks of one dimension are emulated",
		               emulator::kernel_name(l.kernel).c_str());
	if ((uint64_t)l.grid.x * l.grid.y * l.grid.z > 1 << 21)
		emulator::fail("%s: only 2^21 blocks are emulated", emulator::kernel_name(l.kernel).c_str());
	return cudaSuccess;
}

/* The PTX version from which a kernel was compiled, by ADDITIVE_EMULATOR_PTX. */
int ptx_version(const void *kernel)
{
	const char *s = getenv("ADDITIVE_EMULATOR_PTX"), *name = s ? strchr(s, ':') : nullptr;
	if (!s || (name && strncmp(emulator::short_name(kernel), name + 1, strlen(name + 1)) != 0))
		return 10 * MAJOR;
	return (int)strtol(s, nullptr, 10);
}

struct leaks {
	~leaks()
	{
		const char *s = getenv("ADDITIVE_EMULATOR_LEAKS");
		if (s && strcmp(s, "1") == 0)
			emulator::memory_report_leaks();
	}
} at_end;

} // namespace

double emulator::clock_ms;

void emulator::finish_all()
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	drain_all();
}

cudaError_t emulator::enqueue(cudaStream_t stream, work w)
{
	return call([&]() { return issue(stream, std::move(w)); });
}

void emulator::wait_on()
{
	waits = true;
}

void emulator::run_ready(cudaStream_t stream)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	while (streams.count(stream) && !stream->queue.empty() && next(stream))
		;
}

bool emulator::is_planted(const char *what)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	return planted(what) != cudaSuccess;
}

int emulator::current_device()
{
	return current;
}

std::recursive_mutex &emulator::runtime_lock()
{
	return lock;
}

cudaError_t emulator::may_allocate()
{
	return call([&]() { return fails("malloc"); });
}

static dim3 cluster_of(const cudaLaunchConfig_t *c)
{
	dim3 size;
	for (unsigned i = 0; i < c->numAttrs; i++)
		if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
			size = {c->attrs[i].val.clusterDim.x, c->attrs[i].val.clusterDim.y, c->attrs[i].val.clusterDim.z};
	return size;
}

static emulator::launch make_launch(const cudaLaunchConfig_t *c, const void *kernel, void (*call)(const void *arguments),
                                    const void *arguments, size_t bytes)
{
	static const std::align_val_t alignment{64};
	emulator::launch l = {kernel, c->gridDim, c->blockDim, cluster_of(c), c->dynamicSmemBytes, call, nullptr, bytes, false, false, false};
	l.arguments = std::shared_ptr<void>(operator new(bytes, alignment), [](void *p) { operator delete(p, alignment); });
	memcpy(l.arguments.get(), arguments, bytes);
	for (unsigned i = 0; i < c->numAttrs; i++) {
		if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
			l.early = c->attrs[i].val.programmaticStreamSerializationAllowed != 0;
		if (c->attrs[i].id == cudaLaunchAttributeCooperative)
			l.cooperative = c->attrs[i].val.cooperative != 0;
	}
	return l;
}

cudaError_t emulator::launch_kernel(const cudaLaunchConfig_t *c, const void *kernel, void (*run_thread)(const void *),
                                    const void *arguments, size_t bytes)
{
	launch l = make_launch(c, kernel, run_thread, arguments, bytes);
	return call([&]() {
		cudaError_t e = check_launch(l);
		if (e != cudaSuccess)
			return e;
		l.no_wait = ptx_version(l.kernel) < 90;
		const bool captures = streams.count(c->stream) && c->stream->capture;
		e = fails("launch");
		if (e == cudaSuccess && captures)
			e = fails("capture");
		if (e == cudaSuccess && captures && l.early)
			e = fails("early");
		if (e == cudaSuccess && captures && l.cooperative)
			e = fails("cooperative");
		if (e != cudaSuccess)
			return e;
		return issue(c->stream, [l = std::move(l)]() { run(l); });
	});
}

cudaError_t emulator::set_shared_limit(const void *kernel, cudaFuncAttribute attribute, int value)
{
	return call([&]() {
		if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
		    (size_t)value > SHARED_MOST)
			return cudaErrorInvalidValue;
		shared_limits[kernel] = value;
		return cudaSuccess;
	});
}

cudaError_t emulator::count_resident(int *out, const void *, int threads, size_t shared)
{
	return call([&]() {
		*out = threads <= 1024 && shared <= SHARED_MOST ? 1 : 0;
		return threads > 0 ? cudaSuccess : cudaErrorInvalidValue;
	});
}

cudaError_t emulator::count_clusters(int *out, const cudaLaunchConfig_t *c)
{
	return call([&]() {
		*out = c->dynamicSmemBytes <= SHARED_MOST ? most_clusters(cluster_of(c)) : 0;
		return cudaSuccess;
	});
}

extern "C" {

const char *cudaGetErrorName(cudaError_t e)
{
	switch (e) {
#define CUDA_ERROR(name, value, text)                                                                                  \
	case name:                                                                                                     \
		return #name;
#include <emulator_errors.def>
#undef CUDA_ERROR
	}
	return "unrecognized error code";
}
cudaError_t cudaFuncGetName(const char **name, const void *kernel)
{
	static thread_local std::string last;
	last = emulator::kernel_name(kernel);
	*name = last.c_str();
	return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *kernel)
{
	return call([&]() {
		if (!kernel)
			return cudaErrorInvalidDeviceFunction;
		*out = {ptx_version(kernel), 10 * MAJOR};
		return cudaSuccess;
	});
}
const char *cudaGetErrorString(cudaError_t e)
{
	switch (e) {
#define CUDA_ERROR(name, value, text)                                                                                  \
	case name:                                                                                                     \
		return text;
#include <emulator_errors.def>
#undef CUDA_ERROR
	}
	return "unrecognized error code";
}
cudaError_t cudaGetLastError(void)
{
	cudaError_t e = here().last_error;
	here().last_error = here().lost;
	return e;
}
cudaError_t cudaPeekAtLastError(void)
{
	return here().last_error;
}

/* --- the device --------------------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count)
{
	*count = device_count();
	return *count ? cudaSuccess : give(cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device)
{
	cudaError_t e = check_device(device);
	if (e == cudaSuccess) {
		*out = {};
		snprintf(out->name, sizeof out->name, "emulated device");
		snprintf(out->uuid.bytes, sizeof out->uuid.bytes, "device %d", device & 0xff);
		out->totalGlobalMem = emulator::memory_total();
		out->sharedMemPerBlockOptin = emulator::SHARED_MOST;
		out->major = MAJOR;
		out->multiProcessorCount = (int)emulator::processors();
		out->cooperativeLaunch = 1;
		out->l2CacheSize = 128 << 10; /* less than the data of some tests */
		out->maxThreadsPerMultiProcessor = 2048;
	}
	return give(e);
}
cudaError_t cudaSetDevice(int device)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	cudaError_t e = check_device(device);
	if (e != cudaSuccess)
		return give(e);
	current = device;
	return give(here().lost);
}
cudaError_t cudaDeviceSynchronize(void)
{
	return call([&]() {
		cudaError_t e = check_no_capture();
		if (e != cudaSuccess)
			return e;
		drain_all();
		return waited();
	});
}
/* Reset everything of the device: memory, streams and, unless ADDITIVE_EMULATOR_RESET=0, its loss. */
cudaError_t cudaDeviceReset(void)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	for (auto s = streams.begin(); s != streams.end();) {
		if ((*s)->device != current) {
			++s;
			continue;
		}
		delete (*s)->capture;
		delete *s;
		s = streams.erase(s);
	}
	emulator::memory_forget_all();
	emulator::driver_reset();
	const char *helps = getenv("ADDITIVE_EMULATOR_RESET");
	const bool stays = helps && strcmp(helps, "0") == 0 && here().lost != cudaSuccess;
	here() = {};
	here().last_error = here().lost = stays ? cudaErrorDevicesUnavailable : cudaSuccess;
	return give(stays ? here().lost : check_device(current));
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return give(here().lost);
}

/* --- memory ---------------------------------------------------------------------------------- */

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	*left = emulator::memory_left();
	*total = emulator::memory_total();
	return give(here().lost);
}
cudaError_t cudaMalloc(void **out, size_t bytes)
{
	return call([&]() {
		*out = nullptr;
		cudaError_t e = check_no_capture();
		if (e != cudaSuccess)
			return e;
		e = fails("malloc");
		return e != cudaSuccess ? e : emulator::memory_allocate(out, bytes);
	});
}
/* As on a device, all issued work ends first. */
cudaError_t cudaFree(void *data)
{
	return call([&]() {
		if (!data)
			return cudaSuccess;
		cudaError_t e = check_no_capture();
		if (e != cudaSuccess)
			return e;
		drain_all();
		return emulator::memory_free(data);
	});
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *out, int device)
{
	static int pool;
	*out = (cudaMemPool_t)&pool;
	return call([&]() { return check_device(device); });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value)
{
	return call([&]() {
		if (!pool || !value)
			return cudaErrorInvalidValue;
		if (attribute == cudaMemPoolAttrReleaseThreshold)
			memcpy(&here().pool_threshold, value, sizeof here().pool_threshold);
		return cudaSuccess;
	});
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t least)
{
	return call([&]() {
		if (!pool)
			return cudaErrorInvalidValue;
		emulator::pool_trim(least);
		return cudaSuccess;
	});
}
/* Memory exists from this call on, until the stream reaches its release. */
cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream)
{
	return call([&]() {
		*out = nullptr;
		cudaError_t e = bytes ? check_stream(stream) : cudaErrorInvalidValue;
		if (e != cudaSuccess)
			return e;
		if (stream->capture)
			emulator::fail("cudaMallocAsync: memory within graphs is not emulated");
		e = fails("malloc");
		return e != cudaSuccess ? e : emulator::pool_allocate(out, bytes);
	});
}
cudaError_t cudaFreeAsync(void *data, cudaStream_t stream)
{
	return call([&]() {
		if (stream && stream->capture)
			emulator::fail("cudaFreeAsync: memory within graphs is not emulated");
		return issue(stream, [=]() { (void)emulator::pool_free(data); });
	});
}
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned)
{
	return call([&]() {
		*out = nullptr;
		cudaError_t e = check_no_capture();
		if (e != cudaSuccess)
			return e;
		*out = malloc(bytes ? bytes : 1);
		if (!*out)
			return cudaErrorMemoryAllocation;
		pinned[(uintptr_t)*out] = bytes;
		return cudaSuccess;
	});
}
cudaError_t cudaMallocHost(void **out, size_t bytes)
{
	return cudaHostAlloc(out, bytes, 0);
}
cudaError_t cudaFreeHost(void *data)
{
	std::lock_guard<std::recursive_mutex> hold(lock);
	if (!data)
		return give(here().lost);
	if (pinned.count((uintptr_t)data) == 0)
		emulator::fail("cudaFreeHost: %p was not given by cudaHostAlloc", data);
	drain_all();
	pinned.erase((uintptr_t)data);
	free(data);
	return give(here().lost);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
	return call([&]() -> cudaError_t {
		cudaError_t e = fails("memcpy");
		if (e == cudaSuccess)
			e = check_stream(stream);
		if (e != cudaSuccess)
			return e;
		bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
		bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
		if (!to_device && !from_device)
			return cudaErrorInvalidMemcpyDirection;
		if (to_device)
			emulator::need_device(to, bytes, "cudaMemcpyAsync, destination");
		if (from_device)
			emulator::need_device(from, bytes, "cudaMemcpyAsync, source");
		if (to_device && from_device && (uintptr_t)to < (uintptr_t)from + bytes &&
		    (uintptr_t)from < (uintptr_t)to + bytes && bytes)
			emulator::fail("cudaMemcpyAsync: source and destination overlap");
		bool pageable = (!to_device && !is_pinned(to, bytes)) || (!from_device && !is_pinned(from, bytes));
		if (pageable && stream->capture)
			return refuse(stream);
		if (pageable && !from_device) {
			std::string now((const char *)from, bytes);
			return issue(stream, [=]() {
				emulator::need_device(to, now.size(), "cudaMemcpyAsync, destination");
				did(EMULATOR_COPY, "copy to the device", 0, now.size());
				memcpy(to, now.data(), now.size());
			});
		}
		return issue(stream, [=]() {
			if (to_device)
				emulator::need_device(to, bytes, "cudaMemcpyAsync, destination");
			if (from_device)
				emulator::need_device(from, bytes, "cudaMemcpyAsync, source");
			did(EMULATOR_COPY,
			    !to_device    ? "copy to the host"
			    : from_device ? "copy"
			                  : "copy to the device",
			    from_device ? bytes : 0, to_device ? bytes : 0);
			memcpy(to, from, bytes);
		});
	});
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
	return call([&]() {
		emulator::need_device(to, bytes, "cudaMemsetAsync");
		return issue(stream, [=]() {
			emulator::need_device(to, bytes, "cudaMemsetAsync");
			did(EMULATOR_SET, "set", 0, bytes);
			memset(to, byte, bytes);
		});
	});
}

/* --- streams and events ------------------------------------------------------------------------ */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned, int)
{
	return call([&]() {
		*out = new emulator_stream;
		(*out)->device = current;
		streams.insert(*out);
		return cudaSuccess;
	});
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	return call([&]() {
		cudaError_t e = check_stream(stream);
		if (e != cudaSuccess)
			return e;
		drain(stream);
		streams.erase(stream);
		delete stream->capture;
		delete stream;
		return cudaSuccess;
	});
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	return call([&]() {
		cudaError_t e = check_stream(stream);
		if (e != cudaSuccess)
			return e;
		if (stream->capture)
			return refuse(stream);
		drain(stream);
		return waited();
	});
}
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	return call([&]() {
		cudaError_t e = check_stream(stream);
		if (e != cudaSuccess)
			return e;
		if (stream->capture)
			return refuse(stream);
		if (stream->queue.empty())
			return cudaSuccess;
		next(stream); /* a device makes progress while it is queried */
		return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
	});
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
	return call([&]() {
		*out = new emulator_event;
		return cudaSuccess;
	});
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	delete event;
	return give(here().lost);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	return call([&]() {
		cudaError_t e = check_stream(stream);
		if (e != cudaSuccess)
			return e;
		auto mark = std::make_shared<emulator_mark>(emulator_mark{stream, false, stream->capture != nullptr});
		event->mark = mark;
		return issue(stream, [mark]() { mark->done = true, mark->ms = emulator::clock_ms; });
	});
}
static void reach(const emulator_mark &mark)
{
	device_at_work at;
	while (!mark.done && streams.count(mark.stream) && !mark.stream->queue.empty())
		next_at_last(mark.stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
	return call([&]() {
		if (!event->mark || event->mark->done)
			return cudaSuccess;
		if (event->mark->captured)
			return cudaErrorCapturedEvent;
		if (streams.count(event->mark->stream) && !event->mark->stream->queue.empty())
			next(event->mark->stream);
		return event->mark->done ? cudaSuccess : cudaErrorNotReady;
	});
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	return call([&]() {
		if (event->mark && event->mark->captured && !event->mark->done)
			return cudaErrorCapturedEvent;
		if (event->mark)
			reach(*event->mark);
		return waited();
	});
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	*ms = from->mark && to->mark ? (float)(to->mark->ms - from->mark->ms) : 0;
	return give(here().lost);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
	return call([&]() {
		std::shared_ptr<emulator_mark> mark = event->mark;
		if (!mark || mark->stream == stream)
			return cudaSuccess;
		if (mark->captured)
			emulator::fail("cudaStreamWaitEvent: captures of several streams are not emulated");
		if (stream->capture) {
			stream->invalid = true;
			return cudaErrorStreamCaptureIsolation;
		}
		return issue(stream, [mark]() { reach(*mark); });
	});
}

/* --- graphs --------------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
	return call([&]() {
		cudaError_t e = check_stream(stream);
		if (e != cudaSuccess)
			return e;
		if (stream->capture)
			return cudaErrorIllegalState;
		e = fails("begin");
		if (e != cudaSuccess)
			return e;
		stream->capture = new emulator_graph;
		stream->mode = mode;
		stream->capturer = std::this_thread::get_id();
		stream->invalid = false;
		return cudaSuccess;
	});
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
	return call([&]() {
		*out = nullptr;
		cudaError_t e = check_stream(stream);
		if (e != cudaSuccess)
			return e;
		if (!stream->capture)
			return cudaErrorIllegalState;
		e = stream->invalid ? cudaErrorStreamCaptureInvalidated : fails("end");
		if (e != cudaSuccess)
			delete stream->capture;
		else
			*out = stream->capture;
		stream->capture = nullptr;
		return e;
	});
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
	return call([&]() {
		cudaError_t e = fails("instantiate");
		*out = e == cudaSuccess ? new emulator_graph(*graph) : nullptr;
		return e;
	});
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	delete graph;
	return give(here().lost);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	delete exec;
	return give(here().lost);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	return call([&]() {
		cudaError_t e = fails("launch");
		if (e == cudaSuccess)
			e = fails("replay");
		for (size_t i = 0; i < exec->nodes.size() && e == cudaSuccess; i++)
			e = issue(stream, work(exec->nodes[i]));
		return e;
	});
}

} /* extern "C" */
