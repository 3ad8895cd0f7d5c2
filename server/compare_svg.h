/* compare_svg.h - two explanations as one picture, for papers: the same tokens above each other, the colours of one
 * scale, and a third line with their differences. */
#ifndef SERVER_COMPARE_SVG_H
#define SERVER_COMPARE_SVG_H

#include <jansson.h>

#include "server/buffer.h"

/* Append the picture of an answer of compare_join. */
void compare_svg_write(const json_t *answer, buffer *out);

#endif
