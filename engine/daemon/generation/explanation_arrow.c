/* explanation_arrow.c - the rows as an Apache Arrow IPC stream (format version 5): the schema, record batches of BATCH
 * rows, the end.
 *
 * A message is four bytes of ones, the size of its metadata, the metadata, and the buffers of a batch's columns, each
 * padded to eight bytes. The metadata is a FlatBuffers document, written here from its root on. A table is a vtable
 * with the offsets of its fields, then the fields; the objects that they refer to follow. No C library in Debian writes
 * the two documents that are needed. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/explanation_format.h"

/* --- FlatBuffers ------------------------------------------------------------------------------ */

typedef struct flat {
	unsigned char bytes[4096];
	size_t used;
} flat;

static void flat_put(flat *f, size_t at, uint64_t value, size_t n)
{
	assert(at + n <= sizeof f->bytes);
	for (size_t i = 0; i < n; i++)
		f->bytes[at + i] = (unsigned char)(value >> 8 * i);
}

static void flat_append(flat *f, uint64_t value, size_t n)
{
	flat_put(f, f->used, value, n);
	f->used += n;
}

/* Pad with zeros until the byte `ahead` bytes from here is at a multiple of `to`. */
static void flat_align(flat *f, size_t to, size_t ahead)
{
	while ((f->used + ahead) % to != 0)
		flat_append(f, 0, 1);
}

/* Make the field at `at` refer to `target`. */
static void flat_refer(flat *f, size_t at, size_t target)
{
	flat_put(f, at, target - at, 4);
}

/* Append a table of zeros; the digits of `sizes` are the sizes of its fields (0: absent). `at` receives their
 * offsets. */
static size_t flat_table(flat *f, const char *sizes, size_t *at)
{
	const size_t n = strlen(sizes);
	size_t offset = 4; /* after the offset of the vtable */
	flat_align(f, 8, 4 + 2 * n);
	const size_t vtable = f->used, table = vtable + 4 + 2 * n;
	for (size_t i = 0; i < n; i++) {
		const size_t size = (size_t)(sizes[i] - '0');
		offset = size ? (offset + size - 1) / size * size : offset;
		at[i] = table + offset;
		flat_put(f, vtable + 4 + 2 * i, size ? offset : 0, 2);
		offset += size;
	}
	flat_put(f, vtable, 4 + 2 * n, 2);
	flat_put(f, vtable + 2, offset, 2);
	f->used = table;
	flat_append(f, table - vtable, 4);
	while (f->used < table + offset)
		flat_append(f, 0, 1);
	return table;
}

/* Start a list of n elements, which the caller appends next, aligned to `to`. */
static size_t flat_list(flat *f, size_t n, size_t to)
{
	flat_align(f, to, 4);
	flat_append(f, n, 4);
	return f->used - 4;
}

static size_t flat_string(flat *f, const char *text)
{
	const size_t at = flat_list(f, strlen(text), 4);
	for (; *text; text++)
		flat_append(f, (unsigned char)*text, 1);
	flat_append(f, 0, 1);
	return at;
}

/* --- messages --------------------------------------------------------------------------------- */

/* Constants of Schema.fbs and Message.fbs. */
enum { VERSION_5 = 4, HEADER_SCHEMA = 1, HEADER_BATCH = 3, TYPE_INT = 2, TYPE_FLOAT = 3, TYPE_UTF8 = 5, SINGLE = 1 };

typedef enum column_type { INT32, FLOAT32, UTF8 } column_type;
static const struct {
	const char *name;
	column_type type;
} columns[] = {{"path", UTF8}, {"position", INT32}, {"layer", INT32},    {"head", INT32}, {"round", UTF8},
               {"side", UTF8}, {"token", INT32},    {"token_id", INT32}, {"text", UTF8},  {"value", FLOAT32}};
enum { COLUMNS = sizeof columns / sizeof *columns, BATCH = 4096, MAX_BUFFERS = 3 * COLUMNS };

/* Message { version, type of the header, header, bodyLength }; returns the place of the reference to the header. */
static size_t begin_message(flat *f, int header, int64_t body)
{
	size_t at[4];
	f->used = 4;
	const size_t message = flat_table(f, "2148", at);
	flat_refer(f, 0, message);
	flat_put(f, at[0], VERSION_5, 2);
	flat_put(f, at[1], (uint64_t)header, 1);
	flat_put(f, at[3], (uint64_t)body, 8);
	return at[2];
}

