/* uri.h - the parsed target of a request: decoded path segments and query parameters.
 *
 * Decoding happens after splitting, so "%2f" never makes a new segment; a NUL, a bad escape or bytes that are not UTF-8
 * make the whole target invalid. */
#ifndef SERVER_URI_H
#define SERVER_URI_H

#include <stdbool.h>

enum { URI_MAX_SEGMENTS = 8, URI_MAX_QUERY = 16 };

typedef struct uri_pair {
	const char *name, *value;
} uri_pair;

typedef struct uri {
	char *memory;
	const char *segments[URI_MAX_SEGMENTS]; /* "/v1/models" has two, "/" none */
	int n_segments;
	uri_pair query[URI_MAX_QUERY];
	int n_query;
	bool out_of_memory; /* the reason why it is empty */
} uri;

/* Parse a request target ("/v1/files?limit=2", or with scheme and host before it). False when it is
 * invalid or out of memory; the uri is empty then. Free with uri_fini either way. */
bool uri_parse(uri *u, const char *target);
/* The parameter's value, or NULL. */
const char *uri_query(const uri *u, const char *name);
void uri_fini(uri *u);

/* True for [A-Za-z0-9._:-]{1,63} that is not only dots, the form of ids and file names. */
bool uri_id_valid(const char *id);
/* The last component of a client's file name, with either kind of slash; may be empty. */
const char *uri_base_name(const char *path);
/* True if the text is valid UTF-8. */
bool uri_utf8_valid(const char *text);

#endif
