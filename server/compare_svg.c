#include "server/compare.h"

#include "server/svg.h"

enum { COMPARE_LABELS = 12, COMPARE_LINES = 4 }; /* columns of the labels; lines of a strip with the gap below */

typedef struct compare_place {
	size_t column, line, widest;
} compare_place;

/* The next strip: from here on three lines with their names. */
static void compare_svg_strip(compare_place *at, buffer *out)
{
	static const char *const names[] = {"first", "second", "difference"};
	at->line += COMPARE_LINES;
	at->column = COMPARE_LABELS;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		svg_text(out, at->line + i, 0);
		buffer_format(out, "%s</text>\n", names[i]);
	}
}

static void compare_svg_column(const compare_view *v, const compare_column *c, compare_place *at, buffer *out)
{
	buffer first = {0}, second = {0};
	const size_t a = c->first < v->first.n ? explain_view_token(&v->first, c->first, false, &first) : 0;
	const size_t b = c->second < v->second.n ? explain_view_token(&v->second, c->second, false, &second) : 0;
	const size_t columns = a > b ? a : b;
	if (at->column > COMPARE_LABELS && at->column + columns > SVG_COLUMNS)
		compare_svg_strip(at, out);
	if (a > 0)
		svg_token(out, &v->first, c->first, &first, at->line, at->column, a);
	if (b > 0)
		svg_token(out, &v->second, c->second, &second, at->line + 1, at->column, b);
	if (c->same)
		svg_box(out, at->line + 2, at->column, columns, compare_heat(v, c), true);
	at->column += columns;
	at->widest = at->column > at->widest ? at->column : at->widest;
	if (compare_breaks(v, c))
		at->column = SVG_COLUMNS;
	out->failed |= first.failed || second.failed;
	buffer_fini(&first);
	buffer_fini(&second);
}

static void compare_svg_side(const compare_view *v, bool second, size_t line, buffer *out)
{
	svg_text(out, line, 0);
	buffer_string(out, second ? "second: " : "first: ");
	compare_title(v, second, out);
	buffer_string(out, "</text>\n");
}

void compare_svg_write(const json_t *answer, buffer *out)
{
	compare_view v;
	buffer body = {0}, title = {0};
	compare_place at = {.line = 0, .widest = SVG_COLUMNS}; /* the strips begin on line 4 */
	if (!compare_view_init(&v, answer)) {
		out->failed = true;
		return;
	}
	buffer_string(&title, "first: ");
	compare_title(&v, false, &title);
	buffer_string(&title, "; second: ");
	compare_title(&v, true, &title);
	compare_svg_side(&v, false, 0, &body);
	compare_svg_side(&v, true, 1, &body);
	compare_svg_strip(&at, &body);
	for (size_t i = 0; i < v.n; i++)
		compare_svg_column(&v, &v.columns[i], &at, &body);
	at.line += COMPARE_LINES;
	svg_legend(&body, &v.first, at.line++);
	svg_write(out, &title, &body, at.widest, at.line);
	buffer_fini(&body);
	buffer_fini(&title);
	compare_view_fini(&v);
}
