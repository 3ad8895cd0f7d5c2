/* The work of other threads that a thread may rely on.
 *
 * Accesses are stamped with a moment, which every barrier, __syncwarp and fence increments. An access of another thread
 * is ordered before the running one if it is
 *   - of an earlier launch;
 *   - of the same block, before the block's last barrier;
 *   - of the same warp, before a __syncwarp in which both took part, or that is known through other lanes that did;
 *     shuffles, votes, mma and ldmatrix let lanes meet too, but order no memory;
 *   - known: a thread released it (__threadfence, then an atomic or store_relaxed) and the running thread,
 *     or one of its block before a barrier, acquired it (an atomic or load_relaxed, then __threadfence).
 *
 * Knowledge is passed on as sets of "everything of that block, or lane, before that moment". A fence of one thread of a
 * block counts, after the next barrier, for all of them, which is slightly more than the memory model promises. */
#include "emulator.h"

#include <unordered_map>

namespace emulator {

static std::unordered_map<const void *, knowledge> released; /* by address, for this launch */
static moment released_for;

static std::unordered_map<const void *, knowledge> &releases()
{
	if (released_for != now.began)
		released.clear();
	released_for = now.began;
	return released;
}

void knowledge::add(const knowledge &other)
{
	for (const auto &[block, when] : other.blocks) {
		moment &mine = blocks[block];
		mine = std::max(mine, when);
	}
	for (const auto &[key, lanes] : other.warps) {
		auto &mine = warps[key];
		for (int i = 0; i < 32; i++)
			mine[i] = std::max(mine[i], lanes[i]);
	}
}

bool knowledge::covers(uint32_t block, unsigned thread, moment when) const
{
	auto b = blocks.find(block);
	if (b != blocks.end() && when < b->second)
		return true;
	auto w = warps.find((uint64_t)block << 5 | thread / 32);
	return w != warps.end() && when < w->second[thread % 32];
}

void tick()
{
	if (present < UINT32_MAX) /* from the last moment on all are equal, and no race is found */
		present++;
}

bool order_known(uint32_t block, unsigned thread, moment when)
{
	const fibre *f = now.self;
	if (!f->known.empty() && f->known.covers(block, thread, when))
		return true;
	return !f->b->known.empty() && f->b->known.covers(block, thread, when);
}

/* Everything that the running thread may release. */
static knowledge own()
{
	tick();
	fibre *f = now.self;
	knowledge k = f->b->known;
	k.add(f->known);
	k.blocks[f->b->number] = f->b->together;
	auto &lanes = k.warps[(uint64_t)f->b->number << 5 | f->thread / 32];
	for (int i = 0; i < 32; i++)
		lanes[i] = std::max(lanes[i], std::max(f->met[i], f->w->together));
	lanes[f->thread % 32] = present;
	return k;
}

void order_barrier(block *b)
{
	tick();
	b->together = present;
	bool fenced = false;
	for (fibre &f : b->fibres) {
		if (f.fenced_now) {
			fenced = true;
			b->fenced.add(f.fenced);
		}
		f.fenced_now = false;
		f.published = f.publishing_met = f.publishing;
		if (!f.known.empty())
			b->known.add(f.known);
		if (!f.pending.empty())
			b->pending.add(f.pending);
		for (knowledge *k : {&f.known, &f.pending, &f.fenced})
			if (!k->empty())
				*k = {};
	}
	if (fenced)
		b->fenced.blocks[b->number] = present;
}

void order_meet(block *b, warp *w, size_t first, unsigned mask)
{
	tick();
	if (mask == 0xffffffffu) {
		w->together = present;
		for (size_t i = first; i < first + 32 && i < b->fibres.size(); i++)
			b->fibres[i].publishing_met = b->fibres[i].publishing;
		return;
	}
	std::array<moment, 32> all = {};
	for (size_t i = 0; i < 32 && first + i < b->fibres.size(); i++)
		if (mask >> i & 1)
			for (int j = 0; j < 32; j++)
				all[j] = std::max(all[j], mask >> j & 1 ? present : b->fibres[first + i].met[j]);
	for (size_t i = 0; i < 32 && first + i < b->fibres.size(); i++)
		if (mask >> i & 1)
			b->fibres[first + i].met = all;
}

void order_forget(const void *from, size_t bytes)
{
	for (auto i = releases().begin(); i != released.end();)
		i = (uintptr_t)i->first - (uintptr_t)from < bytes ? released.erase(i) : std::next(i);
}

void order_release(const void *at)
{
	releases()[at].add(own());
}

void order_acquire(const void *at)
{
	auto seen = releases().find(at);
	if (seen != released.end())
		now.self->known.add(seen->second);
}

/* --- called by kernels ------------------------------------------------------------------ */

void fence()
{
	if (!checked || !now.self)
		return;
	fibre *f = now.self;
	f->known.add(f->pending);
	f->known.add(f->b->pending);
	f->fenced = own();
	f->fenced_now = true;
}

/* Acquire: work released at this address becomes known after a fence. */
static void see(const void *at)
{
	auto seen = releases().find(at);
	if (seen != released.end())
		now.self->pending.add(seen->second);
}

/* Release at this address all writes of the thread, or its block, before a fence. */
static void show(const void *at)
{
	const fibre *f = now.self;
	if (f->fenced.empty() && f->b->fenced.empty())
		return;
	knowledge &k = releases()[at];
	k.add(f->fenced);
	k.add(f->b->fenced);
}

void atomic(void *at, void *old, size_t bytes)
{
	if (now.self) {
		now.moved = true;
		if (checked) {
			touch(at, bytes, ATOMIC_WRITE, __builtin_return_address(0));
			see(at);
			show(at);
		}
	}
	memcpy(old, at, bytes);
}

void atomic_end(void *at, const void *value, size_t bytes)
{
	memcpy(at, value, bytes);
}

/* Replace the word: earlier releases at this address do not belong to the new value. */
void store_relaxed(unsigned long long *at, unsigned long long x)
{
	now.moved = true;
	if (checked) {
		touch(at, sizeof *at, ATOMIC_WRITE, __builtin_return_address(0));
		releases().erase(at);
		show(at);
	}
	*at = x;
}

unsigned long long load_relaxed(const unsigned long long *at)
{
	if (checked) {
		touch(at, sizeof *at, ATOMIC_READ, __builtin_return_address(0));
		see(at);
	}
	return *at;
}

/* An acquire of the sum sees the releases of all who added to it. */
void release_add(unsigned *at, unsigned x)
{
	now.moved = true;
	count_signal(at);
	if (checked) {
		touch(at, sizeof *at, ATOMIC_WRITE, __builtin_return_address(0));
		order_release(at);
	}
	*at += x;
}

/* As load_relaxed, in a loop that waits. */
unsigned poll_relaxed(const unsigned *at)
{
	poll();
	if (checked) {
		touch(at, sizeof *at, ATOMIC_READ, __builtin_return_address(0));
		see(at);
	}
	return *at;
}

unsigned acquire(const unsigned *at)
{
	poll();
	if (checked) {
		touch(at, sizeof *at, ATOMIC_READ, __builtin_return_address(0));
		order_acquire(at);
	}
	return *at;
}

} // namespace emulator
