/* Counting the work that runs and the bytes that it moves.
 *
 * Every access of a kernel is counted in two ways (checked build). For the least number of bytes that memory has to
 * move, each word of an allocation has a mask of the bytes that this launch has read and written. For the sectors that
 * warps move, the accesses of a warp's lanes at one instruction are grouped. Each lane's n-th access there belongs to
 * the same request, whose 32-byte sectors are counted. Compilers split loads of a structure. So an access by another
 * instruction to other bytes of the 16 that the lane has just touched belongs to the same request. */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>

#include <unordered_map>
#include <unordered_set>

namespace emulator {

bool counting;
static bool kept, written_down; /* for emulator_count_end; to a file */
static std::vector<emulator_work> records;
static emulator_work current;
static FILE *file;
static uint32_t launch_number; /* starts at 1; 24 bits */
static std::unordered_set<const void *> signalled; /* by the current launch */

enum { SECTOR = 32, VECTOR = 16, RECENT = 4 };

/* --- names ------------------------------------------------------------------------------------ */

static const char *keep(const std::string &name)
{
	static std::unordered_set<std::string> names; /* never freed, since records point here */
	return names.insert(name).first->c_str();
}

static void replace_all(std::string *s, const char *what, const char *by)
{
	for (size_t at; (at = s->find(what)) != std::string::npos;)
		s->replace(at, strlen(what), by);
}

/* "void scan<__nv_bfloat16, 8>(int, …)" -> "scan<bf16, 8>". */
const char *short_name(const void *kernel)
{
	static std::unordered_map<const void *, const char *> known;
	const char *&name = known[kernel];
	if (name)
		return name;
	std::string s = kernel_name(kernel);
	int depth = 0;
	size_t end = s.size();
	while (end > 0 && s[end - 1] != ')') /* drop a suffix after the parameters */
		end--;
	for (; end > 0; end--) {
		depth += s[end - 1] == ')' ? 1 : s[end - 1] == '(' ? -1 : 0;
		if (depth == 0)
			break;
	}
	s = end > 1 ? s.substr(0, end - 1) : s;
	replace_all(&s, "(anonymous namespace)::", "");
	replace_all(&s, "__nv_bfloat16", "bf16");
	size_t open = s.find('<'), space = s.rfind(' ', open);
	return name = keep(space == std::string::npos ? s : s.substr(space + 1));
}

/* --- records ---------------------------------------------------------------------------------- */

static void write_line(const emulator_work &w)
{
	static const char *const kinds[] = {"kernel", "product", "copy", "set"};
	fprintf(file,
	        "{\"kind\": \"%s\", \"name\": \"%s\", \"early\": %s, \"grid\": [%u, %u, %u], \"threads\": %u, \"read\": %llu, "
	        "\"written\": %llu, \"read_once\": %llu, \"written_once\": %llu, \"moved\": %llu, \"used\": %llu, \"flop\": %llu, \"processors\": %u}\n",
	        kinds[w.kind], w.name, w.early ? "true" : "false", w.grid[0], w.grid[1], w.grid[2], w.threads,
	        (unsigned long long)w.read, (unsigned long long)w.written, (unsigned long long)w.read_once,
	        (unsigned long long)w.written_once, (unsigned long long)w.moved, (unsigned long long)w.used,
	        (unsigned long long)w.flop, w.processors);
}

static void record(const emulator_work &w)
{
	if (written_down)
		write_line(w);
	if (kept)
		records.push_back(w);
}

static void open_file()
{
	static bool looked;
	const char *name = getenv("ADDITIVE_EMULATOR_COUNT");
	if (looked)
		return;
	looked = true;
	if (!name || !*name)
		return;
	file = fopen(name, "w");
	if (!file)
		fail("ADDITIVE_EMULATOR_COUNT=%s cannot be written", name);
	written_down = counting = true;
}

void count_work(emulator_kind kind, const char *name, size_t read, size_t written, const unsigned grid[3], unsigned threads,
                uint64_t flop, unsigned processors, unsigned candidate)
{
	open_file();
	if (!counting)
		return;
	emulator_work w = {};
	w.name = name;
	w.kind = kind;
	w.read = w.read_once = read;
	w.written = w.written_once = written;
	w.flop = flop;
	w.processors = processors;
	w.candidate = candidate;
	w.threads = threads;
	for (int i = 0; grid && i < 3; i++)
		w.grid[i] = grid[i];
	record(w);
}

void count_launch(const launch &l)
{
	open_file();
	if (!counting)
		return;
	current = {};
	signalled.clear();
	current.name = short_name(l.kernel);
	current.early = l.early;
	current.grid[0] = l.grid.x;
	current.grid[1] = l.grid.y;
	current.grid[2] = l.grid.z;
	current.threads = l.block.x;
	launch_number = (launch_number + 1) & 0xffffff;
	if (launch_number == 0) {
		memory_forget_marks();
		launch_number = 1;
	}
}

void count_launch_end()
{
	if (counting)
		record(current);
}

/* --- requests --------------------------------------------------------------------------------- */

struct sector {
	uint64_t number;
	uint32_t bytes; /* bytes that lanes requested */
};
typedef std::vector<sector> request;

struct instruction {
	uint32_t times[32] = {}; /* by lane */
	std::vector<request> requests;
};

/* A lane's recent access, to which others may belong. */
struct recent_access {
	uint64_t vector = 0;
	unsigned bytes = 0; /* bytes of the 16 */
	bool writes = false;
	const void *code = nullptr;
	instruction *at = nullptr;
	uint32_t which = 0;
};

struct requests {
	std::unordered_map<const void *, instruction> instructions; /* with stable addresses */
	recent_access recent[32][RECENT];
	unsigned oldest[32] = {};

