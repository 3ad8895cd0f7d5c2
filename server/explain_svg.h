/* explain_svg.h - the first view of an explanation as a picture, for papers: black on white, no fonts and no network.
 */
#ifndef SERVER_EXPLAIN_SVG_H
#define SERVER_EXPLAIN_SVG_H

#include <jansson.h>

#include "server/buffer.h"

/* Append the picture: the explained output, the text with a coloured box around each token, and the scale. A negative
 * value is blue with a dotted line below, a positive one orange with a solid line. */
void explain_svg_write(const json_t *explanation, buffer *out);

#endif
