/* emulator.h - interfaces between the emulator's parts.
 *
 *   runtime.cc  streams, events, graphs, copies: issued work, and when it runs
 *   driver.cc   virtual memory
 *   memory.cc   device memory: owners of blocks, and when each was freed
 *   cublaslt.cc matrix products
 *   nccl.cc     sums over processes
 *   kernel.cc   launches: blocks, barriers, meetings of warps, the order of fibres
 *   wgmma.cc    products that run while their warps go on
 *   fibre.cc    stacks that alternate on one thread
 *   check.cc    every load and store of a kernel: bounds, races, shared memory that was never written (checked build)
 *   order.cc    work of other threads that a thread may rely on
 *   count.cc    the work that ran and the bytes that it moved (count.h)
 *   report.cc   reports of faults
 *
 * One thread at a time is inside the emulator (runtime.cc's lock).
 *
 * Rejected: cuda4cpu, the nearest package, also runs the language on a CPU. It needs GCC 14 and C++23, is in no
 * distribution, and has neither bf16 nor cuBLASLt. Simulators of GPUs run compiled PTX, which excludes the kernels of
 * cuBLASLt and today's compilers. Kernels use little of the language, and the rules of cuda/device.cuh keep it so. */
#ifndef EMULATOR_EMULATOR_H
#define EMULATOR_EMULATOR_H

#include <cuda_runtime.h>

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fibre.h"
#include "tests/emulator/count.h"

namespace emulator
{

#ifdef EMULATOR_CHECKED
constexpr bool checked = true;
#else
constexpr bool checked = false;
#endif

enum : size_t {
	SHARED_MOST = 227 << 10,
	SHARED_DEFAULT = 48 << 10,
	SHARED_STRIDE = 256 << 10,
	STACK_BYTES = 128 << 10
};
/* Blocks that are resident: of a launch; of a cooperative one, which has at most one per processor. */
enum { RESIDENT = 4, PROCESSORS_MOST = 132 };
/* Processors of the device: ADDITIVE_EMULATOR_PROCESSORS, else 4. */
unsigned processors();

/* --- order -------------------------------------------------------------------------- */

/* Counts barriers, __syncwarps and fences of a launch and continues in the next; each access is stamped with it. */
typedef uint32_t moment;

/* Work that is known to have happened: everything of a block before a moment; each lane's work of a warp before a
 * moment. Empty in all kernels whose blocks do not communicate. */
struct knowledge {
	std::map<uint32_t, moment> blocks;
	std::map<uint64_t, std::array<moment, 32>> warps; /* by block << 5 | warp */

