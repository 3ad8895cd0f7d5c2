/* json_grammar.h - the grammar of JSON texts (RFC 8259), of any object or of what a JSON Schema describes.
 *
 * The grammar is narrower than JSON, so that every text ends and is read alike by all: white space is a space, or a
 * newline and up to 20 spaces, behind an opening bracket, a comma or a colon and before a closing bracket; numbers have
 * up to 16 digits before and behind the point, exponents up to two; a surrogate is one of a pair. Of a schema:
 *
 *   properties stand in the order in which the schema has them, without escapes in their names;
 *   names of further properties (additionalProperties is not false) have no escapes and differ from those;
 *   values of enum and const are written compactly;
 *   without "type", a schema with keywords of one type means that type.
 *
 * Understood: type, properties, required, additionalProperties, items, minItems, maxItems, minLength, maxLength, enum,
 * const, anyOf, $ref within the schema; true and false. Annotations (title, description, default, examples, …) are
 * ignored. Anything else is STATUS_UNSUPPORTED, with its path in the schema as param. */
#ifndef ENGINE_TEXT_GRAMMAR_JSON_GRAMMAR_H
#define ENGINE_TEXT_GRAMMAR_JSON_GRAMMAR_H

#include <jansson.h>

#include "engine/text/grammar/grammar.h"

/* schema NULL: any object. STATUS_NOMEM, UNSUPPORTED; STATUS_INVALID: a keyword has a wrong value, or no value fits the
 * schema; STATUS_TOO_LARGE. param of the schema as a whole: "". */
status json_grammar_new(grammar **out, const json_t *schema, error *err);

#endif
