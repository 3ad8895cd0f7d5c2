/* json_grammar.h - the grammar of JSON texts (RFC 8259), of any object or of what a JSON Schema describes.
 *
 * The grammar is narrower than JSON, so that every text ends and all readers agree about it. Texts are compact: there
 * is no white space outside strings. Numbers have up to 16 digits before and after the point, exponents up to two. A
 * surrogate is one of a pair. For a schema:
 *
 *   properties are in the order in which the schema has them, without escapes in their names;
 *   an object with listed properties has further ones only if additionalProperties is true or a schema, since a model
 *     that may invent names rarely ends; their names have no escapes and differ from the listed ones;
 *   values of enum and const are written compactly;
 *   without "type", a schema with keywords of one type means that type;
 *   numbers with bounds have no exponent (number_range.h);
 *   strings with a pattern or a format are spelled in one way (pattern.h); a format means its ordinary values
 *     (string_formats.c), and an unknown format any string;
 *   different items are in the order of the enum when there are more than six, and strings and numbers begin with
 *     different characters, in ascending order;
 *   names that fit propertyNames or patternProperties are the only ones.
 *
 * Understood: type, enum, const; properties, required, additionalProperties, minProperties, maxProperties, and
 * propertyNames or one pattern in patternProperties where no name is listed; items, prefixItems, additionalItems,
 * minItems, maxItems, uniqueItems (of listed values, strings, numbers, and unions of these); minLength, maxLength,
 * pattern, format; minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf; anyOf, oneOf whose alternatives
 * exclude each other, discriminator, allOf of one schema, $ref within the schema; true and false. Annotations (title,
 * description, default, examples, contentMediaType, x-…, …) are ignored. Anything else is STATUS_UNSUPPORTED, with its
 * path in the schema as param. */
#ifndef ENGINE_TEXT_GRAMMAR_JSON_GRAMMAR_H
#define ENGINE_TEXT_GRAMMAR_JSON_GRAMMAR_H

#include <jansson.h>

#include "engine/text/grammar/json_forms.h"

/* schema NULL: any object. STATUS_NOMEM, UNSUPPORTED; STATUS_INVALID: a keyword has a wrong value, or no value fits the
 * schema; STATUS_TOO_LARGE. param of the schema as a whole: "". */
status json_grammar_new(grammar **out, const json_t *schema, error *err);
/* For a grammar with other parts: add the values of a schema, in the style of `forms`. *budget: steps left for automata
 * and comparisons. Errors as above, except those of grammar_finish. */
status json_grammar_add(const json_forms *forms, const json_t *schema, int64_t *budget, grammar_node *out, error *err);
grammar_node json_grammar_any_object(const json_forms *forms);

#endif
