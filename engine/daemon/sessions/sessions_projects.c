/* sessions_projects.c - the sessions of each project, listed newest first, so that a page of one project does not pass
 * the sessions of others. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/daemon/requests/listing.h"
#include "engine/daemon/sessions/sessions_private.h"

static session_project *find_project(const sessions *all, const char *name)
{
	return STRING_TABLE_OWNER(string_table_find(&all->projects, name), session_project, node);
}

static session_project *new_project(sessions *all, const char *name)
{
	session_project *p = memory_new(1, sizeof *p);
	if (!p)
		return NULL;
	snprintf(p->name, sizeof p->name, "%s", name);
	if (string_table_add(&all->projects, &p->node, p->name) == STATUS_OK)
		return p;
	free(p);
	return NULL;
}

status sessions_join_project(sessions *all, session_entry *e, const char *name)
{
	session_project *p = find_project(all, name);
	p = p ? p : new_project(all, name);
	if (!p)
		return STATUS_NOMEM;
	e->project = p;
	e->project_older = p->newest;
	*(e->project_older ? &e->project_older->project_newer : &p->oldest) = e;
	p->newest = e;
	p->sessions += !e->hidden;
	return STATUS_OK;
}

void sessions_leave_project(sessions *all, session_entry *e)
{
	session_project *p = e->project;
	*(e->project_newer ? &e->project_newer->project_older : &p->newest) = e->project_older;
	*(e->project_older ? &e->project_older->project_newer : &p->oldest) = e->project_newer;
	p->sessions -= !e->hidden;
	p->bytes -= sessions_extra(e)->stored.counted;
	if (p->newest)
		return;
	string_table_remove(&all->projects, &p->node);
	free(p);
}

/* --- quotas --------------------------------------------------------------------------------------------- */

status sessions_check_quota(const sessions *all, const project_scope *scope, const char *project, error *err)
{
	const session_project *p = find_project(all, project);
	return project_check_quota(scope, QUOTA_SESSIONS, p ? p->sessions : 0, 1, err);
}

static int64_t snapshot_bytes(const snapshot_list *list)
{
	int64_t bytes = 0;
	for (const snapshot *x = list->newest; x; x = x->older)
		bytes += x->version && !x->leaving ? x->bytes : 0;
	return bytes;
}

static void set_counted(session_entry *e, int64_t bytes)
{
	e->project->bytes += bytes - e->extra->stored.counted;
	e->extra->stored.counted = bytes;
}

void sessions_count_bytes(session_entry *e)
{
	set_counted(e, e->extra->stored.state_bytes + snapshot_bytes(&e->extra->snapshots));
}

status sessions_reserve_bytes(session_entry *e, const stream *s, int64_t bytes, error *err)
{
	const session_extra *x = sessions_use_extra(e);
	if (!x)
		return STATUS_NOMEM;
	const int64_t next = bytes + snapshot_bytes(&x->snapshots) + snapshot_bytes(&x->adding);
	const int64_t more = next - x->stored.counted;
	if (more > 0)
		TRY(project_check_quota(&s->scope, QUOTA_SESSION_BYTES, e->project->bytes, more, err));
	set_counted(e, next);
	return STATUS_OK;
}

/* --- session.list ------------------------------------------------------------------------------------- */

/* A walk over the sessions that a request lists. */
typedef struct session_walk {
	const sessions *all;
	const session_project *only; /* NULL: all projects */
	bool ascending;
} session_walk;

static const session_entry *walk_step(const session_walk *w, const session_entry *e)
{
	if (w->only)
		return w->ascending ? e->project_newer : e->project_older;
	return w->ascending ? e->newer : e->older;
}

/* Return the session after e; NULL: the first one. */
static const session_entry *walk_next(const session_walk *w, const session_entry *e)
{
	if (e)
		e = walk_step(w, e);
	else if (w->only)
		e = w->ascending ? w->only->oldest : w->only->newest;
	else
		e = w->ascending ? w->all->oldest : w->all->newest;
	while (e && e->hidden)
		e = walk_step(w, e);
	return e;
}

/* Append a page after `after`, with *more sessions following. False: out of memory. */
static bool append_page(const session_walk *w, const session_entry *after, int64_t limit, json_t *data, bool *more)
{
	const session_entry *e = walk_next(w, after);
	for (int64_t n = 0; e && n < limit; n++, e = walk_next(w, e))
		if (json_array_append_new(data, sessions_object(e)) != 0)
			return false;
	*more = e;
	return true;
}

void sessions_list(stream *s)
{
	const sessions *all = s->room;
	const listing_page page = listing_read(s->params, LISTING_SESSIONS);
	const char *filter = json_string_value(json_object_get(s->params, "project"));
	const session_entry *after = page.after ? sessions_find(all, page.after) : NULL;
	project_scope one = s->scope;
	if (filter)
		project_set(&one, filter);
	const bool limited = filter || !s->scope.all;
	const session_walk w = {all, limited ? find_project(all, one.project) : NULL, page.ascending};
	if (page.after && (!after || after->hidden || !project_lists(&s->scope, filter, after->project->name))) {
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "after", "there is no \"%.64s\" in this list", page.after);
		return;
	}
	const bool empty = limited && (!w.only || !project_sees(&s->scope, one.project));
	bool more = false;
	json_t *data = json_array();
	if (data && (empty || append_page(&w, after, page.limit, data, &more))) {
		stream_result(s, listing_object(data, more));
		return;
	}
	json_decref(data);
	stream_result(s, NULL);
}