	~requests()
	{
		for (const auto &i : instructions)
			for (const request &r : i.second.requests)
				for (const sector &s : r) {
					current.moved += SECTOR;
					current.used += (uint64_t)__builtin_popcount(s.bytes);
				}
	}
};

static void add_sectors(request *r, uintptr_t at, size_t bytes)
{
	while (bytes > 0) {
		uint64_t number = at / SECTOR;
		size_t from = at % SECTOR, n = std::min(bytes, SECTOR - from);
		uint32_t mask = (uint32_t)((((uint64_t)1 << n) - 1) << from);
		auto s = r->rbegin();
		while (s != r->rend() && s->number != number)
			++s;
		if (s == r->rend())
			r->push_back({number, mask});
		else
			s->bytes |= mask;
		at += n;
		bytes -= n;
	}
}

static void count_request(uintptr_t at, size_t bytes, bool writes, const void *code)
{
	const unsigned lane = now.self->thread % 32;
	warp *w = now.self->w;
	if (!w->asked)
		w->asked = std::make_shared<requests>();
	requests &all = *w->asked;
	const uint64_t vector = at / VECTOR;
	const unsigned mask = (((1u << std::min(bytes, (size_t)VECTOR)) - 1) << at % VECTOR) & 0xffff;
	for (recent_access &a : all.recent[lane])
		if (a.at && a.vector == vector && a.writes == writes && a.code != code && !(a.bytes & mask)) {
			a.bytes |= mask;
			add_sectors(&a.at->requests[a.which], at, bytes);
			return;
		}
	instruction &i = all.instructions[code];
	const uint32_t which = i.times[lane]++;
	if (which == i.requests.size())
		i.requests.emplace_back();
	add_sectors(&i.requests[which], at, bytes);
	all.recent[lane][all.oldest[lane]++ % RECENT] = {vector, mask, writes, code, &i, which};
}

void count_access(uint32_t *touched, uintptr_t at, size_t offset, size_t bytes, access_kind kind, const void *code)
{
	const bool reads = kind == READ || kind == ATOMIC_READ || kind == ATOMIC_WRITE;
	const bool writes = kind == WRITE || kind == ATOMIC_WRITE;
	current.read += reads ? bytes : 0;
	current.written += writes ? bytes : 0;
	if (kind == READ || kind == WRITE)
		count_request(at, bytes, writes, code);
	for (const size_t end = offset + bytes; offset < end;) {
		uint32_t &word = touched[offset / 4];
		const size_t from = offset % 4, n = std::min(4 - from, end - offset);
		const uint32_t mask = ((1u << n) - 1) << from;
		if (word >> 8 != launch_number)
			word = launch_number << 8;
		const uint32_t fresh = ((reads ? mask : 0) | (writes ? mask << 4 : 0)) & ~word;
		current.read_once += (uint64_t)__builtin_popcount(fresh & 0xf);
		current.written_once += (uint64_t)__builtin_popcount(fresh & 0xf0);
		word |= fresh;
		offset += n;
	}
}

void count_signal(const void *at)
{
	if (counting && signalled.insert(at).second)
		current.signals++;
}

void count_prefetch(size_t bytes)
{
	current.prefetched += bytes;
}

} // namespace emulator

/* --- called by tests ---------------------------------------------------------------------------- */

extern "C" {

void emulator_count_begin(void)
{
	emulator::finish_all();
	emulator::records.clear();
	emulator::kept = emulator::counting = true;
}

const emulator_work *emulator_count_end(size_t *count)
{
	emulator::finish_all();
	emulator::kept = false;
	emulator::counting = emulator::written_down;
	*count = emulator::records.size();
	return emulator::records.data();
}

} /* extern "C" */