	bool empty() const
	{
		return blocks.empty() && warps.empty();
	}
	void add(const knowledge &other);
	bool covers(uint32_t block, unsigned thread, moment when) const;
};

/* --- blocks --------------------------------------------------------------------------- */

/* Lanes that meet, with 64 bytes of each. A warp may have several open meetings, of disjoint lanes. */
struct meeting {
	unsigned mask, arrived, inside; /* inside: lanes that have not left yet */
	const char *what;
	size_t bytes;
	const void *first_at;
	alignas(16) unsigned char values[32][64];
};

struct requests; /* count.cc */

struct warp {
	std::shared_ptr<requests> asked; /* counted requests */
	std::vector<meeting *> open;     /* not all have arrived */
	std::vector<meeting *> spare;
	std::deque<meeting> all;
	moment together = 0; /* the last __syncwarp of all 32 lanes */
};

enum fibre_state { READY, AT_BARRIER, AT_CLUSTER, AT_WARP, DONE };

struct async_copy {
	void *to;
	const void *from;
	int bytes, size; /* read, and written: zeros after those read */
};

/* Sums of unfinished products; `at` is NaN until the wait. */
struct product_sums {
	float *at;
	int n;
	std::vector<float> value; /* before the products */
};
/* An unfinished wgmma: a lane's two rows of a, and b in shared memory. */
struct group_product {
	const unsigned *a[4]; /* this lane's words */
	bool a_shared;        /* they are in shared memory */
	unsigned words[4];    /* copy of a */
	unsigned rows[2][8]; /* pairs of bf16, or four bytes each */
	const unsigned char *b;
	int k_bytes, column_bytes, columns;
	bool add;
	b_form form;
	size_t sums; /* index in the fibre's */
};

struct block;

struct fibre {
	unsigned thread;
	uint3 index; /* as kernels read it */
	fibre_state state;
	const meeting *waits_for;
	context ctx;
	block *b;
	warp *w;
	void *stack;
	const void *waits_at;       /* address of the waiting code */
	bool fenced_now;            /* since the block's last barrier */
	bool waited;                /* for the work before an early launch */
	std::array<moment, 32> met; /* by lane of the warp: known by __syncwarps of part of it */
	knowledge known, pending, fenced;
	std::vector<async_copy> asked;              /* since the last commit */
	std::deque<std::vector<async_copy>> groups; /* unfinished */
	std::vector<product_sums> sums;
	std::vector<group_product> products; /* unfinished */
	size_t committed;
	bool products_fenced;
	moment publishing, published; /* stores before it are published: now, for products of other threads */
	moment publishing_met;        /* as of the last __syncwarp */
	unsigned arrivals, waits;     /* at the cluster's barrier */
	moment arrived[2];            /* the last two arrivals: number n is at n % 2 */
};

struct shadow; /* check.cc */

/* A barrier in shared memory that counts threads and bytes of copies. */
struct copy_barrier {
	int threads, missing; /* arrivals that end a phase; those still to come */
	long bytes = 0;  /* expected and not arrived; negative: arrived before they are expected */
	unsigned phase = 0;
};
/* A copy from shared memory to that of another block, which has not arrived. */
struct block_copy {
	block *from_block, *to_block;
	const unsigned char *from;
	unsigned char *to;
	const void *barrier;
	std::vector<unsigned char> bytes; /* as they were at the request */
	const void *code;
};

/* Blocks that are resident together and reach each other's shared memory. */
struct cluster {
	std::vector<block *> blocks; /* by rank */
	int threads = 0, arrived = 0, done = 0;
	unsigned rounds = 0; /* completed barriers */
	std::vector<block_copy> copies;
};

struct block {
	uint3 index;
	std::shared_ptr<cluster> in;
	std::map<const void *, copy_barrier> copy_barriers; /* by address */
	uint32_t number;
	unsigned char *shared; /* SHARED_STRIDE bytes of address space */
	shadow *shared_shadow;
	moment began, together; /* together: the last barrier */
	int waiting = 0, done = 0;
	bool waited = false; /* a fibre waited, before the last barrier */
	std::vector<fibre> fibres;
	std::vector<warp> warps;
	knowledge known, pending, fenced; /* by all its threads, as of the last barrier */
};

/* Memory that a stream's last piece of work has touched: for a kernel between two moments, for a matrix product as
 * ranges of addresses. Empty after copies and sets, which end before anything after them begins. */
struct previous_work {
	moment began = 0, ended = 0;
	struct range {
		uintptr_t from;
		size_t bytes;
		bool written;
	};
	std::vector<range> ranges;

