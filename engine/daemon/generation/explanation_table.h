/* explanation_table.h - the numbers of an explanation, as the API answers it, as rows.
 *
 * A *series* is a list of numbers in the answer, or a single one, with its path ("weights.alpha"). Its rows share the
 * position, layer, head and round of the enclosing objects, and the side: numbers within a member `source` belong to
 * the source's tokens. Each real number of an answer is in exactly one series, whatever members the answer has. A row
 * is one number, usually of one token.
 *
 * The numbers are copied as floats. The table keeps references to the tokens of both sides, not to the rest of the
 * explanation, which has about seventy bytes for each number. Any thread, one at a time. */
#ifndef ENGINE_DAEMON_GENERATION_EXPLANATION_TABLE_H
#define ENGINE_DAEMON_GENERATION_EXPLANATION_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { TABLE_PATH_BYTES = 64, TABLE_ROUND_BYTES = 24, TABLE_NONE = -1 };

typedef enum table_side { TABLE_TEXT, TABLE_SOURCE, TABLE_SIDES } table_side;

typedef enum table_shape {
	TABLE_NUMBER,    /* a single number without a token */
	TABLE_TOKENS,    /* number i belongs to token first + i */
	TABLE_POSITIONS, /* number i belongs to position i, not to a token */
	TABLE_PAIRS      /* [token, number]… */
} table_shape;

typedef struct table_series {
	char path[TABLE_PATH_BYTES];
	char round[TABLE_ROUND_BYTES]; /* "": none */
	table_shape shape;
	table_side side;
	bool listed;                   /* its object is a member of a list */
	int32_t position, layer, head; /* TABLE_NONE: none */
	int32_t first;                 /* TABLE_TOKENS: the token of number 0 */
	size_t count;
	float *values;
	int32_t *pair_tokens; /* TABLE_PAIRS: the token of each number; otherwise NULL */
} table_series;

typedef struct explanation_table {
	json_t *tokens[TABLE_SIDES]; /* references; NULL: the explanation lacks this side */
	table_series *series;
	size_t n, capacity;
} explanation_table;

typedef struct table_row {
	const table_series *series;
	int32_t position, token; /* TABLE_NONE: none */
	float value;
} table_row;

/* Position in the table; zero is the start. */
typedef struct table_cursor {
	size_t series, item;
} table_cursor;

/* STATUS_NOMEM; call explanation_table_fini also then. */
status explanation_table_init(explanation_table *t, const json_t *explanation);
void explanation_table_fini(explanation_table *t);
/* Return number i of a series. */
table_row explanation_table_row(const table_series *s, size_t i);
/* Return the next row of the table; false at the end. */
bool explanation_table_next(const explanation_table *t, table_cursor *at, table_row *out);
/* Return the name of the side of a row's token; "": no token. */
const char *explanation_table_side(const table_row *row);
/* Return a token's id, and its text with its length. 0 and "" for a token that does not exist. */
int32_t explanation_table_token(const explanation_table *t, table_side side, int32_t token, const char **text,
                                size_t *bytes);

#endif
