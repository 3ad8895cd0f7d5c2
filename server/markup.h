/* markup.h - text inside HTML and SVG. Whatever the text holds is shown, never read as markup or script. */
#ifndef SERVER_MARKUP_H
#define SERVER_MARKUP_H

#include <jansson.h>

#include "server/buffer.h"

/* Append text with & < > " ' as entities. */
void markup_escape(buffer *out, const char *text, size_t bytes);
/* Append a JSON string (anything else: the empty text) with a sign for what shows nothing: "·" for the empty text, "↵"
 * for the end of a line, a control picture for another control character, which no XML may hold. breaks: keep the line
 * break behind its sign. Returns the characters of one line's width, wide ones counted twice. */
size_t markup_visible(buffer *out, const json_t *text, bool breaks);
/* Append JSON for a script element: every "<" is written as an escape, so nothing in it can end the element. Out of
 * memory fails the buffer. */
void markup_data(buffer *out, const json_t *json);

#endif
