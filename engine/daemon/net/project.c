#include "engine/daemon/net/project.h"

#include <stdio.h>
#include <string.h>

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
