/* emulator.h - between the emulator's parts.
 *
 *   runtime.cc  streams, events, graphs, copies: what is issued, and when it runs
 *   driver.cc   virtual memory
 *   memory.cc   device memory: owners of blocks, and when each was freed
 *   cublaslt.cc matrix products
 *   nccl.cc     sums over processes
 *   kernel.cc   launches: blocks, barriers, meetings of warps, whose turn it is
 *   fibre.cc    stacks that take turns
 *   check.cc    every load and store of a kernel: bounds, races, shared memory that was never written (checked build)
 *   order.cc    what of others' work a thread may rely on
 *   count.cc    what ran and what it moved (count.h)
 *   report.cc   how a fault is reported
 *
 * One thread at a time is inside the emulator (runtime.cc's lock). */
#ifndef EMULATOR_EMULATOR_H
#define EMULATOR_EMULATOR_H

#include <cuda_runtime.h>

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
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
enum { PROCESSORS = 4, RESIDENT = 4 /* blocks */ };

/* --- order -------------------------------------------------------------------------- */

/* Counts barriers, __syncwarps and fences of a launch and goes on in the next; an access is stamped with it. */
typedef uint32_t moment;

/* What is known to have happened: of a block, everything before a moment; of a warp, each lane's
 * work before a moment. Empty in all kernels whose blocks do not talk to each other. */
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

/* Lanes that meet; 64 bytes of each. Several may be open in a warp, of lanes that are not the same. */
struct meeting {
	unsigned mask, arrived, inside; /* inside: lanes that have not left yet */
	const char *what;
	size_t bytes;
	const void *first_at;
	alignas(16) unsigned char values[32][64];
};

struct requests; /* count.cc */

struct warp {
	std::shared_ptr<requests> asked; /* what was counted */
	std::vector<meeting *> open;     /* not all have arrived */
	std::vector<meeting *> spare;
	std::deque<meeting> all;
	moment together = 0; /* the last __syncwarp of all 32 lanes */
};

enum fibre_state { READY, AT_BARRIER, AT_WARP, DONE };

struct async_copy {
	void *to;
	const void *from;
	int bytes;
};

struct block;

struct fibre {
	unsigned thread;
	uint3 index; /* the same, as kernels ask for it */
	fibre_state state;
	const meeting *waits_for;
	context ctx;
	block *b;
	warp *w;
	void *stack;
	const void *waits_at;       /* the code that waits */
	bool fenced_now;            /* since the block's last barrier */
	bool waited;                /* for the work before an early launch */
	std::array<moment, 32> met; /* of each lane of the warp, what is known by __syncwarps of a part of it */
	knowledge known, pending, fenced;
	std::vector<async_copy> asked;              /* since the last commit */
	std::deque<std::vector<async_copy>> groups; /* unfinished */
};

struct shadow; /* check.cc */

struct block {
	uint3 index;
	uint32_t number;
	unsigned char *shared; /* SHARED_STRIDE bytes of address space */
	shadow *shared_shadow;
	moment began, together; /* together: the last barrier */
	int waiting = 0, done = 0;
	bool waited = false; /* a fibre did, before the last barrier */
	std::vector<fibre> fibres;
	std::vector<warp> warps;
	knowledge known, pending, fenced; /* of all its threads, as of the last barrier */
};

/* What a stream's last piece of work has touched: a kernel between two moments, a matrix product in ranges of
 * addresses. Copies and sets end before anything after them begins: nothing. */
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
extern previous_work *previous;  /* of the stream that runs */
extern previous_work overlapped; /* what the running launch may begin before the end of */

/* A kernel with its arguments, to be run once per thread: call(arguments). */
struct launch {
	const void *kernel;
	dim3 grid, block;
	size_t shared_bytes;
	void (*call)(const void *arguments);
	std::shared_ptr<void> arguments;
	size_t argument_bytes;
	bool early;       /* may begin before the launch before it has ended */
	bool cooperative; /* all blocks are resident */
	bool no_wait; /* compiled from PTX for devices before 9.0: wait_for_previous and let_next_begin do nothing */
};

