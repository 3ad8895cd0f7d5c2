/* schema_compiler.h - the parts of the compiler of JSON Schemas (internal). json_grammar.c reads a schema's keywords
 * and calls the other parts. */
#ifndef ENGINE_TEXT_GRAMMAR_SCHEMA_COMPILER_H
#define ENGINE_TEXT_GRAMMAR_SCHEMA_COMPILER_H

#include <jansson.h>

#include "engine/text/grammar/json_forms.h"

enum { SCHEMA_MAX_REFERENCES = 1024, SCHEMA_PATH_BYTES = 160, SCHEMA_MAX_KEPT = 64, SCHEMA_MAX_ALTERNATIVES = 256 };

typedef enum schema_type { OBJECT, ARRAY, STRING, NUMBER, INTEGER, BOOLEAN, NULL_TYPE, TYPES } schema_type;

/* Properties that the objects of a discriminated union must have. NULL: none. */
typedef struct schema_tags {
	const char *name;
	const struct schema_tags *outer;
} schema_tags;

/* A schema that a reference names, and the node of its values. */
typedef struct schema_reference {
	const json_t *schema;
	char *tags; /* the names of its tags, each after a NUL; owned */
	size_t tag_bytes;
	grammar_node node;
} schema_reference;

/* The node of strings or numbers with the same keywords. */
typedef struct schema_kept {
	char *key;
	grammar_node node;
} schema_kept;

typedef struct schema_compiler {
	json_forms json;
	const json_t *root;
	char path[SCHEMA_PATH_BYTES]; /* path of the schema that is being read; "" for the root */
	int depth;
	schema_reference references[SCHEMA_MAX_REFERENCES];
	schema_kept kept[SCHEMA_MAX_KEPT];
	int n_references, n_kept;
	int64_t budget; /* steps left for automata and comparisons */
	error *err;
	status problem;
} schema_compiler;

/* json_grammar.c: record the first failure, of a keyword of the current schema. Returns -1. */
grammar_node schema_refuse(schema_compiler *c, status code, const char *keyword, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
grammar_node schema_out_of_memory(schema_compiler *c);
/* The values of a schema within the current one. */
grammar_node schema_inner(schema_compiler *c, const char *where, const json_t *schema, const schema_tags *tags);
/* Read bounds that are whole numbers; max GRAMMAR_NO_BOUND: there is none. */
bool schema_read_bounds(schema_compiler *c, const json_t *schema, const char *least, const char *most, int32_t *min,
                        int32_t *max);
/* One value, written compactly. */
grammar_node schema_value(schema_compiler *c, const json_t *value);
/* Equality of JSON Schema: 1 and 1.0 are the same, also within arrays and objects. */
bool schema_same_value(const json_t *a, const json_t *b);
/* True if x is a whole number: an integer, or a real such as 1.0 that is one exactly. */
bool schema_whole_number(const json_t *x, json_int_t *out);
bool schema_is_of_types(const json_t *x, const bool types[TYPES]);
/* Set the types of the keyword "type", a name or several; all when there is none. */
bool schema_read_types(schema_compiler *c, const json_t *schema, bool types[TYPES]);

/* schema_scalars.c */
grammar_node schema_string(schema_compiler *c, const json_t *schema);
grammar_node schema_number(schema_compiler *c, const json_t *schema, bool integer);
/* The content of such strings, and such numbers; NULL: refused. */
automaton *schema_string_automaton(schema_compiler *c, const json_t *schema);
automaton *schema_number_automaton(schema_compiler *c, const json_t *schema, bool integer);
void schema_scalars_fini(schema_compiler *c);

/* schema_arrays.c */
grammar_node schema_array(schema_compiler *c, const json_t *schema);

/* schema_objects.c */
grammar_node schema_object(schema_compiler *c, const json_t *schema, const schema_tags *tags);

/* schema_unions.c: "anyOf", or "oneOf" when its alternatives exclude each other. */
grammar_node schema_union(schema_compiler *c, const json_t *schema, const char *keyword, const schema_tags *tags);
/* True if no value fits both schemas, as far as their types and listed values tell. */
bool schema_exclude(schema_compiler *c, const json_t *a, const json_t *b);

/* schema_references.c: resolve a schema: follows $ref and an allOf with one entry. NULL: endless. */
const json_t *schema_follow(const schema_compiler *c, const json_t *schema);
grammar_node schema_reference_node(schema_compiler *c, const json_t *ref, const schema_tags *tags);
void schema_references_fini(schema_compiler *c);

/* string_formats.c: a regular expression whose strings are of the format: all of them, or the ordinary ones where the
 * format is wider. NULL: the name is unknown, or only describes a value, such as "password". */
const char *string_format_pattern(const char *name);

#endif
