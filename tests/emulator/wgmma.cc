/* wgmma: products that four warps begin and later wait for.
 *
 * A product is computed when its thread waits. Until then d is NaN, so a kernel that reads it too early is wrong; a
 * change of d or a in between is a fault. b is looked at twice, when the product begins and when it ends, so one of the
 * two reveals a thread that writes it meanwhile. In the checked build the threads that wrote b must have published it
 * (fence.proxy.async) before the block's last barrier. Sums are added as mma's are. */
#include "emulator.h"

#include <cmath>

namespace emulator {

enum { GROUP = 128, POISON = -1 };

/* True if products round towards 0, as on a device whose wgmma has other bits than its mma. */
static bool rounds_down()
{
	const char *s = getenv("ADDITIVE_EMULATOR_WGMMA");
	if (s && *s && strcmp(s, "differs") != 0)
		fail("ADDITIVE_EMULATOR_WGMMA=%s: differs", s);
	return s && *s;
}

/* A lane's part of the meeting of its warp. a_view: 0 if a is in registers. */
struct brought {
	unsigned a[4];
	uint64_t a_view, view;
	int n, add, form;
};

static bool is_poison(const product_sums &s)
{
	for (int i = 0; i < s.n; i++)
		if (__float_as_int(s.at[i]) != POISON)
			return false;
	return true;
}

static product_sums &sums_of(fibre *f, float *d, int n, const void *code)
{
	for (product_sums &s : f->sums)
		if (s.at == d) {
			if (s.n != n || !is_poison(s))
				fail("wgmma: the sums of a product that is not waited for were changed\n  at %s", code_place(code).c_str());
			return s;
		}
	f->sums.push_back({d, n, std::vector<float>(d, d + n)});
	for (int i = 0; i < n; i++)
		d[i] = __int_as_float(POISON);
	return f->sums.back();
}

/* This lane's share of looking at b [16, columns], and its words of a. */
static void look_at(const group_product &p, const void *code)
{
	for (int i = 0; i < 4 && p.a_shared; i++)
		touch_published(p.a[i], 4, code);
	for (int column = (int)(now.self->thread % 32); column < p.columns; column += 32)
		for (int k = 0; k < 2; k++)
			touch_published(p.b + column / 8 * p.column_bytes + k * p.k_bytes + column % 8 * 16, 16, code);
}

/* A matrix in shared memory. */
struct viewed {
	const unsigned char *at;
	int k_bytes, other_bytes;
};
static viewed look_up(uint64_t view, const void *code)
{
	if (view & ~(uint64_t)0x3fff3fff3fff)
		fail("wgmma: the view %llx has other bits than those of an address and two distances\n  at %s", (unsigned long long)view,
		     code_place(code).c_str());
	return {now.b->shared + ((view & 0x3fff) << 4), (int)(view >> 16 & 0x3fff) << 4, (int)(view >> 32 & 0x3fff) << 4};
}

/* a: the addresses of this lane's words. */
static void begin(float *d, int columns, const unsigned *const (&a)[4], uint64_t a_view, uint64_t view, bool add, b_form form,
                  const void *code)
{
	fibre *f = now.self;
	group_product p = {};
	p.a_shared = a_view != 0;
	for (int i = 0; i < 4; i++) {
		if (p.a_shared)
			touch_published(a[i], 4, code);
		p.a[i] = a[i];
		p.words[i] = *a[i];
	}
	const brought mine = {{p.words[0], p.words[1], p.words[2], p.words[3]}, a_view, view, columns, add, form};
	brought all[32];
	gather(0xffffffffu, "wgmma", &mine, all, sizeof mine);
	for (const brought &b : all)
		if (b.a_view != a_view || b.view != view || b.n != columns || b.add != mine.add || b.form != mine.form)
			fail("wgmma: the lanes of a warp differ in a view, b's width or add\n  at %s", code_place(code).c_str());
	if ((f->thread / GROUP + 1) * GROUP > now.l->block.x)
		fail("wgmma: thread %u is not in a group of 128\n  at %s", f->thread, code_place(code).c_str());
	if (!f->products_fenced)
		fail("wgmma: no wgmma_fence since the thread began or waited\n  at %s", code_place(code).c_str());
	const viewed b = look_up(view, code);
	p.b = b.at;
	p.k_bytes = b.k_bytes;
	p.column_bytes = b.other_bytes;
	p.columns = columns;
	p.add = add;
	p.form = form;
	const int group = (int)(f->thread % 32) / 4;
	for (int row = 0; row < 2; row++) /* rows group and group + 8, from the lanes that hold them */
		for (int w = 0; w < 8; w++)
			p.rows[row][w] = all[group * 4 + w % 4].a[row + w / 4 * 2];
	p.sums = &sums_of(f, d, columns / 2, code) - f->sums.data();
	look_at(p, code);
	f->products.push_back(p);
}

void wgmma(float *d, int columns, const unsigned a[4], uint64_t view, bool add, b_form form)
{
	begin(d, columns, {&a[0], &a[1], &a[2], &a[3]}, 0, view, add, form, __builtin_return_address(0));
}

void wgmma(float *d, int columns, uint64_t a_view, uint64_t view, bool add, b_form form)
{
	const void *code = __builtin_return_address(0);
	const viewed a = look_up(a_view, code);
	const unsigned lane = now.self->thread % 32;
	const unsigned *words[4];
	for (int i = 0; i < 4; i++) {
		const int row = (int)(now.self->thread % GROUP / 32 * 16 + lane / 4) + i % 2 * 8;
		words[i] = (const unsigned *)(a.at + row / 8 * a.other_bytes + i / 2 * a.k_bytes + row % 8 * 16) + lane % 4;
	}
	begin(d, columns, words, a_view, view, add, form, code);
}

void wgmma_fence()
{
	now.self->products_fenced = true;
}

void wgmma_commit()
{
	now.self->committed = now.self->products.size();
}

static double number_of(unsigned word, int half)
{
	return (double)__uint_as_float((half ? word >> 16 : word & 0xffff) << 16);
}

/* Add the products of eight words each, pairs of bf16. */
static float add_products(const unsigned row[8], const unsigned column[8], float to, bool down)
{
	double sum = to;
	for (int k = 0; k < 16; k++)
		sum += number_of(row[k / 2], k % 2) * number_of(column[k / 2], k % 2);
	to = (float)sum;
	return down && std::fabs((double)to) > std::fabs(sum) ? std::nextafterf(to, 0.0f) : to;
}

/* Column `column` of b, 16 k in pairs. */
static void load_column(const group_product &p, int column, unsigned words[8])
{
	const unsigned char *part = p.b + column / 8 * p.column_bytes;
	for (int k = 0; k < 16; k += 8)
		if (p.form == B_ROWS)
			for (int i = 0; i < 8; i++)
				memcpy((unsigned char *)words + (k + i) * 2, part + k / 8 * p.k_bytes + i * 16 + column % 8 * 2, 2);
		else
			memcpy(words + k / 2, part + k / 8 * p.k_bytes + column % 8 * 16, 16);
}

/* Four bytes each. */
static float add_bytes(const unsigned row[8], const unsigned column[8], float to)
{
	int sum = __float_as_int(to);
	for (int w = 0; w < 8; w++)
		sum = __dp4a((int)row[w], (int)column[w], sum);
	return __int_as_float(sum);
}

static void compute(const group_product &p, std::vector<float> &d, bool down)
{
	for (int tile = 0; tile < p.columns / 8; tile++)
		for (int side = 0; side < 2; side++) {
			unsigned column[8];
			load_column(p, 8 * tile + 2 * (int)(now.self->thread % 4) + side, column);
			for (int row = 0; row < 2; row++) {
				float &to = d[(size_t)(4 * tile + 2 * row + side)];
				const float from = p.add ? to : 0.0f;
				to = p.form == B_BYTES ? add_bytes(p.rows[row], column, from) : add_products(p.rows[row], column, from, down);
			}
		}
}

void wgmma_wait()
{
	const void *code = __builtin_return_address(0);
	const bool down = rounds_down();
	fibre *f = now.self;
	if (f->committed < f->products.size())
		fail("wgmma: a wait for products that were not committed\n  at %s", code_place(code).c_str());
	const char nothing = 0;
	char all[32];
	gather(0xffffffffu, "wgmma wait", &nothing, all, 1);
	for (const product_sums &s : f->sums)
		if (!is_poison(s))
			fail("wgmma: the sums of a product that is not waited for were changed\n  at %s", code_place(code).c_str());
	for (const group_product &p : f->products) {
		for (int i = 0; i < 4; i++)
			if (*p.a[i] != p.words[i])
				fail("wgmma: a was changed before the wait\n  at %s", code_place(code).c_str());
		look_at(p, code);
		compute(p, f->sums[p.sums].value, down);
	}
	for (const product_sums &s : f->sums)
		std::copy(s.value.begin(), s.value.end(), s.at);
	f->sums.clear();
	f->products.clear();
	f->committed = 0;
	f->products_fenced = false;
}

void wgmma_publish()
{
	tick(); /* this thread's later stores have another moment */
	now.self->publishing = present;
}

} // namespace emulator
