/* svg.h - parts of pictures: lines of monospaced text, 80 columns wide, with boxes around the text. Black on white, no
 * fonts and no network. Each text states its width (textLength), so a token fills its box with any font. */
#ifndef SERVER_SVG_H
#define SERVER_SVG_H

#include <stdbool.h>

#include "server/buffer.h"
#include "server/explain_view.h"

enum { SVG_COLUMNS = 80 };
#define SVG_PLUS "#e66100"
#define SVG_MINUS "#1a6fc4"

/* Write a whole picture with this many columns and lines; title and body are markup. A failed body fails `out`. */
void svg_write(buffer *out, const buffer *title, const buffer *body, size_t columns, size_t lines);

/* Begin a text; "</text>" ends it. */
void svg_text(buffer *out, size_t line, size_t column);
/* Draw a box in the colour of `heat`, -1 to 1. Signed values have a line below: solid if positive, dotted if
 * negative. */
void svg_box(buffer *out, size_t line, size_t column, size_t columns, double heat, bool is_signed);
/* Draw a token of a view, whose text explain_view_token wrote in this many columns: its box, an edge if its prediction
 * is explained, and its number as a tooltip. */
void svg_token(buffer *out, const explain_view *v, size_t i, const buffer *shown, size_t line, size_t column,
               size_t columns);
/* Draw three boxes (two for weights) with their values on one line. */
void svg_legend(buffer *out, const explain_view *v, size_t line);

#endif
