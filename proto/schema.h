/* schema.h - what a request may hold, as tables, and the check against them.
 *
 * The tables are made from openapi.yaml when the programs are built (generate.py; gen/schemas.h declares them). The
 * front end checks requests against them before the engine sees them, and the engine checks again (it trusts no peer).
 * The rules are those of the API: an unknown field is an error that names it, a number must be a finite
 * number in range, an integer has no fraction and no exponent (so json_integer_value reads it), and a string holds
 * U+0000 only where its row says so (so json_string_value reads all of the others). OpenAI fields
 * without a meaning here are FIELD_IGNORED: accepted, whatever they hold. Immutable and thread-safe. */
#ifndef PROTO_SCHEMA_H
#define PROTO_SCHEMA_H

#include <stdbool.h>

#include <jansson.h>

typedef enum field_type {
	FIELD_STRING,  /* min, max: bytes of UTF-8 */
	FIELD_INTEGER, /* min, max: value */
	FIELD_NUMBER,  /* min, max: value */
	FIELD_BOOLEAN,
	FIELD_OBJECT, /* nested: its schema; or NULL: any members, min, max: how many, items: what each must be */
	FIELD_ARRAY,  /* min, max: length; nested: schema of object elements, or items: what each must be */
	FIELD_ANY,    /* checked by the handler */
	FIELD_IGNORED,
	FIELD_UNION /* items: the alternatives, up to a field with a NULL name */
} field_type;

typedef struct schema schema;
typedef struct field field;

struct field {
	const char *name; /* of an element or alternative: any text */
	field_type type;
	bool required;
	double min, max;            /* both 0: unbounded (strings: up to SCHEMA_MAX_STRING); -1 and 0: an empty array */
	const char *const *choices; /* FIELD_STRING, FIELD_BOOLEAN: allowed values ("false"), NULL-terminated */
	const schema *nested;
	bool exclusive;     /* FIELD_NUMBER: min itself is not allowed */
	bool nul;           /* FIELD_STRING: may hold U+0000, as text for a model may and names may not */
	const field *items; /* FIELD_ARRAY, FIELD_OBJECT: one field, or NULL; FIELD_UNION: several */
};

struct schema {
	const char *name;    /* the component's name in openapi.yaml */
	const field *fields; /* ends with a NULL name */
};

/* A method of the engine, as PROTOCOL.md lists them. */
typedef struct schema_method {
	const char *name;     /* "session.append" */
	const schema *params; /* without `id` and `idempotency_key` */
	bool id;              /* params hold the id of what it is about */
	bool upload;
	bool keyed; /* takes an idempotency key */
} schema_method;

/* How both programs write JSON: nine significant digits bring every float back. */
enum { PROTO_JSON = JSON_COMPACT | JSON_REAL_PRECISION(9) };

enum { SCHEMA_MAX_STRING = 16 << 20 };

/* Texts are whole UTF-8, shortened where need be. */
typedef struct schema_error {
	char param[128]; /* "additive.config.n_heads", "stop[2]" */
	char code[32];   /* "unknown_parameter", "missing_parameter", "invalid_type", "out_of_range", "invalid_value" */
	char message[384]; /* names the field, what is allowed and what was given */
} schema_error;

/* True if `json` fits; *err is defined either way. A member that is null counts as absent, also one that no table has:
 * it is removed from every object that a table describes, so handlers find no null there. */
bool schema_check(const schema *s, json_t *json, schema_error *err);
/* What a field may be, into out: "an integer from 1 to 10000", "\"asc\" or \"desc\"". */
void schema_expected(const field *f, char *out, size_t size);

#endif
