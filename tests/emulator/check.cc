/* Every load and store of a kernel (checked build).
 *
 * The compiler's thread sanitizer is used only for its calls: __tsan_read4(address) and similar ones come before every
 * access, and we define them. An access must be in the thread's own stack, in the block's shared memory, in one live
 * allocation, or in the launch's arguments; reads may also be in this plug-in's constants.
 *
 * Each word of shared and device memory has a cell that remembers its last write and its last reads:
 *   read[0]  the last              read[1]  the last before it of another lane of the same warp
 *   read[2]  ... of another warp of the same block             read[3]  ... of another block
 *
 * Barriers and __syncwarps of whole warps order all earlier accesses or none, so these four represent all earlier
 * reads. A write that is unordered with any read is unordered with one of the four. __syncwarps of parts of a warp, and
 * knowledge by release and acquire, order only some accesses, so a later, ordered read can hide a race there. Words
 * that are accessed in parts have a cell for each byte.
 *
 * A cell takes 64 bytes per word that is touched, and 256 more where a word is touched in parts. One core of an AMD
 * EPYC (Zen 5) makes 55 million accesses of device memory a second, and 211 million in the plain build (256 threads per
 * block). */
#include "emulator.h"

#include <link.h>
#include <stdio.h>
#include <sys/mman.h>

#include <string>

