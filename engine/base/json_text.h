/* json_text.h - a JSON document as text, whole or not at all.
 *
 * jansson's own json_dumps (2.14) ignores it when the text before a member's name cannot be kept for want of memory,
 * and returns a text with a hole. */
#ifndef ENGINE_BASE_JSON_TEXT_H
#define ENGINE_BASE_JSON_TEXT_H

#include <jansson.h>

/* json_dumps, malloc'ed. NULL: out of memory, or json is NULL. */
char *json_text(const json_t *json, size_t flags);

#endif
