/* fuzz_multipart - forms: the parts are the same however the body is cut, and what is written as a form is read back.
 * The first byte is the size of the pieces; up to the first line feed there is the Content-Type, after it the body. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct record {
	buffer text; /* names and contents, one after the other */
	size_t parts;
} record;

static void require(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "fuzz_multipart: %s\n", what);
	abort();
}

static bool on_part(void *context, const char *name, const char *file_name)
{
	record *r = context;
	r->parts++;
	buffer_append(&r->text, name ? "N" : "n", 1);
	buffer_append(&r->text, name ? name : "", (name ? strlen(name) : 0) + 1);
	buffer_append(&r->text, file_name ? "F" : "f", 1);
	buffer_append(&r->text, file_name ? file_name : "", (file_name ? strlen(file_name) : 0) + 1);
	return true;
}

static bool on_data(void *context, const char *data, size_t bytes)
{
	record *r = context;
	require(r->parts > 0, "content without a part");
	require(bytes > 0, "an empty piece");
	buffer_append(&r->text, data, bytes);
	return true;
}

static const multipart_handler handler = {on_part, on_data};

typedef enum outcome { WHOLE, SHORT, REFUSED } outcome;

/* type: a Content-Type whose boundary is sound. */
static outcome parse(record *r, const char *type, const char *body, size_t bytes, size_t piece)
{
	multipart m;
	bool ok = true;
	*r = (record){0};
	require(multipart_init(&m, type, &handler, r), "the boundary");
	for (size_t at = 0; ok && at < bytes; at += piece) {
		/* A copy of its own, so that a read past its end is found. */
		size_t n = bytes - at < piece ? bytes - at : piece;
		char *copy = malloc(n);
		memcpy(copy, body + at, n);
		ok = multipart_feed(&m, copy, n);
		free(copy);
		require(m.held.used < 4 * MULTIPART_HEAD_BYTES, "too much is held");
	}
	require(ok || m.wrong, "a refusal without a reason");
	outcome o = !ok ? REFUSED : multipart_whole(&m) ? WHOLE : SHORT;
	multipart_fini(&m);
	return o;
}

static void compare(const char *type, const char *body, size_t bytes, size_t piece)
{
	record whole, cut;
	outcome a = parse(&whole, type, body, bytes, bytes ? bytes : 1);
	outcome b = parse(&cut, type, body, bytes, piece);
	require(a == b && whole.parts == cut.parts, "another outcome of the same body");
	/* If the body is refused or incomplete, one way may have given more of the content. */
	size_t common = whole.text.used < cut.text.used ? whole.text.used : cut.text.used;
	require(a != WHOLE || whole.text.used == cut.text.used, "another content of the same body");
	require(common == 0 || memcmp(whole.text.data, cut.text.data, common) == 0, "other parts of the same body");
	buffer_fini(&whole.text);
	buffer_fini(&cut.text);
}

/* Write the bytes as the content of a part, and read them back. */
static void round_trip(const char *content, size_t bytes, size_t piece)
{
	static const char head[] = "--b\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n",
	                  tail[] = "\r\n--b--\r\n";
	buffer form = {0};
	record back;
	/* A line that begins with the boundary ends the content. */
	if (memmem(content, bytes, "\r\n--b", 5) || (bytes >= 3 && memcmp(content, "--b", 3) == 0))
		return;
	buffer_string(&form, head);
	buffer_append(&form, content, bytes);
	buffer_string(&form, tail);
	require(parse(&back, "multipart/form-data; boundary=b", form.data, form.used, piece) == WHOLE,
	        "a form is not read");
	require(back.parts == 1 && back.text.used == bytes + 5 && memcmp(back.text.data, "Nf\0f\0", 5) == 0,
	        "the part");
	require(bytes == 0 || memcmp(back.text.data + 5, content, bytes) == 0, "the content");
	buffer_fini(&back.text);
	buffer_fini(&form);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	multipart m;
	if (size < 1)
		return 0;
	const char *body = (const char *)data + 1, *end = memchr(body, '\n', size - 1);
	size_t piece = 1 + data[0] % 64;
	char *type = strndup(body, end ? (size_t)(end - body) : size - 1);
	size_t bytes = end ? size - 1 - (size_t)(end + 1 - body) : 0;
	bool sound = multipart_init(&m, type, &handler, NULL);
	if (sound) {
		multipart_fini(&m);
		compare(type, end ? end + 1 : "", bytes, piece);
	}
	free(type);
	round_trip(body, size - 1, piece);
	return 0;
}
