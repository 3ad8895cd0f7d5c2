/* audit.h - a file with a line of JSON for each request to change a key, a model or a job: who asked for what, when,
 * and with which result. Never a prompt, a text or a secret.
 *
 * A line is on disk before its request is answered. The pool writes the lines, in the order of the answers, and syncs
 * those that have gathered once. The loop thread and other requests do not wait for the disk. Lines that wait are
 * bounded by the unanswered requests. The file is opened for each write, so it may be renamed at any time. Loop thread
 * only.
 */
#ifndef ENGINE_DAEMON_REQUESTS_AUDIT_H
#define ENGINE_DAEMON_REQUESTS_AUDIT_H

#include "engine/daemon/net/stream.h"

typedef struct audit audit;

/* Create the file if it does not exist. STATUS_IO: it cannot be written. */
status audit_open(audit **out, uv_loop_t *loop, const char *path, error *err);
/* No line is being written. */
void audit_free(audit *a);
/* Write a line for a request that is being answered, if its method is one of these. answer: its RESULT or ERROR, or
 * NULL. True: stream_release follows when the line is on disk. A failure is logged, and the request is answered. */
bool audit_record(audit *a, stream *s, status result, const char *answer);

#endif