/* The launch that runs, and its current thread. */
struct now_running {
	uintptr_t stack_low = 0, stack_bytes = 0; /* first: every access looks here */
	fibre *self = nullptr;
	block *b = nullptr;
	const launch *l = nullptr;
	uint32_t id = 0; /* block << 11 | thread << 1 */
	moment began = 1;
	bool moved = false; /* a fibre did more than poll */
	bool ahead = false; /* the thread may run while `overlapped` is unfinished */
};
extern thread_local now_running now;
extern moment present; /* of all launches, whichever host thread runs them */

/* Run all blocks of a launch to their end. */
void run(const launch &l);

/* order.cc */
void tick();
void order_barrier(block *b);
void order_meet(block *b, warp *w, size_t first, unsigned mask);
bool order_known(uint32_t block, unsigned thread, moment when);
void order_forget(const void *from, size_t bytes);

/* --- memory ---------------------------------------------------------------------------- */

struct allocation {
	unsigned char *base;
	size_t bytes;
	bool live, mapped; /* mapped: by the driver's functions */
	shadow *marks;
};

cudaError_t memory_allocate(void **out, size_t bytes);
cudaError_t memory_free(void *at);
void memory_forget_all();
void memory_forget_marks();
/* The same from the device's pool, which keeps the bytes of what was freed, for its next allocations, until it is trimmed
 * to `least` bytes, those of its allocations included. */
cudaError_t pool_allocate(void **out, size_t bytes);
cudaError_t pool_free(void *at);
void pool_trim(size_t least);
/* Memory of the driver's functions. */
void memory_add(void *at, size_t bytes);
void memory_remove(void *at);
/* Count bytes that are taken (or, negative, given back); false: the device has no more. */
bool memory_take(long long bytes);
size_t memory_left();
size_t memory_total();
/* The allocation, live or not, that holds this address or ends nearest before it; NULL: none. */
allocation *memory_find(const void *at);
bool memory_is_live(const void *at, size_t bytes);
/* Let the host touch device memory or not; kernels run between open and close. */
void memory_open(bool open);
void memory_report_leaks();

/* May the device give memory now? Planted faults are in runtime.cc. */
cudaError_t may_allocate();
/* Forget all that the driver's functions gave. */
void driver_reset();

/* --- checks ------------------------------------------------------------------------------ */

/* COPY: a write that is asked for and arrives later. */
enum access_kind { READ, WRITE, ATOMIC_READ, ATOMIC_WRITE, COPY };
/* The running thread touches memory in a way that the compiler does not report. */
void touch(const void *at, size_t bytes, access_kind kind, const void *code);
/* Memory that a copy or a matrix product will touch must be live: fails otherwise. */
void need_device(const void *at, size_t bytes, const char *what);
shadow *shadow_new(size_t bytes);
void shadow_free(shadow *s);

/* --- counts ------------------------------------------------------------------------------- */

extern bool counting;
/* A kernel's name with its template's arguments; it lives on. */
const char *short_name(const void *kernel);
void count_launch(const launch &l);
void count_launch_end();
/* A kernel's access to an allocation; touched: a word for each of the allocation's words, zeros at first. */
void count_access(uint32_t *touched, uintptr_t at, size_t offset, size_t bytes, access_kind kind, const void *code);
/* All other work; the name is kept as it is. */
void count_work(emulator_kind kind, const char *name, size_t read, size_t written, const unsigned grid[3] = nullptr,
                unsigned threads = 0, uint64_t flop = 0, unsigned processors = 0);

/* --- reports ------------------------------------------------------------------------------- */

/* "file:line" of an address in this plug-in's code, or its offset. */
std::string code_place(const void *code);
std::string kernel_name(const void *kernel);
void watch_faults(); /* stack overflows, and hosts that touch device memory */

/* --- the stream ------------------------------------------------------------------------------ */

/* Issue work to a stream, or to the graph that it records. */
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);
/* Called by work that runs: it is not done, since it waits for another process, and is to be called again. */
void wait_on();
/* Run what need not wait; a device works whether it is asked or not. */
void run_ready(cudaStream_t stream);
/* Run all that was issued. */
void finish_all();
/* The device of the thread. */
int current_device();
/* Is this the call that ADDITIVE_EMULATOR_FAULT names? */
bool is_planted(const char *what);

} // namespace emulator

#endif
