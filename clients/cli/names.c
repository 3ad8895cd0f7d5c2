#include "clients/cli/names.h"

#include <string.h>

static const char models[] = "/v1/models", sessions[] = "/v1/sessions?limit=1000", files[] = "/v1/files?limit=1000",
                  adapters[] = "/v1/adapters";

/* Commands with this prefix take an argument called "ID". */
static const struct {
	const char *group, *list;
} groups[] = {{"models ", models},
              {"adapters ", adapters},
              {"jobs ", "/v1/fine_tuning/jobs?limit=1000"},
              {"files ", files},
              {"keys ", "/v1/keys"},
              {"sessions ", sessions},
              {"evaluations ", "/v1/evaluations?limit=1000"},
              {"batches ", "/v1/batches?limit=1000"},
              {"explain-evaluations ", "/v1/explain/evaluations?limit=1000"}};

static const char *next_word(const char *at)
{
	at += strcspn(at, " ");
	return at + strspn(at, " ");
}

bool names_argument(const command *k, int n, char out[NAMES_WORD_BYTES])
{
	const char *at = k->arguments;

	for (int i = 0; *at; at = next_word(at)) {
		const char *more = strstr(at, "...");
		size_t bytes = strcspn(at, " "), from = *at == '[', end = strcspn(at, "]. ");

		if (strncmp(at, "--", 2) == 0) { /* "--data DIR": an option that is needed */
			at = next_word(at);
			continue;
		}
		if (i++ == n || (more && more < at + bytes)) {
			snprintf(out, NAMES_WORD_BYTES, "%.*s", (int)(end - from), at + from);
			return true;
		}
	}
	return false;
}

const char *names_of_argument(const command *k, int n)
{
	char word[NAMES_WORD_BYTES];

	if (!names_argument(k, n, word))
		return NULL;
	if (strcmp(word, "MODEL") == 0)
		return models;
	for (size_t i = 0; strcmp(word, "ID") == 0 && i < sizeof(groups) / sizeof(groups[0]); i++)
		if (strncmp(k->name, groups[i].group, strlen(groups[i].group)) == 0)
			return groups[i].list;
	return NULL;
}

const char *names_of_option(const option_row *row)
{
	static const struct {
		const char *option, *list;
	} named[] = {{"model", models}, {"compare-model", models}, {"session", sessions}, {"tokenizer-file", files}, {"adapter", adapters}};

	for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
		if (strcmp(row->name, named[i].option) == 0 && strcmp(row->value, "KIND") != 0)
			return named[i].list;
	return NULL;
}
