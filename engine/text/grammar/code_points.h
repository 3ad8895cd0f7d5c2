/* code_points.h - sets of Unicode characters, and their spelling in JSON strings or in plain text (internal). */
#ifndef ENGINE_TEXT_GRAMMAR_CODE_POINTS_H
#define ENGINE_TEXT_GRAMMAR_CODE_POINTS_H

#include <stdbool.h>
#include <stdint.h>

enum { CODE_POINTS_MAX_RANGES = 128, CODE_POINT_LAST = 0x10ffff, CODE_POINT_BYTES = 4, SPELLING_MAX_BYTES = 6 };

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

/* Write the UTF-8 of a character; the number of bytes. */
int code_point_encode(unsigned char out[CODE_POINT_BYTES], int32_t c);

/* Spellings of one byte range after the other. */
typedef struct character_bytes {
	int bytes;
	unsigned char first[SPELLING_MAX_BYTES], last[SPELLING_MAX_BYTES];
} character_bytes;

typedef enum code_points_spelling {
	SPELL_JSON, /* the content of JSON strings: an escape only where one is needed */
	SPELL_UTF8
} code_points_spelling;

/* The spellings of all characters of the set: up to `most` of them; the number, or -1: there are more. */
int code_points_spell(const code_points *s, code_points_spelling how, character_bytes *out, int most);

#endif
