/* Errors that libmicrohttpd detects by itself: a malformed first line or Content-Length, a head that is too long, a
 * broken chunk.
 *
 * Its own answers are HTML pages, and version 0.9.75 sends the head of some of them twice. They are replaced here. The
 * library queues them with its public function, a call that the dynamic linker resolves to the one defined here. This
 * one writes an answer of ours past the library and closes the sending side. The library then continues as usual, and
 * its writes fail.
 *
 * If the library calls its function directly (linked statically, or with -Bsymbolic), its own answers are sent, and
 * tests/api/test_http_limits.py fails. Refusing its call instead would be shorter, but the library then frees memory
 * that some of its callers still read. */
#include <dlfcn.h>
#include <string.h>
#include <strings.h>

#include "server/request.h"

typedef enum MHD_Result (*refusal_queue)(struct MHD_Connection *connection, unsigned status,
                                         struct MHD_Response *response);

static problem refusal_problem(struct MHD_Connection *connection, unsigned status)
{
	static const struct {
		unsigned status;
		const char *code, *message;
	} known[] = {{400, "invalid_framing", "the request is malformed"},
	             {413, "request_too_large", "the body is larger than any that is taken"},
	             {414, "target_too_long", "the request's first line is too long"},
	             {431, "headers_too_large", "the request's headers are too long"},
	             {505, "unsupported_version", "the request must be HTTP/1.1 or HTTP/1.0"}};
	problem p = {.status = (int)status, .code = "internal_error", .message = "the server failed"};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		if (known[i].status != status)
			continue;
		strcpy(p.code, known[i].code);
		strcpy(p.message, known[i].message);
	}
	const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
	if (status == 400 && length && (!*length || length[strspn(length, "0123456789")]))
		strcpy(p.message, "Content-Length must be a decimal number");
	return p;
}

static void refusal_send(http_peer *peer, struct MHD_Connection *connection, unsigned status)
{
	request *r = http_peer_request(peer);
	problem p = r && r->problem.status ? r->problem : refusal_problem(connection, status);
	if (r) {
		r->status = p.status;
		r->problem = p;
	}
	reply_past_library(peer, r, &p);
}

enum MHD_Result MHD_queue_response(struct MHD_Connection *connection, unsigned status, struct MHD_Response *response)
{
	refusal_queue queue;
	void *found = dlsym(RTLD_NEXT, "MHD_queue_response");
	http_peer *peer = http_peer_of(connection);
	const request *r = peer ? http_peer_request(peer) : NULL;
	memcpy(&queue, &found, sizeof queue);
	if (peer && !(r && r->queueing))
		refusal_send(peer, connection, status);
	return queue ? queue(connection, status, response) : MHD_NO;
}
