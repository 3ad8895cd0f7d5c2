/* audit.h - a file with a line of JSON for each request to change a key, a model or a job: who asked for what, when,
 * and with which result. Never a prompt, a text or a secret.
 *
 * A line is on disk before its request is answered. A thread writes the lines, in the order of the answers, and syncs
 * those that have gathered once. Nothing else waits for the disk. While AUDIT_MAX_LINES wait, new requests of this kind
 * are refused. The file is opened for each write, so it may be renamed at any time. Loop thread only.
 */
#ifndef ENGINE_DAEMON_REQUESTS_AUDIT_H
#define ENGINE_DAEMON_REQUESTS_AUDIT_H

#include "engine/daemon/net/stream.h"

/* Each line that waits holds a stream, so this is less than CONNECTION_MAX_STREAMS. */
enum { AUDIT_MAX_LINES = 256 };

typedef struct audit audit;

/* Create the file if it does not exist. STATUS_IO: it cannot be written. */
status audit_open(audit **out, uv_loop_t *loop, const char *path, error *err);
/* Close its handle on the loop; no line is being written. NULL is legal, also in audit_free. */
void audit_close(audit *a);
/* Its handle is closed. */
void audit_free(audit *a);
/* True if s is to have a line, and too many wait: it must be refused before anything else. */
bool audit_is_full(const audit *a, const stream *s);
/* Write a line for a request that is being answered, if its method is one of these. answer: its RESULT or ERROR, or
 * NULL. True: stream_release follows when the line is on disk. A failure is logged, and the request is answered. */
bool audit_record(audit *a, stream *s, status result, const char *answer);

#endif
