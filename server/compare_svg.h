/* compare_svg.h - two explanations as one picture, for papers: equal tokens above each other, one colour scale, and a
 * third line with the differences. */
#ifndef SERVER_COMPARE_SVG_H
#define SERVER_COMPARE_SVG_H

#include <jansson.h>

#include "server/buffer.h"

/* Append the picture for an answer of compare_join. */
void compare_svg_write(const json_t *answer, buffer *out);

#endif
