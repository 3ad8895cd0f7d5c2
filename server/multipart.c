/* Bytes are appended to `held`, which begins with a line end of its own, so that a delimiter at the beginning of the
 * body looks like any other. Each step consumes some of them or waits for more. Content goes out at once, but for an
 * end that may be the beginning of a delimiter. */
#include "server/multipart.h"

#include <string.h>
#include <strings.h>

#include "server/header_value.h"

enum { MULTIPART_PADDING_BYTES = 1 << 10 };

typedef enum multipart_step { MULTIPART_STEPPED, MULTIPART_WAITS, MULTIPART_STOPS } multipart_step;

bool multipart_init(multipart *m, const char *content_type, const multipart_handler *handler, void *context)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'()+_,-./:=? ";
	char boundary[MULTIPART_BOUNDARY_BYTES + 1];
	*m = (multipart){.handler = handler, .context = context};
	if (!content_type || header_parameter(content_type, "boundary", boundary, sizeof boundary) != HEADER_PRESENT)
		return false;
	size_t bytes = strlen(boundary);
	if (bytes == 0 || boundary[bytes - 1] == ' ' || strspn(boundary, allowed) != bytes)
		return false;
	memcpy(m->delimiter, "\r\n--", 4);
	memcpy(m->delimiter + 4, boundary, bytes);
	m->delimiter_bytes = 4 + bytes;
	buffer_string(&m->held, "\r\n");
	return true;
}

void multipart_fini(multipart *m)
{
	buffer_fini(&m->held);
}

bool multipart_whole(const multipart *m)
{
	return m->state == MULTIPART_EPILOGUE;
}

static multipart_step multipart_fail(multipart *m, const char *wrong)
{
	m->wrong = wrong;
	return MULTIPART_STOPS;
}

/* --- the head of a part ------------------------------------------------------------------- */

typedef struct multipart_head {
	bool named, has_file_name;
	char name[MULTIPART_HEAD_BYTES], file_name[MULTIPART_HEAD_BYTES];
} multipart_head;

/* The value of the line if it is the header of that name, else NULL. */
static const char *multipart_header(const char *line, const char *name)
{
	size_t bytes = strlen(name);
	if (strncasecmp(line, name, bytes) != 0)
		return NULL;
	line += bytes + strspn(line + bytes, " \t");
	return *line == ':' ? line + 1 + strspn(line + 1, " \t") : NULL;
}

static const char *multipart_read_disposition(multipart_head *h, const char *value)
{
	char extended[MULTIPART_HEAD_BYTES], decoded[MULTIPART_HEAD_BYTES];
	header_found name = header_parameter(value, "name", h->name, sizeof h->name);
	header_found file = header_parameter(value, "filename", h->file_name, sizeof h->file_name);
	header_found star = header_parameter(value, "filename*", extended, sizeof extended);
	if (name == HEADER_MALFORMED || file == HEADER_MALFORMED || star == HEADER_MALFORMED)
		return "the Content-Disposition of a part is malformed";
	h->named = name == HEADER_PRESENT;
	h->has_file_name = file == HEADER_PRESENT;
	if (star == HEADER_PRESENT && header_decode_extended(extended, decoded, sizeof decoded)) {
		memcpy(h->file_name, decoded, strlen(decoded) + 1);
		h->has_file_name = true;
	}
	return NULL;
}

/* Return what is wrong with the line, or NULL. */
static const char *multipart_read_line(multipart_head *h, const char *line)
{
	const char *disposition = multipart_header(line, "Content-Disposition");
	const char *encoding = multipart_header(line, "Content-Transfer-Encoding");
	const char *type = multipart_header(line, "Content-Type");
	if (disposition)
		return multipart_read_disposition(h, disposition);
	if (encoding && strncasecmp(encoding, "binary", 6) != 0 && strncasecmp(encoding, "8bit", 4) != 0 &&
	    strncasecmp(encoding, "7bit", 4) != 0)
		return "a part is encoded (Content-Transfer-Encoding); the bytes must be sent as they are";
	if (type && strncasecmp(type, "multipart/", 10) == 0)
		return "a part holds parts (Content-Type: multipart/...); each file must be a part of its own";
	return line[strcspn(line, ":")] ? NULL : "a line in the head of a part is no header";
}

/* Cut the head into its lines, each ended by a NUL, and join folded ones. A line end follows the head. False if there
 * is a control character. */
static bool multipart_cut_lines(char *head, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		bool end = head[i] == '\n' || (head[i] == '\r' && head[i + 1] == '\n');
		bool folded =
		    end && (head[i + 1 + (head[i] == '\r')] == ' ' || head[i + 1 + (head[i] == '\r')] == '\t');
		if (!end && (((unsigned char)head[i] < ' ' && head[i] != '\t') || head[i] == 0x7f))
			return false;
		if (!end)
			continue;
		if (head[i] == '\r')
			head[i++] = folded ? ' ' : '\0';
		head[i] = folded ? ' ' : '\0';
	}
	return true;
}

/* head: its lines with their ends, without the line end that closes it. */
static const char *multipart_read_head(multipart_head *h, char *head, size_t bytes)
{
	if (!multipart_cut_lines(head, bytes))
		return "a control character in the head of a part";
	for (char *line = head; line < head + bytes; line += strlen(line) + 1) {
		const char *wrong = *line ? multipart_read_line(h, line) : NULL;
		if (wrong)
			return wrong;
	}
	return NULL;
}

