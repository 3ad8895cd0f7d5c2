/* follow.h - follow work of the service to its end, by polling or by its events; begin a job over a file. */
#ifndef CLI_FOLLOW_H
#define CLI_FOLLOW_H

#include "clients/cli/cli.h"
#include "clients/cli/progress.h"

/* The job at `path`, with the id in place of its %s, as it is when it has ended; until then a progress line on stderr,
 * of what `take` finds in the job at a time (Unix seconds). NULL after a complaint: the service has been away for too
 * long, or refuses. A Ctrl-C ends the program, and not the job. */
json_t *follow_wait(cli *c, const char *path, const char *id,
                    void (*take)(progress *p, const json_t *job, long long time));

/* A stream of events that continues after a cut, after the last event that arrived. */
typedef struct follow_stream {
	http_event each;
	bool (*wait)(void *context, int ms); /* before it continues; true: give up. NULL: sleep */
	void *context;                       /* passed to both */
	bool received;                       /* private: the latest connection has brought an event */
	char last_id[SSE_ID_BYTES];          /* private */
} follow_stream;

/* Read the events at `path`, with the id in place of its %s. Give up when for two minutes no connection has lasted or
 * brought anything. */
http_end follow_events(cli *c, const char *path, const char *id, follow_stream *s);

/* Follow what the service has created, or with --detach print its id; with --json as well, print all of it. created is
 * taken over. Returns the exit status. */
int follow_created(cli *c, const char *noun, json_t *created, int (*follow)(cli *c, const char *id));

/* A kind of jobs over a file. */
typedef struct follow_kind {
	const char *path;    /* where jobs are created */
	const char *member;  /* the request's member for the file */
	const char *purpose; /* the file's purpose */
	const char *noun;
	int (*follow)(cli *c, const char *id);
} follow_kind;

/* POST the request with its member for the file. `file` is a file of this machine, which is uploaded unless the service
 * has it, or else the id of a file in the service. Then continue as follow_created. A file that was uploaded for a
 * refused job is deleted. */
int follow_create(cli *c, const follow_kind *k, json_t *request, const char *file);

#endif
