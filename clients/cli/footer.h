/* footer.h - lines at the end of a terminal's output that are drawn again in place while other output scrolls above
 * them. Zero-initialise.
 *
 * The cursor stays at the end of the last line. A line that the terminal has since become too narrow for counts as
 * wrapped, as most terminals do it: those that cut it instead lose some lines above. */
#ifndef CLI_FOOTER_H
#define CLI_FOOTER_H

#include <stdio.h>

#include "clients/cli/text.h"

enum { FOOTER_LINES = 40 };

typedef struct footer {
	int columns[FOOTER_LINES]; /* widths of the lines on the screen */
	int n;                     /* 0: nothing is drawn */
} footer;

/* Draw `lines`, at most FOOTER_LINES with \n between them and none wider than `width` - 1, in place of what is drawn.
 * width: of the terminal now, as for footer_erase. One write. */
void footer_draw(footer *f, FILE *file, int width, const text *lines);
/* Nothing is drawn any more, and the cursor is where the first line began. */
void footer_erase(footer *f, FILE *file, int width);
/* Keep the drawn lines and move the cursor below them. */
void footer_leave(footer *f, FILE *file);
/* Forget the drawn lines, which have moved, for example while the process was stopped. */
void footer_forget(footer *f);

#endif