/* Bytes up to the empty line's end, 0 while it has not come. A line may end with LF alone. */
static size_t multipart_head_bytes(const char *head, size_t bytes)
{
	for (const char *at = head, *end = head + bytes; at < end;) {
		const char *feed = memchr(at, '\n', (size_t)(end - at));
		if (!feed)
			return 0;
		if (feed == at || (feed == at + 1 && *at == '\r'))
			return (size_t)(feed + 1 - head);
		at = feed + 1;
	}
	return 0;
}

static multipart_step multipart_take_head(multipart *m, char *at, size_t left, size_t *taken)
{
	multipart_head h = {0};
	size_t bytes = multipart_head_bytes(at, left < MULTIPART_HEAD_BYTES ? left : MULTIPART_HEAD_BYTES);
	if (bytes == 0)
		return left < MULTIPART_HEAD_BYTES ? MULTIPART_WAITS
		                                   : multipart_fail(m, "the head of a part is longer than 8 KiB");
	bool crlf = bytes >= 2 && at[bytes - 2] == '\r';
	const char *wrong = multipart_read_head(&h, at, bytes - (crlf ? 2 : 1));
	if (wrong)
		return multipart_fail(m, wrong);
	/* The line end that closes a head may begin a delimiter: the part then has no content. */
	*taken = crlf ? bytes - 2 : bytes;
	m->bare = crlf;
	m->state = MULTIPART_BODY;
	return m->handler->part(m->context, h.named ? h.name : NULL, h.has_file_name ? h.file_name : NULL)
	           ? MULTIPART_STEPPED
	           : MULTIPART_STOPS;
}

/* --- content ---------------------------------------------------------------------------------- */

typedef enum multipart_line { LINE_CONTENT, LINE_DELIMITER, LINE_CLOSES, LINE_UNKNOWN } multipart_line;

/* Classify the delimiter's text at `at`; *bytes: length of the whole delimiter. */
static multipart_line multipart_classify(const multipart *m, const char *at, size_t left, size_t *bytes)
{
	size_t i = m->delimiter_bytes, padding = 0;
	if (left < i + 2)
		return LINE_UNKNOWN;
	if (at[i] == '-' && at[i + 1] == '-') {
		*bytes = i + 2;
		return LINE_CLOSES;
	}
	while (i < left && (at[i] == ' ' || at[i] == '\t') && padding++ < MULTIPART_PADDING_BYTES)
		i++;
	if (left < i + 2 && (i == left || at[i] == '\r'))
		return LINE_UNKNOWN;
	*bytes = i + 2;
	return at[i] == '\r' && at[i + 1] == '\n' ? LINE_DELIMITER : LINE_CONTENT;
}

/* Index from which bytes may belong to a delimiter that has not come whole. */
static size_t multipart_open_end(const multipart *m, const char *at, size_t left)
{
	size_t longest = left < m->delimiter_bytes - 1 ? left : m->delimiter_bytes - 1;
	for (size_t bytes = longest; bytes > 0; bytes--)
		if (memcmp(at + left - bytes, m->delimiter, bytes) == 0)
			return left - bytes;
	return left;
}

static multipart_step multipart_give(multipart *m, const char *at, size_t bytes, size_t *taken)
{
	size_t skipped = m->bare && bytes > 0 ? 2 : 0;
	*taken = bytes;
	if (bytes > 0)
		m->bare = false;
	if (m->state == MULTIPART_PREAMBLE || bytes <= skipped)
		return MULTIPART_STEPPED;
	return m->handler->data(m->context, at + skipped, bytes - skipped) ? MULTIPART_STEPPED : MULTIPART_STOPS;
}

/* Content up to the next delimiter, or the delimiter. */
static multipart_step multipart_take_content(multipart *m, const char *at, size_t left, size_t *taken)
{
	const char *next = memmem(at, left, m->delimiter, m->delimiter_bytes);
	size_t content = next ? (size_t)(next - at) : multipart_open_end(m, at, left);
	if (content > 0)
		return multipart_give(m, at, content, taken);
	if (!next)
		return MULTIPART_WAITS;
	switch (multipart_classify(m, at, left, taken)) {
	case LINE_CONTENT:
		return multipart_give(m, at, m->delimiter_bytes, taken);
	case LINE_UNKNOWN:
		return MULTIPART_WAITS;
	case LINE_DELIMITER:
		m->state = MULTIPART_HEAD;
		break;
	case LINE_CLOSES:
		m->state = MULTIPART_EPILOGUE;
		break;
	}
	m->bare = false;
	return MULTIPART_STEPPED;
}

bool multipart_feed(multipart *m, const char *data, size_t bytes)
{
	buffer *held = &m->held;
	size_t used = 0;
	multipart_step step = MULTIPART_STEPPED;
	buffer_append(held, data, bytes);
	if (held->failed)
		return false;
	while (step == MULTIPART_STEPPED && m->state != MULTIPART_EPILOGUE && used < held->used) {
		char *at = held->data + used;
		size_t taken = 0;
		step = m->state == MULTIPART_HEAD ? multipart_take_head(m, at, held->used - used, &taken)
		                                  : multipart_take_content(m, at, held->used - used, &taken);
		used += taken;
	}
	if (m->state == MULTIPART_EPILOGUE)
		used = held->used;
	memmove(held->data, held->data + used, held->used - used);
	held->used -= used;
	return step != MULTIPART_STOPS;
}
