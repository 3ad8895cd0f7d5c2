/* json_text.h - print a JSON document completely or not at all.
 *
 * This replaces json_dumps. Its text may come from the reserve (reserve.h), which free() does not accept. It also
 * ignores some failed allocations, so an incomplete document would pass for a complete one. */
#ifndef ENGINE_BASE_JSON_TEXT_H
#define ENGINE_BASE_JSON_TEXT_H

#include <jansson.h>
#include <stddef.h>

/* Print `document` with json_dumps's flags; release the text with free(). NULL if the document is NULL or memory is
 * short. Also NULL if an allocation for JSON has failed on this thread since reserve_forget, since the document may
 * then be incomplete; that failure is then forgotten. */
char *json_text(const json_t *document, size_t flags);
/* Like json_text, but the text is released with reserve_free(): up to RESERVE_MAX_BLOCK bytes may come from the
 * reserve. Used for answers, so that completed work is always acknowledged. */
char *json_text_reserve(const json_t *document, size_t flags);

/* json_string of a text from elsewhere, such as a file's name: bytes that are not UTF-8 become '?' (utf8_repair). NULL
 * only when memory is short. */
json_t *json_text_repaired(const char *text);

#endif
