/* svg.h - what pictures are made of: lines of monospaced text, 80 columns wide, with boxes behind the text. Black on
 * white, no fonts and no network. Each text has its width said (textLength), so a token fills its box whatever font a
 * viewer has. */
#ifndef SERVER_SVG_H
#define SERVER_SVG_H

#include <stdbool.h>

#include "server/buffer.h"
#include "server/explain_view.h"

enum { SVG_COLUMNS = 80 };
#define SVG_PLUS "#e66100"
#define SVG_MINUS "#1a6fc4"

/* The whole picture of so many columns and lines; title and body are markup. A failed body fails `out`. */
void svg_write(buffer *out, const buffer *title, const buffer *body, size_t columns, size_t lines);

/* Begin a text; "</text>" ends it. */
void svg_text(buffer *out, size_t line, size_t column);
/* A box in the colour of `heat`, -1 to 1, with a line below of what is signed: solid where positive, dotted where
 * negative. */
void svg_box(buffer *out, size_t line, size_t column, size_t columns, double heat, bool is_signed);
/* An empty box with an edge. */
void svg_edge(buffer *out, size_t line, size_t column, size_t columns);
/* A token of a view, as explain_view_token has shown it in so many columns: with its box, its edge where its prediction
 * is explained, and its number as a tooltip. */
void svg_token(buffer *out, const explain_view *v, size_t i, const buffer *shown, size_t line, size_t column,
               size_t columns);
/* Three boxes (of weights two) with the numbers that they stand for, on one line. */
void svg_legend(buffer *out, const explain_view *v, size_t line);

#endif