static void write_message(flat *f, format_buffer *out)
{
	unsigned char head[8] = {255, 255, 255, 255};
	flat_align(f, 8, 0);
	for (size_t i = 0; i < 4; i++)
		head[4 + i] = (unsigned char)(f->used >> 8 * i);
	format_buffer_append(out, head, sizeof head);
	format_buffer_append(out, f->bytes, f->used);
}

static size_t write_type(flat *f, column_type type)
{
	size_t at[2], table = flat_table(f, type == INT32 ? "41" : type == FLOAT32 ? "2" : "", at);
	if (type == INT32) {
		flat_put(f, at[0], 32, 4); /* bitWidth */
		flat_put(f, at[1], 1, 1);  /* is_signed */
	} else if (type == FLOAT32) {
		flat_put(f, at[0], SINGLE, 2);
	}
	return table;
}

/* Field { name, nullable, kind of the type, type, dictionary, children } */
static size_t write_field(flat *f, int i)
{
	static const int types[] = {[INT32] = TYPE_INT, [FLOAT32] = TYPE_FLOAT, [UTF8] = TYPE_UTF8};
	size_t at[6];
	const size_t field = flat_table(f, "411404", at);
	flat_put(f, at[1], 1, 1);
	flat_put(f, at[2], (uint64_t)types[columns[i].type], 1);
	flat_refer(f, at[0], flat_string(f, columns[i].name));
	flat_refer(f, at[3], write_type(f, columns[i].type));
	flat_refer(f, at[5], flat_list(f, 0, 4));
	return field;
}

/* Schema { endianness, fields } */
static void write_schema(format_buffer *out)
{
	flat f = {.used = 0};
	size_t at[2];
	const size_t header = begin_message(&f, HEADER_SCHEMA, 0);
	flat_refer(&f, header, flat_table(&f, "04", at));
	const size_t fields = flat_list(&f, COLUMNS, 4);
	flat_refer(&f, at[1], fields);
	for (int i = 0; i < COLUMNS; i++)
		flat_append(&f, 0, 4);
	for (int i = 0; i < COLUMNS; i++)
		flat_refer(&f, fields + 4 + 4 * (size_t)i, write_field(&f, i));
	write_message(&f, out);
}

/* --- batches ------------------------------------------------------------------------------------ */

typedef struct cell {
	int32_t number;   /* INT32; TABLE_NONE: null */
	float value;      /* FLOAT32 */
	const char *text; /* UTF8; NULL: null */
	size_t bytes;
} cell;

typedef struct batch {
	cell cells[COLUMNS][BATCH];
	size_t rows;
	int64_t nulls[COLUMNS];
	int64_t lengths[MAX_BUFFERS]; /* bytes of the buffers, in order */
	int buffers;
} batch;

static size_t padded(size_t n)
{
	return (n + 7) & ~(size_t)7;
}

static cell text_cell(const char *text, size_t n)
{
	return (cell){.text = text, .bytes = n};
}

static void explanation_arrow_add_row(batch *b, const explanation_table *t, const table_row *row)
{
	const table_series *s = row->series;
	const char *text;
	size_t n;
	const int32_t id = explanation_table_token(t, s->side, row->token, &text, &n);
	const char *side = explanation_table_side(row);
	const bool token = row->token != TABLE_NONE;
	const cell cells[COLUMNS] = {text_cell(s->path, strlen(s->path)),
	                             {.number = row->position},
	                             {.number = s->layer},
	                             {.number = s->head},
	                             text_cell(s->round[0] ? s->round : NULL, strlen(s->round)),
	                             text_cell(token ? side : NULL, strlen(side)),
	                             {.number = row->token},
	                             {.number = token ? id : TABLE_NONE},
	                             text_cell(token ? text : NULL, n),
	                             {.value = row->value}};
	for (int c = 0; c < COLUMNS; c++)
		b->cells[c][b->rows] = cells[c];
	b->rows++;
}

static bool is_null(column_type type, const cell *c)
{
	return type == UTF8 ? !c->text : type == INT32 && c->number == TABLE_NONE;
}

