#include "clients/cli/scrape.h"

#include <stdlib.h>
#include <string.h>

/* The sample's value; NULL: there is none. */
static const char *find_sample(const text *metrics, const char *name)
{
	const size_t n = strlen(name);
	for (const char *line = text_get(metrics); line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, name, n) == 0 && (line[n] == '{' || line[n] == ' '))
			return line + n + strcspn(line + n, " ");
	}
	return NULL;
}

long long scrape_number(const text *metrics, const char *name)
{
	const char *value = find_sample(metrics, name);
	return value ? strtoll(value, NULL, 10) : 0;
}

bool scrape_has(const text *metrics, const char *name)
{
	return find_sample(metrics, name) != NULL;
}
