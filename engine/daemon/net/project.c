#include "engine/daemon/net/project.h"

#include <stdio.h>
#include <string.h>

const char *const project_quota_names[QUOTAS] = {[QUOTA_SESSIONS] = "max_sessions",
                                                 [QUOTA_SESSION_BYTES] = "max_session_bytes",
                                                 [QUOTA_FILE_BYTES] = "max_file_bytes",
                                                 [QUOTA_JOBS] = "max_jobs"};

/* The default has two names: "" in memory, and the API's. */
static const char *short_name(const char *name)
{
	return !name || strcmp(name, PROJECT_DEFAULT) == 0 ? "" : name;
}

void project_set(project_scope *x, const char *name)
{
	snprintf(x->project, sizeof x->project, "%s", short_name(name));
}

const char *project_of(const json_t *document)
{
	return short_name(json_string_value(json_object_get(document, "project")));
}

const char *project_member(const char *project)
{
	return project[0] ? project : NULL;
}

bool project_mark(const project_scope *x, json_t *document)
{
	return document && (!x->project[0] || json_object_set_new(document, "project", json_string(x->project)) == 0);
}

bool project_sees(const project_scope *x, const char *project)
{
	return x->all || strcmp(x->project, short_name(project)) == 0;
}

bool project_lists(const project_scope *x, const char *filter, const char *project)
{
	return project_sees(x, project) && (!filter || strcmp(short_name(filter), short_name(project)) == 0);
}

const char *project_only(const project_scope *x, const char *filter)
{
	return !x->all ? x->project : filter ? short_name(filter) : NULL;
}

status project_check_quota(const project_scope *x, project_quota q, int64_t has, int64_t more, error *err)
{
	static const char *const units[QUOTAS] = {[QUOTA_SESSIONS] = "sessions",
	                                          [QUOTA_SESSION_BYTES] = "bytes of stored sessions",
	                                          [QUOTA_FILE_BYTES] = "bytes of files",
	                                          [QUOTA_JOBS] = "jobs that have not ended"};
	const int64_t most = x->quotas[q];
	if (most == 0 || (has <= most && more <= most - has))
		return STATUS_OK;
	return error_set(err, STATUS_RATE_LIMITED, project_quota_names[q],
	                 "the project has %lld %s, and this request would add %lld; %s of the key is %lld", (long long)has,
	                 units[q], (long long)more, project_quota_names[q], (long long)most);
}
