/* multipart.h - the parts of a body of multipart/form-data (RFC 7578, RFC 2046), as the body comes in.
 *
 * The text before the first delimiter and after the closing one is ignored. A line that begins with the boundary and
 * goes on with other characters is content. What these documents forbid or no longer allow is refused where its content
 * would be misread: parts that are encoded, and parts that hold parts. */
#ifndef SERVER_MULTIPART_H
#define SERVER_MULTIPART_H

#include "server/buffer.h"

enum { MULTIPART_BOUNDARY_BYTES = 70, MULTIPART_HEAD_BYTES = 8 << 10 };

typedef enum multipart_state { MULTIPART_PREAMBLE, MULTIPART_HEAD, MULTIPART_BODY, MULTIPART_EPILOGUE } multipart_state;

typedef struct multipart_handler {
	/* A part begins. name: NULL where it has none; file_name likewise. False: stop. */
	bool (*part)(void *context, const char *name, const char *file_name);
	/* Some of its content, at least one byte. False: stop. */
	bool (*data)(void *context, const char *data, size_t bytes);
} multipart_handler;

typedef struct multipart {
	const multipart_handler *handler;
	void *context;
	multipart_state state;
	char delimiter[sizeof "\r\n--" + MULTIPART_BOUNDARY_BYTES]; /* with the line end before it */
	size_t delimiter_bytes;
	buffer held;       /* bytes whose meaning is not known yet */
	bool bare;         /* the first two bytes held end the head; they are no content */
	const char *wrong; /* after a failure: why; NULL: the handler stopped, or memory ran out */
} multipart;

/* content_type: the header's value, or NULL. False if its boundary is missing or malformed; then there is nothing to
 * free. */
bool multipart_init(multipart *m, const char *content_type, const multipart_handler *handler, void *context);
void multipart_fini(multipart *m);
/* Read on. After false it is not called again. */
bool multipart_feed(multipart *m, const char *data, size_t bytes);
/* True if the closing delimiter has come. */
bool multipart_whole(const multipart *m);

#endif
