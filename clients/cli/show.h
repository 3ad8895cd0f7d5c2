/* show.h - JSON for people: objects as lines, lists as tables. Control characters are made visible. */
#ifndef CLI_SHOW_H
#define CLI_SHOW_H

#include <stdio.h>

#include <jansson.h>

typedef enum show_kind {
	SHOW_PLAIN,
	SHOW_TIME,
	SHOW_BYTES,
	SHOW_OPTIONAL /* plain; a column without any value is left out */
} show_kind;

typedef struct show_column {
	const char *title; /* NULL ends the columns */
	const char *path;  /* "additive.step" */
	show_kind kind;
} show_column;

/* The value at a path; NULL when there is none. */
const json_t *show_get(const json_t *json, const char *path);
/* One line per member, nested ones indented; nulls are left out. */
void show_object(FILE *file, const json_t *object);
/* Print a header and one line per element, none wider than `width` columns (0: no limit). Texts are cut with an
 * ellipsis, and columns without room are dropped from the right. */
void show_table(FILE *file, int width, const json_t *array, const show_column *columns);

#endif
