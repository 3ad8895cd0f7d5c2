/* Launches: blocks, warps and threads.
 *
 * Blocks of a launch start in order, RESIDENT of them at a time, so that a block which waits for an earlier one finds
 * it unfinished. All blocks of a cooperative launch are resident (runtime.cc), so they may wait for each other.
 * A fibre runs until it waits; then the next one that can run does. ADDITIVE_EMULATOR_ORDER chooses the next: forward
 * (by block and thread), reverse, or shuffle[:seed], which draws a new order every turn and lets some blocks miss
 * turns. */
#include "emulator.h"

#include <stdlib.h>
#include <sys/mman.h>

namespace emulator {

enum { IDLE_TURNS = 20000 };

thread_local now_running now;
moment present = 1;
previous_work *previous, overlapped;
static context scheduler;
static std::vector<void *> spare_stacks;
static unsigned char *shared_space;
static shadow *shared_shadows[PROCESSORS_MOST];
static bool slot_taken[PROCESSORS_MOST];

unsigned processors()
{
	const char *value = getenv("ADDITIVE_EMULATOR_PROCESSORS");
	const long n = value ? strtol(value, nullptr, 10) : (long)RESIDENT;
	return n >= 1 && n <= PROCESSORS_MOST ? (unsigned)n : (unsigned)RESIDENT;
}

uint3 thread_index()
{
	return now.self->index;
}
uint3 block_index()
{
	return now.b->index;
}
dim3 block_dimension()
{
	return now.l->block;
}
dim3 grid_dimension()
{
	return now.l->grid;
}
unsigned char *shared_address()
{
	return now.b->shared;
}
uint64_t shared_offset(const void *at)
{
	return (uint64_t)((const unsigned char *)at - now.b->shared);
}

static inline __attribute__((always_inline)) void wait_as(fibre_state state, const void *code)
{
	fibre *self = now.self;
	self->state = state;
	self->waits_at = code;
	context_switch(&self->ctx, &scheduler);
}

/* The page at the lower end is inaccessible, except of more stacks than a process may have mappings for. */
static void *take_stack()
{
	enum { GUARDED = 16384 };
	static int stacks;
	if (!spare_stacks.empty()) {
		void *stack = spare_stacks.back();
		spare_stacks.pop_back();
		return stack;
	}
	unsigned char *stack = (unsigned char *)mmap(nullptr, STACK_BYTES + 4096, PROT_READ | PROT_WRITE,
	                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (stack == MAP_FAILED || (stacks++ < GUARDED && mprotect(stack, 4096, PROT_NONE) != 0))
		fail("no memory for a stack");
	return stack + 4096;
}

static void fibre_run(void *)
{
	now.l->call(now.l->arguments.get());
	if (now.l->early && !now.self->waited && !now.b->waited)
		fail("early launch: the thread ends without wait_for_previous");
	if (!now.self->products.empty())
		fail("wgmma: the thread ends without a wait for its products");
	if (now.self->arrivals != now.self->waits)
		fail("cluster: the thread ends without a wait for the barrier at which it arrived");
	wait_as(DONE, nullptr);
	abort();
}

/* --- barriers and meetings --------------------------------------------------------------- */

static void release_barrier(block *b)
{
	if (b->waiting == 0 || b->waiting + b->done < (int)b->fibres.size())
		return;
	if (b->done > 0) {
		const fibre *waiting = nullptr, *ended = nullptr;
		for (const fibre &f : b->fibres) {
			if (f.state == AT_BARRIER && !waiting)
				waiting = &f;
			if (f.state == DONE && !ended)
				ended = &f;
		}
		now.b = b;
		fail("divergent barrier: in block %u, %d threads (thread %u first) wait at a barrier, which %d others "
		     "(thread %u first) have ended without\n  at %s",
		     b->number, b->waiting, waiting->thread, b->done, ended->thread, code_place(waiting->waits_at).c_str());
	}
	b->waiting = 0;
	now.moved = true;
	if (checked)
		order_barrier(b);
	for (fibre &f : b->fibres) {
		b->waited = b->waited || f.waited;
		if (f.state == AT_BARRIER)
			f.state = READY;
	}
}

void barrier()
{
	now.b->waiting++;
	wait_as(AT_BARRIER, __builtin_return_address(0));
}

/* --- clusters ------------------------------------------------------------------------------ */

fibre *in_cluster(uint32_t number, unsigned thread)
{
	for (block *b : now.b->in->blocks)
		if (b->number == number)
			return &b->fibres[thread];
	return nullptr;
}

bool cluster_orders(const fibre *f, const fibre *other, moment when)
{
	return f->waits > 0 && other->arrivals >= f->waits && when < other->arrived[f->waits % 2];
}

/* Threads that have ended count as arrived. */
static void release_cluster(cluster *c)
{
	if (c->arrived == 0 || c->arrived + c->done < c->threads)
		return;
	c->arrived = 0;
	c->rounds++;
	now.moved = true;
	for (block *b : c->blocks)
		for (fibre &f : b->fibres)
			if (f.state == AT_CLUSTER)
				f.state = READY;
}

/* Orders accesses before it, not those between it and the wait. */
void cluster_arrive()
{
	fibre *f = now.self;
	if (f->arrivals != f->waits)
		fail("cluster: the thread arrives again before it waits\n  at %s", code_place(__builtin_return_address(0)).c_str());
	tick();
	f->arrivals++;
	f->arrived[f->arrivals % 2] = present;
	f->b->in->arrived++;
	release_cluster(f->b->in.get());
}

void cluster_wait()
{
	const void *code = __builtin_return_address(0);
	fibre *f = now.self;
	if (f->arrivals == f->waits)
		fail("cluster: the thread waits without having arrived\n  at %s", code_place(code).c_str());
	if (f->b->in->rounds < f->arrivals)
		wait_as(AT_CLUSTER, code);
	f->waits++;
}

/* --- copies between the blocks of a cluster ------------------------------------------------- */

static copy_barrier &barrier_at(block *b, const void *at, const void *code)
{
	touch(at, 8, ATOMIC_READ, code);
	auto found = b->copy_barriers.find(at);
	if (found == b->copy_barriers.end())
		fail("cluster: %p is no barrier of block %u\n  at %s", at, b->number, code_place(code).c_str());
	return found->second;
}

static void complete_phase(copy_barrier *c)
{
	if (c->missing > 0 || c->bytes != 0)
		return;
	*c = {c->threads, c->threads, 0, c->phase + 1};
	now.moved = true;
}

void copy_barrier_init(void *at, unsigned threads)
{
	touch(at, 8, WRITE, __builtin_return_address(0));
	now.b->copy_barriers[at] = {(int)threads, (int)threads};
}

/* One thread of the phase; `what` names more than it counts. */
static copy_barrier &count_thread(void *at, const char *what, const void *code)
{
	copy_barrier &c = barrier_at(now.b, at, code);
	if (--c.missing < 0)
		fail("cluster: %s in a phase\n  at %s", what, code_place(code).c_str());
	return c;
}

void copy_barrier_arrive(void *at)
{
	copy_barrier &c = count_thread(at, "too many threads arrive", __builtin_return_address(0));
	const size_t first = now.self->thread / 32 * 32;
	for (size_t i = first; i < first + 32 && i < now.b->fibres.size(); i++)
		now.b->fibres[i].published = now.b->fibres[i].publishing_met;
	now.self->published = now.self->publishing;
	if (checked)
		order_release(at);
	complete_phase(&c);
}

void copy_barrier_expect(void *at, unsigned bytes)
{
	const void *code = __builtin_return_address(0);
	copy_barrier &c = count_thread(at, "bytes are expected twice", code);
	c.bytes += bytes;
	complete_phase(&c);
}

/* The bytes arrive when a thread of the other block waits for them, not before. Until then they may not be changed. */
void copy_to_block(void *from, unsigned bytes, void *barrier, unsigned rank)
{
	const void *code = __builtin_return_address(0);
	block *b = now.b, *to = rank < b->in->blocks.size() ? b->in->blocks[rank] : nullptr;
	if (!to || to == b)
		fail("cluster: a copy to rank %u of %zu blocks\n  at %s", rank, b->in->blocks.size(), code_place(code).c_str());
	if (now.self->waits == 0)
		fail("cluster: a copy before a barrier of the cluster, so that block %u may not have begun\n  at %s", to->number,
		     code_place(code).c_str());
	if (to->done == (int)to->fibres.size())
		fail("cluster: a copy to block %u, which has ended\n  at %s", to->number, code_place(code).c_str());
	if ((uintptr_t)from % 16 != 0 || bytes % 16 != 0)
		fail("misaligned: a copy of %u bytes at %p\n  at %s", bytes, from, code_place(code).c_str());
	unsigned char *into = to->shared + shared_offset(from);
	touch_published(from, bytes, code);
	touch_of(to, into, bytes, COPY, code);
	touch_of(to, to->shared + shared_offset(barrier), 8, ATOMIC_READ, code);
	if (checked)
		order_release(to->shared + shared_offset(barrier));
	const unsigned char *first = (const unsigned char *)from;
	b->in->copies.push_back({b, to, first, into, to->shared + shared_offset(barrier), {first, first + bytes}, code});
}

/* The bytes arrive when a thread waits for them, not before. Until then they may not be changed. */
void copy_bulk(void *to, const void *from, unsigned bytes, void *barrier)
{
	const void *code = __builtin_return_address(0);
	block *b = now.b;
	if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0 || bytes % 16 != 0)
		fail("misaligned: a bulk copy of %u bytes from %p to %p\n  at %s", bytes, from, to, code_place(code).c_str());
	if ((uintptr_t)to - (uintptr_t)b->shared >= SHARED_STRIDE)
		fail("a bulk copy to %p, which is not in shared memory\n  at %s", to, code_place(code).c_str());
	barrier_at(b, barrier, code);
	touch(from, bytes, READ, code);
	touch(to, bytes, COPY, code);
	if (checked)
		order_release(barrier);
	const unsigned char *first = (const unsigned char *)from;
	b->in->copies.push_back({b, b, first, (unsigned char *)to, barrier, {first, first + bytes}, code});
}

static void arrive(const block_copy &c)
{
	if (memcmp(c.from, c.bytes.data(), c.bytes.size()) != 0)
		fail("cluster: the bytes of a copy were changed before it arrived\n  the copy at %s", code_place(c.code).c_str());
	touch(c.to, c.bytes.size(), WRITE, COPIED);
	memcpy(c.to, c.from, c.bytes.size());
	if (checked)
		order_release(c.barrier);
}

void copy_barrier_wait(void *at, unsigned parity)
{
	const void *code = __builtin_return_address(0);
	copy_barrier &c = barrier_at(now.b, at, code);
	std::vector<block_copy> &copies = now.b->in->copies;
	while (c.phase % 2 == parity) {
		size_t i = 0;
		while (i < copies.size() && copies[i].barrier != at)
			i++;
		if (i == copies.size()) {
			poll();
			continue;
		}
		const block_copy arrived = std::move(copies[i]);
		copies.erase(copies.begin() + (long)i);
		arrive(arrived);
		c.bytes -= (long)arrived.bytes.size();
		complete_phase(&c);
	}
	if (checked)
		order_acquire(at);
}

static void check_copies(block *b)
{
	for (const block_copy &c : b->in->copies)
		if (c.from_block == b || c.to_block == b) {
			now.b = b;
			fail("cluster: block %u ends before a copy %s it has arrived\n  the copy at %s", b->number,
			     c.to_block == b ? "to" : "from", code_place(c.code).c_str());
		}
}

/* The meeting in which this lane takes part. */
static meeting *come(warp *w, unsigned lane, unsigned mask, const char *what, size_t bytes, const void *code)
{
	if (!(mask >> lane & 1))
		fail("%s: lane %u is not in its own mask %08x\n  at %s", what, lane, mask, code_place(code).c_str());
	if (bytes > sizeof ((meeting *)0)->values[0])
		fail("%s: values of %zu bytes", what, bytes);
	for (meeting *m : w->open) {
		if (!(m->mask & mask))
			continue;
		if (m->mask != mask || (m->what != what && strcmp(m->what, what) != 0) || m->bytes != bytes)
			fail("mismatched meeting: lane %u is at %s (mask %08x, %zu bytes), others of its warp at %s (mask %08x, %zu bytes)\n"
			     "  at %s\n  the others at %s",
			     lane, what, mask, bytes, m->what, m->mask, m->bytes, code_place(code).c_str(), code_place(m->first_at).c_str());
		return m;
	}
	if (w->spare.empty()) {
		w->all.emplace_back();
		w->spare.push_back(&w->all.back());
	}
	meeting *m = w->spare.back();
	w->spare.pop_back();
	m->mask = m->inside = mask;
	m->arrived = 0;
	m->what = what;
	m->bytes = bytes;
	m->first_at = code;
	w->open.push_back(m);
	return m;
}

static void leave(warp *w, meeting *m, unsigned lane)
{
	m->inside &= ~(1u << lane);
	if (m->inside == 0)
		w->spare.push_back(m);
}

/* Returns when all have arrived; every lane then has to call leave(). finish, if set, is called once, by the last to
 * arrive. orders: later accesses of the others see a lane's earlier writes. */
static inline __attribute__((always_inline)) meeting *meet(unsigned mask, const char *what, const void *in, size_t bytes, const void *code,
                     bool orders = false, void (*finish)(unsigned char (*values)[64]) = nullptr)
{
	fibre *self = now.self;
	block *b = now.b;
	warp *w = self->w;
	unsigned lane = self->thread % 32;
	meeting *m = come(w, lane, mask, what, bytes, code);
	memcpy(m->values[lane], in, bytes);
	m->arrived |= 1u << lane;
	self->waits_for = m;
	if (m->arrived != mask) {
		wait_as(AT_WARP, code);
		return m;
	}
	if (finish)
		finish(m->values);
	w->open.erase(std::find(w->open.begin(), w->open.end(), m));
	now.moved = true;
	size_t first = self->thread / 32 * 32;
	if (checked && orders)
		order_meet(b, w, first, mask);
	for (size_t i = first; i < first + 32 && i < b->fibres.size(); i++)
		if (b->fibres[i].state == AT_WARP && b->fibres[i].waits_for == m)
			b->fibres[i].state = READY;
	return m;
}

void sync_warp(unsigned mask)
{
	const char nothing = 0;
	meeting *m = meet(mask, "__syncwarp", &nothing, 1, __builtin_return_address(0), true);
	leave(now.self->w, m, now.self->thread % 32);
}

void exchange(unsigned mask, const char *what, const void *in, void *out, size_t bytes, int from)
{
	const void *code = __builtin_return_address(0);
	meeting *m = meet(mask, what, in, bytes, code);
	from &= 31;
	if (!(mask >> from & 1))
		fail("%s: lane %d is read but not in the mask %08x\n  at %s", what, from, mask, code_place(code).c_str());
	memcpy(out, m->values[from], bytes);
	leave(now.self->w, m, now.self->thread % 32);
}

void gather(unsigned mask, const char *what, const void *in, void *all, size_t bytes)
{
	meeting *m = meet(mask, what, in, bytes, __builtin_return_address(0));
	for (int i = 0; i < 32; i++)
		memcpy((char *)all + (size_t)i * bytes, m->values[i], bytes);
	leave(now.self->w, m, now.self->thread % 32);
}

/* --- mma.m16n8k16: fragments as the PTX ISA has them ------------------------------------------ */

struct mma_lane {
	unsigned a[4], b[2];
	float d[4];
};

static void multiply(unsigned char (*all)[64])
{
	float a[16][16], b[16][8];
	auto number = [](unsigned word, int half) { return __uint_as_float((half ? word >> 16 : word & 0xffff) << 16); };
	for (int lane = 0; lane < 32; lane++) {
		mma_lane *l = (mma_lane *)all[lane];
		for (int half = 0; half < 2; half++) {
			for (int i = 0; i < 4; i++)
				a[lane / 4 + 8 * (i % 2)][2 * (lane % 4) + half + 8 * (i / 2)] = number(l->a[i], half);
			for (int i = 0; i < 2; i++)
				b[2 * (lane % 4) + half + 8 * i][lane / 4] = number(l->b[i], half);
		}
	}
	for (int lane = 0; lane < 32; lane++) {
		mma_lane *l = (mma_lane *)all[lane];
		for (int i = 0; i < 4; i++) {
			const float *row = a[lane / 4 + 8 * (i / 2)];
			int column = 2 * (lane % 4) + i % 2;
			double sum = l->d[i];
			for (int k = 0; k < 16; k++)
				sum += (double)row[k] * (double)b[k][column];
			l->d[i] = (float)sum;
		}
	}
}

void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2])
{
	mma_lane mine;
	memcpy(mine.a, a, sizeof mine.a);
	memcpy(mine.b, b, sizeof mine.b);
	memcpy(mine.d, d, sizeof mine.d);
	meeting *m = meet(0xffffffffu, "mma", &mine, sizeof mine, __builtin_return_address(0), false, multiply);
	unsigned lane = now.self->thread % 32;
	memcpy(d, ((mma_lane *)m->values[lane])->d, sizeof mine.d);
	leave(now.self->w, m, lane);
}

