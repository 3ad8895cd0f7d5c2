/* explanation_table.h - the numbers of an explanation, as the API answers it, as rows.
 *
 * A *series* is a list of numbers in the answer, or a single one, with its path there ("weights.alpha"). What its rows
 * have in common are the position, layer, head and round of the objects around it, and the side: what lies within a
 * member `source` is of the source's tokens. Whatever members an answer has, each of its real numbers is in one series.
 * A row is one number, mostly of one token.
 *
 * The numbers are copied, as floats: of the explanation, which has some seventy bytes for each, only the tokens of both
 * sides stay. Any thread, one at a time. */
#ifndef ENGINE_DAEMON_GENERATION_EXPLANATION_TABLE_H
#define ENGINE_DAEMON_GENERATION_EXPLANATION_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { TABLE_PATH_BYTES = 64, TABLE_ROUND_BYTES = 24, TABLE_NONE = -1 };

typedef enum table_side { TABLE_TEXT, TABLE_SOURCE, TABLE_SIDES } table_side;

typedef enum table_shape {
	TABLE_NUMBER,    /* one, of no token */
	TABLE_TOKENS,    /* number i is of token first + i */
	TABLE_POSITIONS, /* number i is of position i, and of no token */
	TABLE_PAIRS      /* [token, number]… */
} table_shape;

typedef struct table_series {
	char path[TABLE_PATH_BYTES];
	char round[TABLE_ROUND_BYTES]; /* "": of none */
	table_shape shape;
	table_side side;
	bool listed;                   /* within a list of objects */
	int32_t position, layer, head; /* TABLE_NONE: of none */
	int32_t first;
	size_t count;
	float *values;
	int32_t *of; /* TABLE_PAIRS: the tokens; else NULL */
} table_series;

typedef struct explanation_table {
	json_t *tokens[TABLE_SIDES]; /* references; NULL: the explanation has no such side */
	table_series *series;
	size_t n, capacity;
} explanation_table;

typedef struct table_row {
	const table_series *series;
	int32_t position, token; /* TABLE_NONE: of none */
	float value;
} table_row;

/* Where in the table: zero is the beginning. */
typedef struct table_cursor {
	size_t series, item;
} table_cursor;

/* STATUS_NOMEM; explanation_table_fini is due then, too. */
status explanation_table_init(explanation_table *t, const json_t *explanation);
void explanation_table_fini(explanation_table *t);
/* Number i of a series. */
table_row explanation_table_row(const table_series *s, size_t i);
/* The next row of all; false at the end. */
bool explanation_table_next(const explanation_table *t, table_cursor *at, table_row *out);
/* The name of the side of a row's token; "": it has no token. */
const char *explanation_table_side(const table_row *row);
/* A token's id, and its text with its bytes. 0 and "" for a token that there is not. */
int32_t explanation_table_token(const explanation_table *t, table_side side, int32_t token, const char **text,
                                size_t *bytes);

#endif
