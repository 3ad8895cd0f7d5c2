/* driver.h - many requests at once from one thread, each answered by a stream of events or by one JSON value.
 *
 * libcurl's multi interface over epoll: the cost of an event does not depend on the number of connections. Connections
 * are reused. Times are those of driver_clock_ns. */
#ifndef CLIENTS_LOAD_DRIVER_H
#define CLIENTS_LOAD_DRIVER_H

#include <stdint.h>

#include "clients/cli/http.h"
#include "clients/load/answer.h"

enum { DRIVER_SLOW_MS = 100 /* between two reads of a slow reader, each of at most DRIVER_SLOW_BYTES */ };
enum { DRIVER_SLOW_BYTES = 1024 };

typedef struct driver driver;

typedef struct driver_request {
	const char *method, *path, *body; /* the body is JSON or NULL; all must outlive the request */
	const char *key;                  /* bearer token, or NULL */
	bool streams;                     /* the answer is a stream of events; otherwise its body is answer.text */
	bool slow;
	int leave_after; /* events with text after which the client closes the connection; 0: it stays */
} driver_request;

/* Times in ns; 0: it did not happen. */
typedef struct driver_times {
	uint64_t sent, first, ended;
} driver_times;

/* Receives each result; `answer` is borrowed. */
typedef struct driver_listener {
	void (*gap)(void *context, uint64_t ns); /* from one read with text to the next, of a reader that is not slow */
	void (*ended)(void *context, void *request, outcome how, int status, const driver_times *times, answer *answer);
	void *context;
} driver_listener;

uint64_t driver_clock_ns(void);

/* `h` (borrowed) has the address of the service. NULL: out of memory or of descriptors. */
driver *driver_new(const http *h, const driver_listener *listener);
void driver_free(driver *d);
/* Send a request; `context` names it to `ended`. If nothing arrives for two minutes it is lost, unless it is slow.
 * False: out of memory. */
bool driver_begin(driver *d, const driver_request *request, void *context);
/* Make progress until driver_clock_ns() reaches `until`, or a request has ended. */
void driver_run(driver *d, uint64_t until);
int driver_in_flight(const driver *d);
/* Close all connections; each request ends as OUTCOME_LEFT. */
void driver_stop(driver *d);

#endif