/* --- cp.async ------------------------------------------------------------------------------------ */

/* The bytes arrive when their thread waits for them, not before. For the checks the copy writes twice, when it is
 * requested and when it arrives. So one of the two reveals a thread that reads in between without being ordered. */
void copy_async(void *to, const void *from, int bytes, int size)
{
	const void *code = __builtin_return_address(0);
	if (checked) {
		if ((uintptr_t)to % (unsigned)size != 0 || (bytes > 0 && (uintptr_t)from % (unsigned)size != 0))
			fail("misaligned: an asynchronous copy from %p to %p\n  at %s", from, to, code_place(code).c_str());
		touch(from, (size_t)bytes, READ, code);
		if ((uintptr_t)to - (uintptr_t)now.b->shared >= SHARED_STRIDE)
			fail("an asynchronous copy to %p, which is not in shared memory\n  at %s", to, code_place(code).c_str());
		touch(to, (size_t)size, COPY, code);
	}
	now.self->asked.push_back({to, from, bytes, size});
}

void copy_commit()
{
	now.self->groups.push_back(std::move(now.self->asked));
	now.self->asked.clear();
}

void copy_wait(int groups)
{
	const void *code = __builtin_return_address(0);
	while ((int)now.self->groups.size() > groups) {
		for (const async_copy &c : now.self->groups.front()) {
			touch(c.to, (size_t)c.size, WRITE, code);
			memcpy(c.to, c.from, (size_t)c.bytes);
			memset((char *)c.to + c.bytes, 0, (size_t)(c.size - c.bytes));
		}
		now.self->groups.pop_front();
	}
}

