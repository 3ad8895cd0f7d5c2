/* embedded.h - files embedded in the program by embed.py at build time: proto/openapi.yaml as JSON, and the page. A
 * NUL that is not counted follows the bytes. */
#ifndef SERVER_EMBEDDED_H
#define SERVER_EMBEDDED_H

#include <stddef.h>

typedef struct embedded_file {
	const char *data;
	size_t bytes;
} embedded_file;

/* A file of the page at /, or openapi.json, as it is and compressed with gzip. */
typedef struct web_file {
	const char *name;
	embedded_file plain, gzip;
} web_file;

extern const web_file web_files[]; /* ended by a NULL name */
extern const char web_version[];   /* hash of the files, 16 hex digits */

/* saved.js is one script with the modules that it imports. */
extern const embedded_file embedded_saved_html, embedded_saved_js, embedded_style_css;
extern const web_file embedded_openapi_yaml;

#endif
