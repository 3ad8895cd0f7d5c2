/* embedded.h - files embedded in the program by embed.py at build time: proto/openapi.yaml as JSON, and the pages. A
 * NUL that is not counted follows the bytes. */
#ifndef SERVER_EMBEDDED_H
#define SERVER_EMBEDDED_H

#include <stddef.h>

typedef struct embedded_file {
	const char *data;
	size_t bytes;
} embedded_file;

/* A file of the page at /, as it is and compressed with gzip. */
typedef struct web_file {
	const char *name;
	embedded_file plain, gzip;
} web_file;

extern const web_file web_files[]; /* ended by a NULL name */
extern const char web_version[];   /* hash of the files, 16 hex digits */

extern const embedded_file embedded_openapi_yaml, embedded_explain_html, embedded_explain_css,
    embedded_explain_js, embedded_compare_html, embedded_compare_css, embedded_compare_js, embedded_faithfulness_html,
    embedded_faithfulness_css, embedded_strip_js, embedded_numbers_html;

#endif
