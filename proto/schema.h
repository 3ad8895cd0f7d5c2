/* schema.h - every request's fields, types and bounds, once.
 *
 * The front end checks requests against these tables before the engine sees them, and
 * the engine checks again (it trusts no peer). A test holds the tables to openapi.yaml.
 * The rules are those of the API: an unknown field is an error that names it, a number must be a finite
 * number in range, an integer has no fraction. OpenAI fields without a meaning here are
 * FIELD_IGNORED: accepted, whatever they hold. */
#ifndef PROTO_SCHEMA_H
#define PROTO_SCHEMA_H

#include <stdbool.h>

#include <jansson.h>

typedef enum field_type {
	FIELD_STRING,  /* min, max: bytes of UTF-8 */
	FIELD_INTEGER, /* min, max: value */
	FIELD_NUMBER,  /* min, max: value */
	FIELD_BOOLEAN,
	FIELD_OBJECT,  /* nested: its schema, or NULL for any object */
	FIELD_ARRAY,   /* min, max: length; nested: schema of object elements, or NULL */
	FIELD_ANY,     /* checked by the handler */
	FIELD_IGNORED
} field_type;

typedef struct schema schema;

typedef struct field {
	const char *name;
	field_type type;
	bool required;
	double min, max; /* both 0: unbounded (strings: up to SCHEMA_MAX_STRING) */
	const char *const *choices; /* FIELD_STRING: allowed values, NULL-terminated */
	const schema *nested;
} field;

struct schema {
	const char *name; /* the component's name in openapi.yaml */
	const field *fields; /* ends with a NULL name */
};

enum { SCHEMA_MAX_STRING = 16 << 20 };

typedef struct schema_error {
	char param[128];  /* "additive.config.n_heads" */
	char code[32];    /* "unknown_parameter", "missing_parameter", "invalid_type", "out_of_range", "invalid_value" */
	char message[256];
} schema_error;

/* True when `json` fits. A JSON null counts as absent. */
bool schema_check(const schema *s, const json_t *json, schema_error *err);

extern const schema schema_completion, schema_session_create, schema_session_generate, schema_session_append,
	schema_explain, schema_tokenize, schema_detokenize, schema_job_create;
/* Every schema above, NULL-terminated, for the test that walks them. */
extern const schema *const schema_all[];

#endif