void poll()
{
	wait_as(READY, __builtin_return_address(0));
}

/* --- programmatic dependent launch ------------------------------------------------------------- */

void wait_for_previous()
{
	if (now.l->no_wait)
		return;
	now.self->waited = true;
	now.ahead = false;
}

/* Only after the wait. Otherwise three kernels might run at once, and a wait for the second would not cover the
 * first. */
void let_next_begin()
{
	if (now.l->early && !now.l->no_wait && !now.self->waited && !now.b->waited)
		fail("early launch: let_next_begin before wait_for_previous\n  at %s", code_place(__builtin_return_address(0)).c_str());
}

/* --- running a launch ----------------------------------------------------------------------- */

static int take_slot(block *b)
{
	if (!shared_space) {
		void *at = mmap(nullptr, PROCESSORS_MOST * SHARED_STRIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (at == MAP_FAILED)
			fail("no memory for shared memory");
		shared_space = (unsigned char *)at;
	}
	int slot = 0;
	while (slot_taken[slot])
		slot++;
	slot_taken[slot] = true;
	b->shared = shared_space + (size_t)slot * SHARED_STRIDE;
	if (checked && !shared_shadows[slot])
		shared_shadows[slot] = shadow_new(SHARED_STRIDE);
	b->shared_shadow = shared_shadows[slot];
	return slot;
}

static std::unique_ptr<block> block_start(const launch &l, const std::shared_ptr<cluster> &in, uint3 index)
{
	auto b = std::make_unique<block>();
	size_t threads = l.block.x;
	b->index = index;
	b->number = ((index.z * l.grid.y + index.y) * l.grid.x + index.x) & ((1u << 21) - 1);
	b->in = in;
	in->blocks.push_back(b.get());
	in->threads += (int)threads;
	take_slot(b.get());
	memset(b->shared, 0xff, l.shared_bytes);
	tick();
	b->began = b->together = present;
	b->fibres.resize(threads);
	b->warps.resize((threads + 31) / 32);
	for (size_t t = 0; t < threads; t++) {
		fibre &f = b->fibres[t];
		f.thread = (unsigned)t;
		f.index = {f.thread, 0, 0};
		f.state = READY;
		f.b = b.get();
		f.w = &b->warps[t / 32];
		f.fenced_now = f.waited = f.products_fenced = false;
		f.committed = 0;
		f.publishing = f.published = 0;
		f.arrivals = f.waits = 0;
		f.arrived[0] = f.arrived[1] = 0;
		f.met = {};
		f.stack = take_stack();
		/* Stacks are whole pages apart; without this shift the tops of all would share a few lines of the
		 * first-level cache. */
		context_make(&f.ctx, f.stack, STACK_BYTES - t % 32 * 128, fibre_run, nullptr);
	}
	return b;
}

static void block_end(block *b)
{
	if (checked)
		order_forget(b->shared, SHARED_STRIDE);
	slot_taken[(size_t)(b->shared - shared_space) / SHARED_STRIDE] = false;
	for (fibre &f : b->fibres)
		spare_stacks.push_back(f.stack);
}

static void fibre_turn(block *b, fibre *f)
{
	now.self = f;
	now.b = b;
	now.stack_low = (uintptr_t)f->stack;
	now.stack_bytes = STACK_BYTES;
	now.id = b->number << 11 | f->thread << 1;
	now.ahead = overlapped.any() && !f->waited && !b->waited;
	context_switch(&scheduler, &f->ctx);
	now.self = nullptr;
	now.stack_bytes = 0;
	if (f->state == DONE) {
		now.moved = true;
		b->in->done++;
		if (++b->done == (int)b->fibres.size())
			check_copies(b);
		release_cluster(b->in.get());
	}
	release_barrier(b);
}

/* The order of turns. */
struct order {
	enum { FORWARD, REVERSE, SHUFFLE } how = FORWARD;
	uint64_t seed = 1;
	std::vector<unsigned> turn;

	order()
	{
		const char *s = getenv("ADDITIVE_EMULATOR_ORDER");
		if (!s || strcmp(s, "forward") == 0)
			return;
		if (strcmp(s, "reverse") == 0)
			how = REVERSE;
		else if (strncmp(s, "shuffle", 7) == 0 && (s[7] == '\0' || s[7] == ':'))
			how = SHUFFLE;
		else
			fail("ADDITIVE_EMULATOR_ORDER=%s: forward, reverse, shuffle or shuffle:seed", s);
		if (how == SHUFFLE && s[7])
			seed = strtoull(s + 8, nullptr, 10) * 2 + 1;
	}
	unsigned random(unsigned below)
	{
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		return (unsigned)((seed >> 33) % below);
	}
	/* True for most blocks in a turn, so that some run far ahead of others. */
	bool leaves_out()
	{
		return how == SHUFFLE && random(4) != 0;
	}
	const std::vector<unsigned> &of(size_t n)
	{
		if (turn.size() != n || how == SHUFFLE) {
			turn.resize(n);
			for (size_t i = 0; i < n; i++)
				turn[i] = (unsigned)(how == REVERSE ? n - 1 - i : i);
			for (size_t i = n; how == SHUFFLE && i > 1; i--)
				std::swap(turn[i - 1], turn[random((unsigned)i)]);
		}
		return turn;
	}
};

/* Run every fibre that can run; false if none could. */
static bool block_turn(block *b, order *o)
{
	bool any = false;
	for (unsigned t : o->of(b->fibres.size()))
		if (b->fibres[t].state == READY) {
			any = true;
			fibre_turn(b, &b->fibres[t]);
		}
	return any;
}

static void report_stuck(const std::vector<std::unique_ptr<block>> &blocks, const char *how)
{
	const block *b = blocks[0].get();
	const fibre *first = nullptr;
	int at_barrier = 0, at_warp = 0, polling = 0;
	for (const fibre &f : b->fibres) {
		at_barrier += f.state == AT_BARRIER || f.state == AT_CLUSTER;
		at_warp += f.state == AT_WARP;
		polling += f.state == READY;
		if (!first && f.state != DONE && f.state != AT_BARRIER)
			first = &f;
	}
	now.b = blocks[0].get();
	fail("%s: of %zu threads of block %u, %d wait at a barrier, %d for lanes of their warp, %d poll, %d have ended; thread %u waits\n"
	     "  at %s",
	     how, b->fibres.size(), b->number, at_barrier, at_warp, polling, b->done, first ? first->thread : 0,
	     first ? code_place(first->waits_at).c_str() : "a barrier");
}

/* Moments have run out: forget all accesses and restart the count. */
static void restart_moments()
{
	memory_forget_marks();
	for (shadow *&s : shared_shadows) {
		shadow_free(s);
		s = nullptr;
	}
	present = 1;
	if (previous)
		*previous = {};
}

typedef std::vector<std::unique_ptr<block>> resident_blocks;

static void cluster_start(const launch &l, unsigned number, resident_blocks *to)
{
	const dim3 &each = l.cluster;
	const unsigned across = l.grid.x / each.x, down = l.grid.y / each.y, x = number % across * each.x,
	               y = number / across % down * each.y, z = number / across / down * each.z;
	const auto in = std::make_shared<cluster>();
	for (unsigned i = 0; i < each.x * each.y * each.z; i++)
		to->push_back(block_start(l, in, {x + i % each.x, y + i / each.x % each.y, z + i / each.x / each.y}));
}

void run(const launch &l)
{
	order o, blocks_order = o;
	const unsigned each = l.cluster.x * l.cluster.y * l.cluster.z, total = l.grid.x * l.grid.y * l.grid.z / each;
	const unsigned resident = l.cooperative ? processors() : (unsigned)RESIDENT;
	unsigned next = 0, idle = 0;
	resident_blocks blocks;
	watch_faults();
	now.l = &l;
	tick();
	if (present > UINT32_MAX / 2)
		restart_moments();
	now.began = present;
	overlapped = l.early && previous ? *previous : previous_work();
	count_launch(l);
	while (next < total || !blocks.empty()) {
		while (next < total && blocks.size() + each <= resident)
			cluster_start(l, next++, &blocks);
		bool any = false;
		now.moved = false;
		for (unsigned i : blocks_order.of(blocks.size()))
			any = blocks_order.leaves_out() || block_turn(blocks[i].get(), &o) || any;
		for (size_t i = blocks.size(); i-- > 0;)
			if (blocks[i]->in->done == blocks[i]->in->threads) {
				block_end(blocks[i].get());
				blocks.erase(blocks.begin() + (long)i);
			}
		if (!any && !blocks.empty())
			report_stuck(blocks, "stuck");
		idle = now.moved ? 0 : idle + 1;
		if (idle > IDLE_TURNS)
			report_stuck(blocks, "deadlock: every thread polls and none goes on");
	}
	now.l = nullptr;
	now.b = nullptr;
	count_launch_end();
	tick();
	if (previous)
		*previous = {now.began, present, {}};
}

} // namespace emulator