namespace emulator {

/* A stamp: moment << 32 | block << 11 | thread << 1 | atomic; 0: never. */
typedef uint64_t stamp;
enum { NUMBER_BITS = 21 };

struct cell {
	stamp write, read[4];
	uint32_t write_code, read_code[4]; /* offsets of the code in this plug-in */
	uint32_t parts;                    /* 1 + the index of its four cells in `parts`; 0: whole */
};
static_assert(sizeof(cell) == 64, "a cell is a cache line");

struct shadow {
	cell *cells;
	size_t mapped;
	uint32_t *touched; /* count.cc's words; NULL: never counted */
	std::deque<std::array<cell, 4>> parts;
	std::vector<uint32_t> spare;
};

static uintptr_t code_base()
{
	static const uintptr_t base = []() {
		Dl_info info;
		return dladdr((const void *)&shadow_new, &info) ? (uintptr_t)info.dli_fbase : 0;
	}();
	return base;
}

static void *zeros(size_t bytes)
{
	void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		fail("no address space for %zu bytes of checks", bytes);
	return at;
}

shadow *shadow_new(size_t bytes)
{
	shadow *s = new shadow();
	s->mapped = (bytes + 3) / 4 * sizeof(cell);
	s->cells = (cell *)zeros(s->mapped);
	return s;
}

static size_t touched_bytes(const shadow *s)
{
	return s->mapped / sizeof(cell) * sizeof *s->touched;
}

void shadow_free(shadow *s)
{
	if (!s)
		return;
	munmap(s->cells, s->mapped);
	if (s->touched)
		munmap(s->touched, touched_bytes(s));
	delete s;
}

/* --- the memory of an address ----------------------------------------------------------------- */

struct place {
	shadow *marks;
	size_t offset;
	const allocation *memory; /* NULL: shared memory of a block that began at `since` */
	moment since;
};

/* True if the address is in a segment of this plug-in that no kernel may write. */
static bool is_constant(uintptr_t at, size_t bytes)
{
	static const std::vector<std::pair<uintptr_t, uintptr_t>> segments = []() {
		std::vector<std::pair<uintptr_t, uintptr_t>> out;
		dl_iterate_phdr(
		    [](dl_phdr_info *info, size_t, void *to) {
			    uintptr_t here = (uintptr_t)&shadow_new;
			    bool ours = false;
			    std::vector<std::pair<uintptr_t, uintptr_t>> found;
			    for (int i = 0; i < info->dlpi_phnum; i++) {
				    const ElfW(Phdr) &h = info->dlpi_phdr[i];
				    uintptr_t from = info->dlpi_addr + h.p_vaddr, end = from + h.p_memsz;
				    if (h.p_type == PT_LOAD)
					    ours = ours || (here >= from && here < end);
				    if ((h.p_type == PT_LOAD && !(h.p_flags & PF_W)) || h.p_type == PT_GNU_RELRO)
					    found.push_back({from, end});
			    }
			    if (ours)
				    *(std::vector<std::pair<uintptr_t, uintptr_t>> *)to = found;
			    return (int)ours;
		    },
		    &out);
		return out;
	}();
	for (const auto &s : segments)
		if (at >= s.first && at + bytes <= s.second)
			return true;
	return false;
}

static const char *verb(access_kind kind)
{
	return kind == READ ? "read" : kind == WRITE || kind == COPY ? "write" : kind == ATOMIC_READ ? "relaxed load" : "atomic operation";
}

[[noreturn]] static void fail_outside(uintptr_t at, size_t bytes, access_kind kind, const void *code)
{
	std::string where = code_place(code);
	const block *b = now.b;
	if (at - (uintptr_t)b->shared < SHARED_STRIDE)
		fail("out of bounds: %s of %zu bytes at shared memory + %zu, of which the block has %zu\n  at %s", verb(kind), bytes,
		     (size_t)(at - (uintptr_t)b->shared), now.l->shared_bytes, where.c_str());
	if (const allocation *m = memory_find((const void *)at)) {
		size_t offset = at - (uintptr_t)m->base;
		if (!m->live && offset < m->bytes)
			fail("freed memory: %s of %zu bytes at an allocation of %zu bytes (%p) + %zu, which was freed\n  at %s", verb(kind),
			     bytes, m->bytes, (void *)m->base, offset, where.c_str());
		if (offset < m->bytes + (1 << 20))
			fail("out of bounds: %s of %zu bytes at an allocation of %zu bytes (%p) + %zu\n  at %s", verb(kind), bytes, m->bytes,
			     (void *)m->base, offset, where.c_str());
	}
	fail("%s memory: %s of %zu bytes at %p, which is no device memory\n  at %s", at < 4096 ? "null" : "host", verb(kind), bytes,
	     (void *)at, where.c_str());
}

static bool find(uintptr_t at, size_t bytes, access_kind kind, const void *code, place *out)
{
	static allocation *recent[256]; /* by page; only one host thread at a time is in here */
	allocation *&last = recent[at >> 12 & 255];
	uintptr_t offset = at - (uintptr_t)now.b->shared;
	if (offset < SHARED_STRIDE) {
		if (offset + bytes > now.l->shared_bytes)
			fail_outside(at, bytes, kind, code);
		*out = {now.b->shared_shadow, offset, nullptr, now.b->began};
		return true;
	}
	if (!last || at - (uintptr_t)last->base >= last->bytes || !last->live)
		last = memory_find((const void *)at);
	if (last && last->live && at - (uintptr_t)last->base + bytes <= last->bytes) {
		if (!last->marks)
			last->marks = shadow_new(last->bytes);
		*out = {last->marks, at - (uintptr_t)last->base, last, now.began};
		return true;
	}
	if (kind == READ && at - (uintptr_t)now.l->arguments.get() < now.l->argument_bytes)
		return false;
	if (kind == READ && is_constant(at, bytes))
		return false;
	fail_outside(at, bytes, kind, code);
}

/* --- races ----------------------------------------------------------------------------------- */

static inline uint32_t number_of(stamp s)
{
	return (uint32_t)s >> 11;
}
static inline unsigned thread_of(stamp s)
{
	return (unsigned)s >> 1 & 1023;
}
static inline moment when_of(stamp s)
{
	return (moment)(s >> 32);
}
static inline bool is_mine(stamp s)
{
	return (((uint32_t)s ^ now.id) & ~1u) == 0;
}

/* True if the access is ordered before the running one. since: older accesses came before the launch or, in shared
 * memory, before the block. */
static inline bool ordered(stamp s, moment since)
{
	moment when = when_of(s);
	if (when < since || is_mine(s))
		return true;
	const fibre *f = now.self;
	if (number_of(s) == now.id >> 11) {
		if (when < f->b->together)
			return true;
		unsigned thread = thread_of(s);
		if (thread / 32 == f->thread / 32 && (when < f->w->together || when < f->met[thread % 32]))
			return true;
	}
	if (f->waits > 0)
		if (const fibre *other = in_cluster(number_of(s), thread_of(s)))
			if (cluster_orders(f, other, when))
				return true;
	return order_known(number_of(s), thread_of(s), when);
}

[[noreturn]] static void fail_race(const place &p, size_t bytes, access_kind kind, const void *code, stamp other, uint32_t at,
                                   const char *what)
{
	char memory[96];
	if (p.memory)
		snprintf(memory, sizeof memory, "an allocation of %zu bytes (%p) + %zu", p.memory->bytes, (void *)p.memory->base, p.offset);
	else
		snprintf(memory, sizeof memory, "shared memory + %zu", p.offset);
	bool same_block = number_of(other) == now.id >> 11;
	const char *hint = same_block ? "no barrier orders them" : p.memory ? "no fences order them" : "no barrier of the cluster orders them";
	std::string here = code_place(code), other_place = at ? code_place((const void *)(code_base() + at)) : "a copy of the cluster";
	fail("race: %s of %zu bytes at %s, and the %s by block %u, thread %u: %s\n  at %s\n  the other at %s", verb(kind), bytes, memory,
	     what, number_of(other), thread_of(other), hint, here.c_str(), other_place.c_str());
}

/* True if the access is one of the previous launch, with which this one may overlap. */
static inline bool is_before(stamp s)
{
	return when_of(s) >= overlapped.began && when_of(s) < overlapped.ended;
}

static inline void remember_read(cell *c, stamp s, uint32_t code)
{
	stamp r = c->read[0];
	int keep = 0; /* where the former last read is kept */
	if (r && (!is_mine(r) || is_before(r))) {
		if (number_of(r) != now.id >> 11 || is_before(r)) {
			c->read[1] = c->read[2] = 0;
			keep = 3;
		} else if (thread_of(r) / 32 != (now.id >> 1 & 1023) / 32) {
			c->read[1] = 0;
			keep = 2;
		} else {
			keep = 1;
		}
		c->read[keep] = r;
		c->read_code[keep] = c->read_code[0];
	}
	c->read[0] = s;
	c->read_code[0] = code;
}

template <access_kind kind> static inline void mark(cell *c, const place &p, size_t bytes, const void *code)
{
	const bool atomic = kind == ATOMIC_READ || kind == ATOMIC_WRITE;
	const stamp s = (stamp)present << 32 | now.id | atomic;
	const bool writes = kind != READ && kind != ATOMIC_READ;
	if (writes ? c->write == s && !c->read[0] : c->read[0] == s)
		return;
	const moment since = p.since;
	if (!ordered(c->write, since) && !(atomic && c->write & 1))
		fail_race(p, bytes, kind, code, c->write, c->write_code, c->write & 1 ? "atomic operation" : "write");
	if (kind != WRITE && kind != COPY && !p.memory && when_of(c->write) < since)
		fail("uninitialised: %s of %zu bytes at shared memory + %zu, which no thread of this block has written\n  at %s", verb(kind),
		     bytes, p.offset, code_place(code).c_str());
	uint32_t where = code == COPIED ? 0 : (uint32_t)((uintptr_t)code - code_base());
	if (!writes) {
		remember_read(c, s, where);
		return;
	}
	for (int i = 0; i < 4; i++)
		if (c->read[i] && !ordered(c->read[i], since) && !(atomic && c->read[i] & 1))
			fail_race(p, bytes, kind, code, c->read[i], c->read_code[i], "read");
	if (kind == COPY)
		return;
	c->write = s;
	c->write_code = where;
	c->read[0] = c->read[1] = c->read[2] = c->read[3] = 0;
}

static cell *parts_of(shadow *s, cell *c)
{
	if (!c->parts) {
		if (s->spare.empty()) {
			s->parts.emplace_back();
			s->spare.push_back((uint32_t)s->parts.size());
		}
		c->parts = s->spare.back();
		s->spare.pop_back();
		cell whole = *c;
		whole.parts = 0;
		s->parts[c->parts - 1].fill(whole);
	}
	return s->parts[c->parts - 1].data();
}

template <access_kind kind> static inline void mark_all(place p, size_t bytes, const void *code)
{
	const place first = p;
	const size_t end = p.offset + bytes;
	while (p.offset < end) {
		cell *c = p.marks->cells + p.offset / 4;
		size_t from = p.offset % 4, to = std::min((size_t)4, from + end - p.offset);
		if (from == 0 && to == 4 && !c->parts) {
			mark<kind>(c, first, bytes, code);
		} else {
			cell *part = parts_of(p.marks, c);
			for (size_t i = from; i < to; i++)
				mark<kind>(part + i, first, bytes, code);
			if (kind == WRITE && from == 0 && to == 4) { /* whole again */
				p.marks->spare.push_back(c->parts);
				*c = part[0];
			}
		}
		p.offset += to - from;
	}
}

[[noreturn]] static void fail_early(const place &p, size_t bytes, access_kind kind, const void *code, const char *what,
                                    const std::string &by)
{
	fail("early launch: %s of %zu bytes at an allocation of %zu bytes (%p) + %zu before wait_for_previous, and the %s by %s\n"
	     "  at %s",
	     verb(kind), bytes, p.memory->bytes, (void *)p.memory->base, p.offset, what, by.c_str(), code_place(code).c_str());
}

/* Check a thread that has not waited for the previous work. It may read memory that this work did not write, and write
 * memory that it did not touch. */
static void check_ahead(const place &p, uintptr_t at, size_t bytes, access_kind kind, const void *code)
{
	const bool writes = kind != READ && kind != ATOMIC_READ;
	for (const previous_work::range &r : overlapped.ranges)
		if ((r.written || writes) && at < r.from + r.bytes && r.from < at + bytes)
			fail_early(p, bytes, kind, code, r.written ? "write" : "read", "the matrix product before");
	for (size_t i = p.offset; i < p.offset + bytes; i++) {
		const cell *c = p.marks->cells + i / 4;
		if (c->parts)
			c = p.marks->parts[c->parts - 1].data() + i % 4;
		uint32_t by = 0;
		if (is_before(c->write))
			by = c->write_code;
		for (int k = 0; writes && !by && k < 4; k++)
			if (is_before(c->read[k]))
				by = c->read_code[k];
		if (by)
			fail_early(p, bytes, kind, code, is_before(c->write) ? "write" : "read",
			           "the kernel before, at " + code_place((const void *)(code_base() + by)));
	}
}

template <access_kind kind> static void look(uintptr_t at, size_t bytes, const void *code)
{
	place p;
	if (bytes == 0 || !find(at, bytes, kind, code, &p))
		return;
	if (p.memory && now.ahead)
		check_ahead(p, at, bytes, kind, code);
	if (p.memory && counting) {
		if (!p.marks->touched)
			p.marks->touched = (uint32_t *)zeros(touched_bytes(p.marks));
		count_access(p.marks->touched, at, p.offset, bytes, kind, code);
	}
	mark_all<kind>(p, bytes, code);
}

void touch(const void *at, size_t bytes, access_kind kind, const void *code)
{
	if (!checked || !now.self || (uintptr_t)at - now.stack_low < now.stack_bytes)
		return;
	switch (kind) {
	case READ:
		return look<READ>((uintptr_t)at, bytes, code);
	case WRITE:
		return look<WRITE>((uintptr_t)at, bytes, code);
	case ATOMIC_READ:
		return look<ATOMIC_READ>((uintptr_t)at, bytes, code);
	case ATOMIC_WRITE:
		return look<ATOMIC_WRITE>((uintptr_t)at, bytes, code);
	case COPY:
		return look<COPY>((uintptr_t)at, bytes, code);
	}
}

void touch_published(const void *at, size_t bytes, const void *code)
{
	touch(at, bytes, READ, code);
	place p;
	if (!checked || !find((uintptr_t)at, bytes, READ, code, &p))
		return;
	if (p.memory)
		fail("wgmma: %p is not in shared memory\n  at %s", at, code_place(code).c_str());
	for (size_t i = p.offset / 4; i < (p.offset + bytes + 3) / 4; i++) {
		const stamp s = p.marks->cells[i].write;
		const fibre &writer = now.b->fibres[thread_of(s)];
		if (p.marks->cells[i].write_code != 0 && when_of(s) >= writer.published)
			fail("wgmma: shared memory + %zu was written by thread %u, which has not called wgmma_publish before the last barrier\n"
			     "  at %s\n  the other at %s",
			     4 * i, writer.thread, code_place(code).c_str(),
			     code_place((const void *)(code_base() + p.marks->cells[i].write_code)).c_str());
	}
}

void touch_of(const block *b, const void *at, size_t bytes, access_kind kind, const void *code)
{
	if (!checked)
		return;
	const place p = {b->shared_shadow, (size_t)((uintptr_t)at - (uintptr_t)b->shared), nullptr, b->began};
	if (p.offset + bytes > now.l->shared_bytes)
		fail_outside((uintptr_t)now.b->shared + p.offset, bytes, kind, code);
	if (kind == COPY)
		mark_all<COPY>(p, bytes, code);
	else
		mark_all<ATOMIC_READ>(p, bytes, code);
}

void touch_read(const void *at, size_t bytes)
{
	touch(at, bytes, READ, __builtin_return_address(0));
}
void touch_write(void *at, size_t bytes)
{
	touch(at, bytes, WRITE, __builtin_return_address(0));
}

void need_device(const void *at, size_t bytes, const char *what)
{
	if (bytes == 0 || memory_is_live(at, bytes))
		return;
	const allocation *m = memory_find(at);
	size_t offset = m ? (size_t)((const unsigned char *)at - m->base) : 0;
	if (m && offset < m->bytes + (1 << 20))
		fail("%s: %zu bytes at an allocation of %zu bytes (%p) + %zu%s", what, bytes, m->bytes, (void *)m->base, offset,
		     m->live ? "" : ", which was freed");
	fail("%s: %zu bytes at %p, which is no device memory", what, bytes, at);
}

void prefetch_bytes(const void *from, int64_t bytes)
{
	if (!checked)
		return;
	if ((uintptr_t)from % 16 != 0 || bytes % 16 != 0)
		fail("misaligned: a bulk prefetch of %lld bytes at %p\n  at %s", (long long)bytes, from,
		     code_place(__builtin_return_address(0)).c_str());
	need_device(from, (size_t)bytes, "a bulk prefetch");
	if (counting)
		count_prefetch((size_t)bytes);
}

#ifdef EMULATOR_CHECKED
[[noreturn]] static void fail_alignment(uintptr_t at, size_t bytes, const void *code)
{
	fail("misaligned: an access of %zu bytes at %p\n  at %s", bytes, (void *)at, code_place(code).c_str());
}

template <access_kind kind, size_t bytes, bool aligned> static inline void access(const void *p, const void *code)
{
	uintptr_t at = (uintptr_t)p;
	if (at - now.stack_low < now.stack_bytes || !now.self)
		return;
	if (aligned && at % bytes != 0)
		fail_alignment(at, bytes, code);
	look<kind>(at, bytes, code);
}
#endif

} // namespace emulator

