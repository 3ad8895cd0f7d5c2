/* json_scan.h - find the ends of JSON values, without parsing them, in a text that arrives in pieces.
 *
 * A text is a sequence of values, with white space or nothing between them. The elements of an array at the top level
 * are values too: its brackets and commas are overwritten by spaces. Values are not checked, only the characters
 * between them. */
#ifndef ENGINE_TEXT_JSON_SCAN_H
#define ENGINE_TEXT_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A position in a text: lines end with LF, CR or CRLF. */
typedef struct json_place {
	long line, column; /* the next byte, from 1; columns count bytes */
	bool cr;           /* the byte before it is a CR */
} json_place;
#define JSON_PLACE_BEGIN {1, 1, false}
void json_place_pass(json_place *p, const char *text, size_t bytes);

typedef enum json_scan_state {
	JSON_SCAN_TOP,   /* outside any array */
	JSON_SCAN_FIRST, /* after the bracket that opens an array */
	JSON_SCAN_NEXT,  /* after a comma */
	JSON_SCAN_AFTER  /* after an element */
} json_scan_state;

/* Zero at the beginning of a text. */
typedef struct json_scan {
	json_scan_state state;
	bool within;   /* a value has begun and not ended */
	int64_t depth; /* number of open brackets */
	bool quoted, escaped;
	size_t at;  /* index of the next byte */
	size_t cut; /* end of the last value; 0: none has ended since the last drop */
} json_scan;

/* Scan text[at…bytes). Returns NULL, or an error at `at`, where the scan stops. A value with a line break inside a
 * string counts as ended there, and its parser refuses it. */
const char *json_scan_run(json_scan *s, char *text, size_t bytes);
/* The error if the text ends here; NULL: none except those that the parser of the last value would find. */
const char *json_scan_end(const json_scan *s);
/* Report that the first `bytes` bytes, which end at or before `at`, were removed from the text. */
void json_scan_drop(json_scan *s, size_t bytes);

#endif
