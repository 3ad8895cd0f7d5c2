/* http.h - requests to the service, over libcurl.
 *
 * One http serves a whole command, one request at a time, and keeps the connection. A request that
 * fails leaves its reason in http_problem, in the API's own words when the service gave some.
 *
 * Not thread-safe. Strings and JSON returned belong to the caller. */
#ifndef CLI_HTTP_H
#define CLI_HTTP_H

#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

#include "clients/cli/sse.h"
#include "clients/cli/text.h"

typedef struct http http;

typedef struct http_problem {
	int status;      /* status of the answer; 0: there was none */
	int retry_after; /* seconds, as the answer says; 0: it does not */
	char code[64], param[128], message[512];
} http_problem;

/* url: of the service; key: bearer token or NULL. Both are copied. NULL when out of memory. */
http *http_new(const char *url, const char *key);
void http_free(http *h);
const char *http_url(const http *h);
/* Accept the certificate of an https service if it is signed by one of this PEM file. NULL: of the file that
 * SSL_CERT_FILE names, or else of the system's. The string is borrowed. */
void http_trust_issuers(http *h, const char *file);
/* Accept any certificate: the service is a child of this process. */
void http_trust_any(http *h);
/* Give every request up after so long. */
void http_limit(http *h, int ms);

/* Set up a libcurl handle (CURL *) of the caller's for a request to the service: the address and how to connect. The
 * key is set too. */
void http_prepare(const http *h, void *curl, const char *method, const char *path);

/* Call `wake` whenever this descriptor is readable during a request (-1: none); true: give the request up. */
typedef bool (*http_wake)(void *context);
void http_wake_on(http *h, int descriptor, http_wake wake, void *context);

/* Call `take` while the body of a request or of its answer is transferred, with its name, the last segment of the path.
 * done -1: it has ended. Streams of events have none. */
typedef void (*http_transfer)(void *context, const char *name, long long done, long long total);
void http_on_transfer(http *h, http_transfer take, void *context);

/* "/v1/jobs/%s/events" with every %s replaced by the next string, percent-encoded. Valid until the next call. */
const char *http_path(http *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* JSON in (stolen; may be NULL), JSON out. NULL: see http_get_problem. */
json_t *http_json(http *h, const char *method, const char *path, json_t *body);
/* The answer's bytes as they are, of the type that `accept` asks for (NULL: any). */
bool http_text(http *h, const char *method, const char *path, json_t *body, const char *accept, text *answer);
/* Write the answer's bytes to a file as they arrive. */
bool http_download(http *h, const char *method, const char *path, json_t *body, const char *accept, FILE *file);

typedef struct http_part {
	const char *name;
	const char *value;    /* the part's text, or NULL: */
	const char *file;     /* the path of a file to send */
	const char *filename; /* the name sent to the service; NULL: the last part of the path */
} http_part;
/* POST multipart/form-data; `parts` ends with a NULL name. */
json_t *http_form(http *h, const char *path, const http_part *parts);
/* POST a file as application/octet-stream. */
json_t *http_octets(http *h, const char *path, const char *file);

typedef enum http_end {
	HTTP_DONE,        /* the stream ended with [DONE] */
	HTTP_STOPPED,     /* the callback wanted no more */
	HTTP_INTERRUPTED, /* given up by the function of http_wake_on */
	HTTP_LOST,        /* no connection, or it broke: the service may come back */
	HTTP_FAILED       /* the service refused, or reported an error within the stream */
} http_end;
/* An event's JSON; borrowed. `raw` is its text. False: stop. */
typedef bool (*http_event)(void *context, const char *id, const json_t *event, const char *raw);
/* A request answered with server-sent events. last_event_id: "" or the event to continue after. */
http_end http_stream(http *h, const char *method, const char *path, json_t *body, const char *last_event_id,
                     http_event each, void *context);

const http_problem *http_get_problem(const http *h);

#endif
