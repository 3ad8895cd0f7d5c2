/* markup.h - text inside HTML and SVG. Its contents are always shown, never read as markup or script. */
#ifndef SERVER_MARKUP_H
#define SERVER_MARKUP_H

#include <jansson.h>

#include "server/buffer.h"

/* Append text with & < > " ' as entities. */
void markup_escape(buffer *out, const char *text, size_t bytes);
/* Append a JSON string (anything else: the empty text) with visible signs for invisible characters. They are "·" for
 * the empty text, "↵" for the end of a line, and a control picture for another control character, which XML does not
 * allow. breaks: keep the line break after its sign. Returns the width in characters, wide ones counted twice. */
size_t markup_visible(buffer *out, const json_t *text, bool breaks);
/* Append JSON for a script element: every "<" is escaped, so nothing in it can end the element. Out of memory fails the
 * buffer. */
void markup_data(buffer *out, const json_t *json);

#endif
