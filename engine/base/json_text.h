/* json_text.h - a JSON document as text, whole or not at all.
 *
 * In place of json_dumps: its text may come from the reserve (reserve.h), which free() does not take, and it ignores
 * some failed allocations, so that a document with a hole would pass for a whole one. */
#ifndef ENGINE_BASE_JSON_TEXT_H
#define ENGINE_BASE_JSON_TEXT_H

#include <jansson.h>
#include <stddef.h>

/* The text of `document` with json_dumps's flags, to be released with free(). NULL when the document is NULL or
 * memory is short, also when an allocation for JSON has failed on this thread since reserve_forget: what was built
 * since then may have a hole. That failure is then forgotten. */
char *json_text(const json_t *document, size_t flags);
/* The same, to be released with reserve_free(): a text of up to RESERVE_MAX_BLOCK bytes may come from the reserve. For
 * answers: what has been done is also acknowledged. */
char *json_text_reserve(const json_t *document, size_t flags);

/* json_string of a text from elsewhere, such as a file's name: what is not UTF-8 becomes '?' (utf8_repair). NULL only
 * when memory is short. */
json_t *json_text_repaired(const char *text);

#endif
