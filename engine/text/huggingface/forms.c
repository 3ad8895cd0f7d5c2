/* A text is cut before every character that has combining class 0 and that nothing before it can change; in NFC and
 * NFKC it must never compose with earlier characters. Such a segment is decomposed, its marks are sorted and it is
 * composed. ASCII before ASCII is a segment of its own in every form, so it is copied.
 *
 * utf8proc has the tables. Its own sorting of marks is quadratic and its interface knows no segments, so both are
 * implemented here. */
#include "engine/text/huggingface/normalizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { SMALL = 64, DECOMPOSED = 32 /* code points of one, at most: 18 */ };

typedef struct segment {
	int32_t small[SMALL];
	int32_t *points; /* small, or malloc'ed */
	size_t count, capacity;
} segment;

static int class_of(int32_t c)
{
	return utf8proc_get_property(c)->combining_class;
}

static status forms_add(segment *s, const int32_t *points, size_t n)
{
	if (s->count + n > s->capacity) {
		size_t capacity = 2 * (s->count + n);
		int32_t *more = malloc(capacity * sizeof *more);
		if (!more)
			return STATUS_NOMEM;
		memcpy(more, s->points, s->count * sizeof *more);
		if (s->points != s->small)
			free(s->points);
		s->points = more;
		s->capacity = capacity;
	}
	memcpy(s->points + s->count, points, n * sizeof *points);
	s->count += n;
	return STATUS_OK;
}

/* --- the canonical order of marks ------------------------------------------------------------------ */

/* A stable sort of marks by their class. */
static status sort_marks(int32_t *marks, size_t n)
{
	if (n <= 16) {
		for (size_t i = 1; i < n; i++) {
			int32_t mark = marks[i];
			size_t at = i;
			for (; at > 0 && class_of(marks[at - 1]) > class_of(mark); at--)
				marks[at] = marks[at - 1];
			marks[at] = mark;
		}
		return STATUS_OK;
	}
	size_t start[257] = {0};
	int32_t *sorted = malloc(n * sizeof *sorted);
	if (!sorted)
		return STATUS_NOMEM;
	for (size_t i = 0; i < n; i++)
		start[class_of(marks[i]) + 1]++;
	for (int c = 0; c < 256; c++)
		start[c + 1] += start[c];
	for (size_t i = 0; i < n; i++)
		sorted[start[class_of(marks[i])]++] = marks[i];
	memcpy(marks, sorted, n * sizeof *sorted);
	free(sorted);
	return STATUS_OK;
}

static status order(segment *s)
{
	for (size_t i = 0; i < s->count;) {
		size_t end = i;
		while (end < s->count && class_of(s->points[end]) != 0)
			end++;
		if (end > i + 1)
			TRY(sort_marks(s->points + i, end - i));
		i = end > i ? end : i + 1;
	}
	return STATUS_OK;
}

/* --- one segment --------------------------------------------------------------------------------- */

/* True if the segment is unchanged. */
static bool is_unchanged(const segment *s, const char *text, size_t bytes)
{
	size_t at = 0, length;
	for (size_t i = 0; i < s->count; i++, at += length)
		if (at >= bytes || pieces_first(text + at, &length) != (uint32_t)s->points[i])
			return false;
	return at == bytes;
}

static status append_points(const segment *s, byte_range origin, text_buffer *out)
{
	for (size_t i = 0; i < s->count; i++) {
		char character[4];
		TRY(pieces_put(out, character, pieces_write((uint32_t)s->points[i], character), origin));
	}
	return STATUS_OK;
}

/* The code points of one; 0: the library knows none. */
static utf8proc_ssize_t decompose_one(form f, int32_t c, int32_t points[DECOMPOSED])
{
	int boundary = 0;
	const bool compatible = f == FORM_NFKC || f == FORM_NFKD;
	const utf8proc_ssize_t n = utf8proc_decompose_char(
	    c, points, DECOMPOSED, (utf8proc_option_t)(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0)),
	    &boundary);
	return n > 0 && n <= DECOMPOSED ? n : 0;
}

bool forms_keeps(form f, uint32_t c)
{
	int32_t points[DECOMPOSED];
	return decompose_one(f, (int32_t)c, points) == 1 && points[0] == (int32_t)c;
}

static status decompose(form f, const text_piece *p, size_t first, size_t bytes, segment *s)
{
	for (size_t at = first, length; at < first + bytes; at += length) {
		int32_t points[DECOMPOSED];
		const int32_t c = (int32_t)pieces_first(p->text + at, &length);
		const utf8proc_ssize_t n = decompose_one(f, c, points);
		TRY(n > 0 ? forms_add(s, points, (size_t)n) : forms_add(s, &c, 1));
	}
	return STATUS_OK;
}

static status append_segment(form f, const text_piece *p, size_t first, size_t bytes, text_buffer *out)
{
	segment s = {.capacity = SMALL};
	s.points = s.small;
	status result = decompose(f, p, first, bytes, &s);
	if (result == STATUS_OK)
		result = order(&s);
	if (result == STATUS_OK && (f == FORM_NFC || f == FORM_NFKC)) {
		utf8proc_ssize_t n = utf8proc_normalize_utf32(s.points, (utf8proc_ssize_t)s.count,
		                                              (utf8proc_option_t)(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
		s.count = n > 0 ? (size_t)n : 0;
	}
	if (result == STATUS_OK)
		result = is_unchanged(&s, p->text + first, bytes)
		             ? pieces_copy(out, p, first, bytes)
		             : append_points(&s, pieces_origin(p, first, bytes), out);
	if (s.points != s.small)
		free(s.points);
	return result;
}

/* --- segments ---------------------------------------------------------------------------------------- */

/* Vowels and trailing consonants of Hangul compose by arithmetic, not by the tables. */
static bool is_hangul_tail(int32_t c)
{
	return (c >= 0x1161 && c <= 0x1175) || (c >= 0x11A8 && c <= 0x11C2);
}

/* True if a segment begins before this character. False if its decomposition begins with a character that may compose
 * with an earlier one: marks, some of combining class 0, and Hangul's tails. */
static bool begins(form f, int32_t c)
{
	int32_t points[DECOMPOSED];
	const utf8proc_ssize_t n = decompose_one(f, c, points);
	if (n < 1 || class_of(points[0]) != 0 || is_hangul_tail(points[0]))
		return false;
	const utf8proc_category_t category = utf8proc_category(points[0]);
	return category != UTF8PROC_CATEGORY_MN && category != UTF8PROC_CATEGORY_MC && category != UTF8PROC_CATEGORY_ME;
}

status forms_append(form f, const text_piece *p, text_buffer *out)
{
	size_t at = 0;
	while (at < p->bytes) {
		/* ASCII, but for the last of a run, which may be the base of a mark. */
		size_t end = at, length;
		while (end < p->bytes && (unsigned char)p->text[end] < 0x80)
			end++;
		size_t plain = end < p->bytes && end > at ? end - 1 : end;
		TRY(pieces_copy(out, p, at, plain - at));
		at = plain;
		if (at == p->bytes)
			break;
		pieces_first(p->text + at, &length);
		for (end = at + length; end < p->bytes; end += length)
			if (begins(f, (int32_t)pieces_first(p->text + end, &length)))
				break;
		TRY(append_segment(f, p, at, end - at, out));
		at = end;
	}
	return STATUS_OK;
}