/* --- called by the compiler -------------------------------------------------------------------- */

#ifdef EMULATOR_CHECKED
/* Hidden, so that a program that itself runs under the thread sanitizer keeps its own. */
#define HOOK extern "C" __attribute__((visibility("hidden")))
#define CODE __builtin_return_address(0)
using namespace emulator;

#define ACCESS(bytes)                                                                                                  \
	HOOK void __tsan_read##bytes(void *at)                                                                         \
	{                                                                                                              \
		access<READ, bytes, true>(at, CODE);                                                                   \
	}                                                                                                              \
	HOOK void __tsan_write##bytes(void *at)                                                                        \
	{                                                                                                              \
		access<WRITE, bytes, true>(at, CODE);                                                                  \
	}                                                                                                              \
	HOOK void __tsan_unaligned_read##bytes(void *at)                                                               \
	{                                                                                                              \
		access<READ, bytes, false>(at, CODE);                                                                  \
	}                                                                                                              \
	HOOK void __tsan_unaligned_write##bytes(void *at)                                                              \
	{                                                                                                              \
		access<WRITE, bytes, false>(at, CODE);                                                                 \
	}
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
HOOK void __tsan_read_range(void *at, unsigned long bytes)
{
	touch(at, bytes, READ, CODE);
}
HOOK void __tsan_write_range(void *at, unsigned long bytes)
{
	touch(at, bytes, WRITE, CODE);
}
HOOK void __tsan_vptr_update(void **at, void *)
{
	touch(at, sizeof *at, WRITE, CODE);
}
HOOK void __tsan_vptr_read(void **at)
{
	touch(at, sizeof *at, READ, CODE);
}
HOOK void __tsan_init(void)
{
}
HOOK void __tsan_func_entry(void *)
{
}
HOOK void __tsan_func_exit(void)
{
}