	bool any() const
	{
		return ended > began || !ranges.empty();
	}
};
extern previous_work *previous;  /* the running stream's */
extern previous_work overlapped; /* work that the running launch may overlap with */

/* A kernel with its arguments. Each thread runs call(arguments) once. */
struct launch {
	const void *kernel;
	dim3 grid, block, cluster;
	size_t shared_bytes;
	void (*call)(const void *arguments);
	std::shared_ptr<void> arguments;
	size_t argument_bytes;
	bool early;       /* may begin before the previous launch has ended */
	bool cooperative; /* all blocks are resident */
	bool no_wait;     /* compiled from PTX older than 9.0: wait_for_previous and let_next_begin do nothing */
};

/* The running launch and its current thread. */
struct now_running {
	uintptr_t stack_low = 0, stack_bytes = 0; /* first, since every access reads them */
	fibre *self = nullptr;
	block *b = nullptr;
	const launch *l = nullptr;
	uint32_t id = 0; /* block << 11 | thread << 1 */
	moment began = 1;
	bool moved = false; /* a fibre did more than poll */
	bool ahead = false; /* the thread may run while `overlapped` is unfinished */
};
extern thread_local now_running now;
extern moment present; /* for all launches, on any host thread */

/* Run all blocks of a launch to their end. */
void run(const launch &l);

/* The thread with these numbers, if its block is in the running thread's cluster; else NULL. */
fibre *in_cluster(uint32_t block, unsigned thread);
/* True if the last barrier of the cluster that `f` waited for orders an access of `other` before it. */
bool cluster_orders(const fibre *f, const fibre *other, moment when);

/* order.cc */
void tick();
void order_barrier(block *b);
void order_meet(block *b, warp *w, size_t first, unsigned mask);
bool order_known(uint32_t block, unsigned thread, moment when);
void order_forget(const void *from, size_t bytes);
/* Release at this address everything that the running thread may; acquire what was released. */
void order_release(const void *at);
void order_acquire(const void *at);

/* --- memory ---------------------------------------------------------------------------- */

enum { DEVICES = 64 };

struct allocation {
	unsigned char *base;
	size_t bytes;
	int device;
	bool live, mapped; /* mapped: by the driver's functions */
	shadow *marks;
};

cudaError_t memory_allocate(void **out, size_t bytes);
cudaError_t memory_free(void *at);
/* Forget all memory of the thread's device. */
void memory_forget_all();
void memory_forget_marks();
/* Allocate from and release to the device's pool. It keeps the bytes of freed memory for its next allocations until it
 * is trimmed to `least` bytes, which include those of its live allocations. */
cudaError_t pool_allocate(void **out, size_t bytes);
cudaError_t pool_free(void *at);
void pool_trim(size_t least);
/* Memory managed by the driver's functions. */
void memory_add(void *at, size_t bytes);
void memory_remove(void *at);
/* Count bytes that are taken (negative: returned); false if the device has no more. */
bool memory_take(long long bytes);
size_t memory_left();
size_t memory_total();
/* Find the allocation, live or not, that contains this address or else ends nearest before it; NULL if there is
 * none. */
allocation *memory_find(const void *at);
bool memory_is_live(const void *at, size_t bytes);
/* Allow or forbid the host's access to device memory; kernels run between open and close. */
void memory_open(bool open);
void memory_report_leaks();

/* cudaSuccess if the device may give memory now. Planted faults are in runtime.cc. */
cudaError_t may_allocate();
/* Free all memory that the driver's functions gave. */
void driver_reset();

/* --- checks ------------------------------------------------------------------------------ */

/* COPY: a write that is requested now and arrives later. */
enum access_kind { READ, WRITE, ATOMIC_READ, ATOMIC_WRITE, COPY };
/* Report an access of the running thread that the compiler does not report. */
void touch(const void *at, size_t bytes, access_kind kind, const void *code);
/* Report a read of shared memory by a product or a copy: what threads of this block wrote there must be published. */
void touch_published(const void *at, size_t bytes, const void *code);
/* Check an access of the running thread to another block's shared memory: COPY or ATOMIC_READ. */
void touch_of(const block *b, const void *at, size_t bytes, access_kind kind, const void *code);
/* In place of the code of a write: bytes that arrive by a copy of the cluster, which products may read unpublished. */
constexpr const void *COPIED = nullptr;
/* Fail unless the memory of a copy or a matrix product is live. */
void need_device(const void *at, size_t bytes, const char *what);
shadow *shadow_new(size_t bytes);
void shadow_free(shadow *s);

/* --- counts ------------------------------------------------------------------------------- */

extern bool counting;
/* A kernel's name with its template's arguments; never freed. */
const char *short_name(const void *kernel);
void count_launch(const launch &l);
void count_launch_end();
/* Count a kernel's access to an allocation. touched: a word for each of the allocation's words, initially zeros. */
void count_access(uint32_t *touched, uintptr_t at, size_t offset, size_t bytes, access_kind kind, const void *code);
void count_signal(const void *at);
void count_prefetch(size_t bytes);
/* Count all other work; `name` has to stay valid. */
void count_work(emulator_kind kind, const char *name, size_t read, size_t written, const unsigned grid[3] = nullptr,
                unsigned threads = 0, uint64_t flop = 0, unsigned processors = 0, unsigned candidate = 0);

/* --- reports ------------------------------------------------------------------------------- */

/* "file:line" of an address in this plug-in's code, or its offset. */
std::string code_place(const void *code);
std::string kernel_name(const void *kernel);
void watch_faults(); /* stack overflows, and accesses of the host to device memory */

/* --- the stream ------------------------------------------------------------------------------ */

/* The device's clock: it advances with matrix products alone (cublaslt.cc). */
extern double clock_ms;
/* Issue work to a stream, or to the graph that it records. */
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);
/* Called by running work that has to wait for another process; it is then called again later. */
void wait_on();
/* Run the work that need not wait; a device makes progress even if the host does not wait. */
void run_ready(cudaStream_t stream);
/* Run all issued work. */
void finish_all();
/* The device of the thread. */
int current_device();
/* Held by every call of the runtime and the driver. */
std::recursive_mutex &runtime_lock();
/* True if this call is the one that ADDITIVE_EMULATOR_FAULT names. */
bool is_planted(const char *what);

} // namespace emulator

#endif
