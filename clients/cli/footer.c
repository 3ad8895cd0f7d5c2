#include "clients/cli/footer.h"

#include <string.h>

#include "clients/cli/terminal.h"

/* From the cursor's row to that of the first line. */
static int rows_above(const footer *f, int width)
{
	int rows = -1;

	for (int i = 0; i < f->n; i++)
		rows += width > 0 && f->columns[i] > width ? (f->columns[i] + width - 1) / width : 1;
	return rows > 0 ? rows : 0;
}

/* To the first column of the first line. All rows are cleared: some may be left over, of lines or of wrapped ones. */
static void go_back(const footer *f, int width, text *out)
{
	int rows = rows_above(f, width);

	text_string(out, "\r");
	if (rows > 0)
		text_format(out, "\x1b[%dA\x1b[J", rows);
	else
		text_string(out, "\x1b[K");
}

static void write_out(FILE *file, text *out)
{
	fwrite(text_get(out), 1, out->used, file);
	fflush(file);
	text_free(out);
}

void footer_draw(footer *f, FILE *file, int width, const text *lines)
{
	const char *line = text_get(lines);
	text out = {0};

	go_back(f, width, &out);
	for (f->n = 0; f->n < FOOTER_LINES; line++) {
		size_t n = strcspn(line, "\n");

		text_string(&out, f->n > 0 ? "\n\r" : "");
		text_append(&out, line, n);
		f->columns[f->n++] = terminal_columns(line, n);
		line += n;
		if (!*line)
			break;
	}
	write_out(file, &out);
}

void footer_erase(footer *f, FILE *file, int width)
{
	text out = {0};

	if (f->n == 0)
		return;
	go_back(f, width, &out);
	f->n = 0;
	write_out(file, &out);
}

void footer_leave(footer *f, FILE *file)
{
	if (f->n > 0)
		fputc('\n', file);
	f->n = 0;
}

void footer_forget(footer *f)
{
	f->n = 0;
}