/* Bitmap of cells that are not null; offsets of texts; data. */
static void explanation_arrow_measure(batch *b)
{
	b->buffers = 0;
	for (int c = 0; c < COLUMNS; c++) {
		size_t data = columns[c].type == UTF8 ? 0 : b->rows * 4;
		b->nulls[c] = 0;
		for (size_t i = 0; i < b->rows; i++) {
			b->nulls[c] += is_null(columns[c].type, &b->cells[c][i]);
			data += columns[c].type == UTF8 ? b->cells[c][i].bytes : 0;
		}
		b->lengths[b->buffers++] = (int64_t)(b->rows + 7) / 8;
		if (columns[c].type == UTF8)
			b->lengths[b->buffers++] = (int64_t)(b->rows + 1) * 4;
		b->lengths[b->buffers++] = (int64_t)data;
	}
}

static void write_padding(format_buffer *out, size_t n)
{
	static const char zeros[8];
	format_buffer_append(out, zeros, padded(n) - n);
}

static void write_valid(const batch *b, int column, format_buffer *out)
{
	unsigned char bits[BATCH / 8] = {0};
	for (size_t i = 0; i < b->rows; i++)
		bits[i / 8] |= (unsigned char)(!is_null(columns[column].type, &b->cells[column][i]) << i % 8);
	format_buffer_append(out, bits, (b->rows + 7) / 8);
	write_padding(out, (b->rows + 7) / 8);
}

static void write_texts(const cell *cells, size_t n, format_buffer *out)
{
	int32_t offset = 0;
	for (size_t i = 0; i <= n; i++) {
		format_buffer_append(out, &offset, sizeof offset);
		offset += i < n ? (int32_t)cells[i].bytes : 0;
	}
	write_padding(out, (n + 1) * sizeof offset);
	for (size_t i = 0; i < n; i++)
		format_buffer_append(out, cells[i].text, cells[i].bytes);
	write_padding(out, (size_t)offset);
}

static void write_columns(const batch *b, format_buffer *out)
{
	for (int c = 0; c < COLUMNS; c++) {
		const cell *cells = b->cells[c];
		write_valid(b, c, out);
		if (columns[c].type == UTF8) {
			write_texts(cells, b->rows, out);
			continue;
		}
		for (size_t i = 0; i < b->rows; i++)
			format_buffer_append(
			    out, columns[c].type == INT32 ? (const void *)&cells[i].number : &cells[i].value, 4);
		write_padding(out, b->rows * 4);
	}
}

/* RecordBatch { length, nodes: [{ length, nulls }], buffers: [{ offset, length }] } */
static void write_batch(batch *b, format_buffer *out)
{
	flat f = {.used = 0};
	size_t at[3];
	int64_t body = 0;
	explanation_arrow_measure(b);
	for (int i = 0; i < b->buffers; i++)
		body += (int64_t)padded((size_t)b->lengths[i]);
	const size_t header = begin_message(&f, HEADER_BATCH, body);
	flat_refer(&f, header, flat_table(&f, "844", at));
	flat_put(&f, at[0], b->rows, 8);
	flat_refer(&f, at[1], flat_list(&f, COLUMNS, 8));
	for (int c = 0; c < COLUMNS; c++) {
		flat_append(&f, b->rows, 8);
		flat_append(&f, (uint64_t)b->nulls[c], 8);
	}
	flat_refer(&f, at[2], flat_list(&f, (size_t)b->buffers, 8));
	body = 0;
	for (int i = 0; i < b->buffers; i++) {
		flat_append(&f, (uint64_t)body, 8);
		flat_append(&f, (uint64_t)b->lengths[i], 8);
		body += (int64_t)padded((size_t)b->lengths[i]);
	}
	write_message(&f, out);
	write_columns(b, out);
}

static status arrow_piece(explanation_writer *w, format_buffer *out, error *err)
{
	static const unsigned char end[8] = {255, 255, 255, 255};
	table_row row;
	(void)err;
	if (!w->started) {
		w->own = memory_new(1, sizeof(batch));
		if (!w->own)
			return STATUS_NOMEM;
		write_schema(out);
	}
	batch *b = w->own;
	if (!b) /* the end is written */
		return STATUS_OK;
	b->rows = 0;
	while (b->rows < BATCH && explanation_table_next(&w->table, &w->at, &row))
		explanation_arrow_add_row(b, &w->table, &row);
	if (b->rows > 0) {
		write_batch(b, out);
		return STATUS_OK;
	}
	format_buffer_append(out, end, sizeof end);
	free(b);
	w->own = NULL;
	return STATUS_OK;
}

const explanation_format explanation_arrow = {"arrow", "application/vnd.apache.arrow.stream", "explanation.arrows",
                                              arrow_piece};
