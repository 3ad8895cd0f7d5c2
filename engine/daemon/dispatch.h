/* dispatch.h - the table of methods: the list in PROTOCOL.md, as rows. */
#ifndef ENGINE_DAEMON_DISPATCH_H
#define ENGINE_DAEMON_DISPATCH_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/queue/job_queue.h"

/* The kinds of jobs, up to NULL. */
extern const job_kind *const dispatch_job_kinds[];

/* Check the request against its method's row, then call the handler or answer the error. */
void dispatch_request(stream *s, const char *method);
/* A stream is being answered, with this RESULT or ERROR. True: the answer is held until its line of the audit log is on
 * disk. */
bool dispatch_answered(stream *s, status result, const char *text);

#endif
