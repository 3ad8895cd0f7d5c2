/* schema.h - tables of what a request may hold, and the check against them.
 *
 * The tables are generated from openapi.yaml when the programs are built (generate.py; gen/schemas.h declares them).
 * The front end checks requests against them, and the engine checks again, since it trusts no peer.
 *
 * The rules are those of the API. An unknown field is an error that names it. A number must be finite and in range. An
 * integer has no fraction and no exponent, so json_integer_value reads it. A string holds U+0000 only where its row
 * allows it, so json_string_value reads all others. OpenAI fields without a meaning here are FIELD_IGNORED: accepted
 * with any value. Immutable and thread-safe. */
#ifndef PROTO_SCHEMA_H
#define PROTO_SCHEMA_H

#include <stdbool.h>

#include <jansson.h>

typedef enum field_type {
	FIELD_STRING,  /* min, max: bytes of UTF-8 */
	FIELD_INTEGER, /* min, max: value */
	FIELD_NUMBER,  /* min, max: value */
	FIELD_BOOLEAN,
	FIELD_OBJECT, /* nested: its schema. Without one: any members; min, max: their number; items: their type */
	FIELD_ARRAY,  /* min, max: length; nested: schema of object elements, or items: their type */
	FIELD_ANY,    /* checked by the handler */
	FIELD_IGNORED,
	FIELD_UNION /* items: the alternatives, ended by a NULL name */
} field_type;

typedef struct schema schema;
typedef struct field field;

struct field {
	const char *name; /* any text for an element or alternative */
	field_type type;
	bool required;
	double min, max;            /* both 0: unbounded (strings: up to SCHEMA_MAX_STRING); -1 and 0: an empty array */
	const char *const *choices; /* FIELD_STRING, FIELD_BOOLEAN: allowed values ("false"), NULL-terminated */
	const schema *nested;
	bool exclusive;     /* FIELD_NUMBER: min itself is not allowed */
	bool null;          /* a member that may be null, which does not count as absent */
	bool nul;           /* FIELD_STRING: may hold U+0000: true for text for a model, false for names */
	const field *items; /* FIELD_ARRAY, FIELD_OBJECT: one field, or NULL; FIELD_UNION: several */
};

struct schema {
	const char *name;    /* the component's name in openapi.yaml */
	const field *fields; /* ends with a NULL name */
};

/* A method of the engine; PROTOCOL.md lists them. */
typedef struct schema_method {
	const char *name;     /* "session.append" */
	const schema *params; /* without `id` and `idempotency_key` */
	bool id;              /* params hold the id of the method's object */
	bool upload;
	bool keyed; /* takes an idempotency key */
} schema_method;

/* JSON format of both programs: nine significant digits preserve every float. */
enum { PROTO_JSON = JSON_COMPACT | JSON_REAL_PRECISION(9) };

enum { SCHEMA_MAX_STRING = 16 << 20 };

/* Texts are valid UTF-8, shortened if necessary. */
typedef struct schema_error {
	char param[128]; /* "additive.config.n_heads", "stop[2]" */
	char code[32];   /* "unknown_parameter", "missing_parameter", "invalid_type", "out_of_range", "invalid_value" */
	char message[384]; /* names the field, what is allowed and what was given */
} schema_error;

/* True if `json` fits; *err is defined in both cases. A null member counts as absent, even an unknown one. It is
 * removed from every object that a table describes, so handlers find no null there, except in fields with `null`. */
bool schema_check(const schema *s, json_t *json, schema_error *err);
/* Describe the allowed values of a field: "an integer from 1 to 10000", "\"asc\" or \"desc\"". */
void schema_expected(const field *f, char *out, size_t size);

#endif
