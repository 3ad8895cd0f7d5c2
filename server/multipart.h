/* multipart.h - parse a multipart/form-data body (RFC 7578, RFC 2046) as it arrives.
 *
 * The text before the first delimiter and after the closing one is ignored. A line that begins with the boundary and
 * continues with other characters is content. Constructs that these documents forbid or deprecate are refused if their
 * content would be misread: encoded parts, and parts that contain parts. */
#ifndef SERVER_MULTIPART_H
#define SERVER_MULTIPART_H

#include "server/buffer.h"

enum { MULTIPART_BOUNDARY_BYTES = 70, MULTIPART_HEAD_BYTES = 8 << 10 };

typedef enum multipart_state { MULTIPART_PREAMBLE, MULTIPART_HEAD, MULTIPART_BODY, MULTIPART_EPILOGUE } multipart_state;

typedef struct multipart_handler {
	/* A part begins. name and file_name are NULL if absent. Return false to stop. */
	bool (*part)(void *context, const char *name, const char *file_name);
	/* At least one byte of its content. Return false to stop. */
	bool (*data)(void *context, const char *data, size_t bytes);
} multipart_handler;

typedef struct multipart {
	const multipart_handler *handler;
	void *context;
	multipart_state state;
	char delimiter[sizeof "\r\n--" + MULTIPART_BOUNDARY_BYTES]; /* with the line end before it */
	size_t delimiter_bytes;
	buffer held;       /* bytes whose meaning is not known yet */
	bool bare;         /* the first two bytes held end the head and are not content */
	const char *wrong; /* the error after a failure; NULL: the handler stopped, or memory ran out */
} multipart;

/* content_type: the header's value, or NULL. False if its boundary is missing or malformed; then there is nothing to
 * free. */
bool multipart_init(multipart *m, const char *content_type, const multipart_handler *handler, void *context);
void multipart_fini(multipart *m);
/* Parse more bytes. Must not be called again after false. */
bool multipart_feed(multipart *m, const char *data, size_t bytes);
/* True if the closing delimiter has come. */
bool multipart_whole(const multipart *m);

#endif