/* Check a type's alignment where a pointer is used (-fsanitize=alignment), as vector accesses require. */
struct mismatch {
	const char *file;
	uint32_t line, column;
	const void *type;
	unsigned char log_alignment, kind;
};
HOOK void __ubsan_handle_type_mismatch_v1(mismatch *m, unsigned long at)
{
	if (now.self)
		fail("misaligned: %p is no multiple of %d\n  at %s:%u", (void *)at, 1 << m->log_alignment, m->file, m->line);
}

/* C++ atomics belong to host code (reference counts); kernels use CUDA's. */
#define ATOMICS(bits, type)                                                                                            \
	HOOK type __tsan_atomic##bits##_load(const volatile type *at, int)                                             \
	{                                                                                                              \
		return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                          \
	}                                                                                                              \
	HOOK void __tsan_atomic##bits##_store(volatile type *at, type x, int)                                          \
	{                                                                                                              \
		__atomic_store_n(at, x, __ATOMIC_SEQ_CST);                                                             \
	}                                                                                                              \
	HOOK type __tsan_atomic##bits##_exchange(volatile type *at, type x, int)                                       \
	{                                                                                                              \
		return __atomic_exchange_n(at, x, __ATOMIC_SEQ_CST);                                                   \
	}                                                                                                              \
	HOOK type __tsan_atomic##bits##_fetch_add(volatile type *at, type x, int)                                      \
	{                                                                                                              \
		return __atomic_fetch_add(at, x, __ATOMIC_SEQ_CST);                                                    \
	}                                                                                                              \
	HOOK type __tsan_atomic##bits##_fetch_sub(volatile type *at, type x, int)                                      \
	{                                                                                                              \
		return __atomic_fetch_sub(at, x, __ATOMIC_SEQ_CST);                                                    \
	}                                                                                                              \
	HOOK int __tsan_atomic##bits##_compare_exchange_strong(volatile type *at, type *expected, type x, int, int)    \
	{                                                                                                              \
		return __atomic_compare_exchange_n(at, expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);        \
	}                                                                                                              \
	HOOK int __tsan_atomic##bits##_compare_exchange_weak(volatile type *at, type *expected, type x, int, int)      \
	{                                                                                                              \
		return __atomic_compare_exchange_n(at, expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);        \
	}
ATOMICS(8, uint8_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
#endif
