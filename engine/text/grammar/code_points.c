#include "engine/text/grammar/code_points.h"

#include <stdlib.h>
#include <string.h>

bool code_points_add(code_points *s, int32_t first, int32_t last)
{
	if (s->n == CODE_POINTS_MAX_RANGES)
		return false;
	s->ranges[s->n++] = (code_point_range){first, last};
	return true;
}

static const code_point_range digits[] = {{'0', '9'}};
static const code_point_range wide_digits[] = {{'0', '9'}, {0x660, CODE_POINT_LAST}};
static const code_point_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const code_point_range wide_word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {0x80, CODE_POINT_LAST}};
static const code_point_range space[] = {{'\t', '\r'}, {' ', ' '}};
static const code_point_range wide_space[] = {{'\t', '\r'},     {0x1c, ' '},      {0x85, 0x85},     {0xa0, 0xa0},
                                              {0x1680, 0x1680}, {0x180e, 0x180e}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                              {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};

static bool add_all(code_points *s, const code_point_range *ranges, size_t n)
{
	bool room = true;
	for (size_t i = 0; i < n; i++)
		room &= code_points_add(s, ranges[i].first, ranges[i].last);
	return room;
}

#define ADD_ALL(s, ranges) add_all(s, ranges, sizeof(ranges) / sizeof *(ranges))

bool code_points_add_class(code_points *s, char name, bool wide)
{
	code_points other = {.n = 0};
	switch (name) {
	case 'd':
		return wide ? ADD_ALL(s, wide_digits) : ADD_ALL(s, digits);
	case 'w':
		return wide ? ADD_ALL(s, wide_word) : ADD_ALL(s, word);
	case 's':
		return wide ? ADD_ALL(s, wide_space) : ADD_ALL(s, space);
	default: /* a capital letter */
		return code_points_add_class(&other, (char)(name - 'A' + 'a'), !wide) && code_points_negate(&other) &&
		       add_all(s, other.ranges, (size_t)other.n);
	}
}

static int by_first(const void *pa, const void *pb)
{
	const code_point_range *a = pa, *b = pb;
	return (a->first > b->first) - (a->first < b->first);
}

/* Sort the ranges and merge those that overlap. */
static void normalize(code_points *s)
{
	int n = 0;
	if (s->n > 0)
		qsort(s->ranges, (size_t)s->n, sizeof *s->ranges, by_first);
	for (int i = 0; i < s->n; i++) {
		if (n > 0 && s->ranges[i].first <= s->ranges[n - 1].last + 1) {
			if (s->ranges[i].last > s->ranges[n - 1].last)
				s->ranges[n - 1].last = s->ranges[i].last;
		} else {
			s->ranges[n++] = s->ranges[i];
		}
	}
	s->n = n;
}

bool code_points_negate(code_points *s)
{
	code_points out = {.n = 0};
	int32_t next = 0;
	bool room = true;
	normalize(s);
	for (int i = 0; i < s->n; i++) {
		if (s->ranges[i].first > next)
			room &= code_points_add(&out, next, s->ranges[i].first - 1);
		next = s->ranges[i].last + 1;
	}
	if (next <= CODE_POINT_LAST)
		room &= code_points_add(&out, next, CODE_POINT_LAST);
	*s = out;
	return room;
}

/* --- spelling ---------------------------------------------------------------------------------- */

typedef struct speller {
	character_bytes *out;
	int n, most;
} speller;

static void code_points_put(speller *w, const character_bytes *one)
{
	if (w->n < w->most)
		w->out[w->n] = *one;
	w->n++;
}

static void put_escape(speller *w, int c)
{
	static const char hex[] = "0123456789abcdef", escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
	const char *found = c ? strchr(escaped, c) : NULL;
	character_bytes one = {2, "\\", "\\"};
	one.first[1] = found ? (unsigned char)letters[found - escaped] : 'u';
	if (!found) {
		one.bytes = 6;
		memcpy(one.first + 2, "00", 2);
		one.first[4] = (unsigned char)hex[c >> 4];
		one.first[5] = (unsigned char)hex[c & 15];
	}
	memcpy(one.last, one.first, sizeof one.last);
	code_points_put(w, &one);
}

static void put_ascii(speller *w, int first, int last)
{
	for (int c = first; c <= last; c++) {
		int end = c;
		if (c < 0x20 || c == '"' || c == '\\') {
			put_escape(w, c);
			continue;
		}
		while (end < last && end + 1 != '"' && end + 1 != '\\')
			end++;
		code_points_put(w, &(character_bytes){1, {(unsigned char)c}, {(unsigned char)end}});
		c = end;
	}
}

int code_point_encode(unsigned char out[CODE_POINT_BYTES], int32_t c)
{
	if (c < 0x80) {
		out[0] = (unsigned char)c;
		return 1;
	}
	const int bytes = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	for (int i = bytes - 1; i > 0; i--, c >>= 6)
		out[i] = (unsigned char)(0x80 | (c & 0x3f));
	out[0] = (unsigned char)((0xf00 >> bytes & 0xff) | c);
	return bytes;
}

/* Characters whose UTF-8 has the same number of bytes, at least 2. A range is one spelling when every byte position
 * takes all values between those of its ends; otherwise it is cut in two. */
static void put_long(speller *w, int32_t first, int32_t last)
{
	character_bytes one = {0};
	for (int low = 6; low <= 18; low += 6) {
		const int32_t mask = ((int32_t)1 << low) - 1;
		if ((first & ~mask) == (last & ~mask))
			break;
		if (first & mask) {
			put_long(w, first, first | mask);
			put_long(w, (first | mask) + 1, last);
			return;
		}
		if ((last & mask) != mask) {
			put_long(w, first, (last & ~mask) - 1);
			put_long(w, last & ~mask, last);
			return;
		}
	}
	one.bytes = code_point_encode(one.first, first);
	code_point_encode(one.last, last);
	code_points_put(w, &one);
}

int code_points_spell(const code_points *s, code_points_spelling how, character_bytes *out, int most)
{
	static const code_point_range lengths[] = {
	    {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, CODE_POINT_LAST}};
	speller w = {out, 0, most};
	code_points sorted = *s;
	normalize(&sorted);
	for (int i = 0; i < sorted.n; i++)
		for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
			const int32_t first =
			    sorted.ranges[i].first > lengths[k].first ? sorted.ranges[i].first : lengths[k].first;
			const int32_t last =
			    sorted.ranges[i].last < lengths[k].last ? sorted.ranges[i].last : lengths[k].last;
			if (first > last)
				continue;
			if (k == 0 && how == SPELL_JSON)
				put_ascii(&w, first, last);
			else if (k == 0)
				code_points_put(&w,
				                &(character_bytes){1, {(unsigned char)first}, {(unsigned char)last}});
			else
				put_long(&w, first, last);
		}
	return w.n <= most ? w.n : -1;
}
