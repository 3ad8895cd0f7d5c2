/* project.h - projects: what a request may reach, and what it may create.
 *
 * Files, jobs, sessions, responses and models belong to a project, the one of the key that created them. A request with a
 * key sees the objects of its key's project alone; another project's object is answered as if it did not exist. An admin's
 * request sees every project, and so does one without a key.
 *
 * A key may have quotas: its request fails if the request's project would then have more than the quota. Objects that are
 * made with another key of the project count, but are not refused.
 *
 * Documents name their project in the member "project". Without the member an object belongs to the project "default". */
#ifndef ENGINE_DAEMON_NET_PROJECT_H
#define ENGINE_DAEMON_NET_PROJECT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

#define PROJECT_DEFAULT "default"
enum { PROJECT_BYTES = 64 };

typedef enum project_quota {
	QUOTA_SESSIONS,
	QUOTA_SESSION_BYTES, /* stored states of durable sessions and their snapshots */
	QUOTA_FILE_BYTES,
	QUOTA_JOBS, /* that have not ended */
	QUOTAS
} project_quota;
/* The members of a key that set them. */
extern const char *const project_quota_names[QUOTAS];

typedef struct project_scope {
	char project[PROJECT_BYTES]; /* project of what the request creates; "": the default */
	bool all;                    /* the request sees every project */
	int64_t quotas[QUOTAS];      /* 0: no limit */
} project_scope;

/* Set the project by its name. */
void project_set(project_scope *x, const char *name);
/* Return the project that a document names; "": the default. Valid as long as the document. */
const char *project_of(const json_t *document);
/* Return the value of the member "project" for json_pack's "s*": NULL for the default. */
const char *project_member(const char *project);
/* Give a new document its project. False: out of memory, also for a NULL document. */
bool project_mark(const project_scope *x, json_t *document);
/* True if the request sees objects of the project; NULL is the default, as "". */
bool project_sees(const project_scope *x, const char *project);
/* True if a list that is limited to `filter` (NULL: no limit) has objects of the project. */
bool project_lists(const project_scope *x, const char *filter, const char *project);
/* Return the only project that such a list can have objects of, "" for the default; NULL: any. Valid as long as x and
 * filter. */
const char *project_only(const project_scope *x, const char *filter);
/* Check that a project that has `has` may get `more`. STATUS_RATE_LIMITED, with the quota's name as param. */
status project_check_quota(const project_scope *x, project_quota q, int64_t has, int64_t more, error *err);

#endif
