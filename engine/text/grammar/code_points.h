/* code_points.h - sets of Unicode characters, and their spelling in JSON strings (internal). */
#ifndef ENGINE_TEXT_GRAMMAR_CODE_POINTS_H
#define ENGINE_TEXT_GRAMMAR_CODE_POINTS_H

#include <stdbool.h>
#include <stdint.h>

enum { CODE_POINTS_MAX_RANGES = 128, CODE_POINT_LAST = 0x10ffff, SPELLING_MAX_BYTES = 6 };

typedef struct code_point_range {
	int32_t first, last;
} code_point_range;

typedef struct code_points {
	code_point_range ranges[CODE_POINTS_MAX_RANGES];
	int n;
} code_points;

/* False: there are too many ranges. */
bool code_points_add(code_points *s, int32_t first, int32_t last);
/* The characters of one of the classes d, D, w, W, s, S. wide: all that any dialect counts among them, in place of
 * those that every dialect does. */
bool code_points_add_class(code_points *s, char name, bool wide);
bool code_points_negate(code_points *s);

/* Spellings of one byte range after the other. */
typedef struct character_bytes {
	int bytes;
	unsigned char first[SPELLING_MAX_BYTES], last[SPELLING_MAX_BYTES];
} character_bytes;

/* The spellings of all characters of the set: up to `most` of them; the number, or -1: there are more. */
int code_points_spell(const code_points *s, character_bytes *out, int most);

#endif
