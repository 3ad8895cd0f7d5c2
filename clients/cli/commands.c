#include "clients/cli/commands.h"

#include <string.h>

static const command *const tables[] = {
    serve_commands,       train_commands,       jobs_commands,         generate_commands,          evaluate_commands,
    evaluations_commands, explain_commands,     faithfulness_commands, faithfulness_jobs_commands, ps_commands,
    models_commands,      adapters_commands,    files_commands,        sessions_commands,          classify_commands,
    tokenize_commands,    batches_commands,     responses_commands,    storage_commands,           keys_commands,
    load_commands,        maintenance_commands, version_commands,      completion_commands,        pages_commands};
enum { TABLES = sizeof(tables) / sizeof(tables[0]) };

const option_row commands_common[] = {
    {"url", OPTION_TEXT, "URL", "the service (ADDITIVE_URL, or http://127.0.0.1:8080)", NULL},
    {"api-key", OPTION_TEXT, "KEY", "API key of the service (ADDITIVE_API_KEY)", NULL},
    {"ca", OPTION_TEXT, "FILE", "certificates in PEM that may sign an https service's (SSL_CERT_FILE, or the system's)",
     NULL},
    {"json", OPTION_FLAG, NULL, "the service's own JSON on stdout, one value per line; errors as JSON on stderr", NULL},
    {"version", OPTION_FLAG, NULL, "the version of this program (-v)", NULL},
    {"help", OPTION_FLAG, NULL, "this text (-h)", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

const command *commands_at(int n)
{
	for (int t = 0; t < TABLES; t++)
		for (const command *k = tables[t]; k->name; k++)
			if (n-- == 0)
				return k;
	return NULL;
}

const char *commands_word(const command *k, char out[COMMANDS_WORD_BYTES])
{
	snprintf(out, COMMANDS_WORD_BYTES, "%.*s", (int)strcspn(k->name, " "), k->name);
	return out;
}

bool commands_is_grouped(const command *k)
{
	return strchr(k->name, ' ') != NULL;
}

bool commands_is_group(const char *word)
{
	size_t n = strlen(word);
	const command *k;

	for (int i = 0; (k = commands_at(i)); i++)
		if (strncmp(k->name, word, n) == 0 && k->name[n] == ' ')
			return true;
	return false;
}

const char *commands_summary(const command *k, char out[COMMANDS_SUMMARY_BYTES])
{
	size_t word = strcspn(k->name, " "), used = 0;
	const command *other;

	if (!commands_is_grouped(k))
		return k->summary;
	out[0] = '\0';
	for (int i = 0; (other = commands_at(i)); i++)
		if (strncmp(other->name, k->name, word + 1) == 0 && used < COMMANDS_SUMMARY_BYTES)
			used += (size_t)snprintf(out + used, COMMANDS_SUMMARY_BYTES - used, "%s%s", used ? ", " : "",
			                         other->name + word + 1);
	return out;
}

/* Number of words of argv that a command's name takes; 0 if it is another. */
static int matches(const command *k, bool first, int argc, char **argv)
{
	const char *space = strchr(k->name, ' ');
	size_t n = space ? (size_t)(space - k->name) : strlen(k->name);

	if (argc < 1 || strlen(argv[0]) != n || memcmp(argv[0], k->name, n) != 0)
		return 0;
	if (!space)
		return 1;
	if (argc >= 2 && strcmp(argv[1], space + 1) == 0)
		return 2;
	return first && (argc < 2 || argv[1][0] == '-') ? 1 : 0;
}

const command *commands_find(int argc, char **argv, int *words)
{
	const command *k, *before = NULL;

	for (int i = 0; (k = commands_at(i)); before = k, i++) {
		const size_t word = strcspn(k->name, " ");
		const bool first = !before || strncmp(before->name, k->name, word + 1) != 0;

		if ((*words = matches(k, first, argc, argv)))
			return k;
	}
	return NULL;
}

const char *commands_nearest(int argc, char **argv, nearest *near)
{
	bool grouped = argc >= 2 && commands_is_group(argv[0]);
	size_t n = grouped ? strlen(argv[0]) + 1 : 0;

	const command *k;

	*near = nearest_of(argv[grouped]);
	for (int i = 0; (k = commands_at(i)); i++) {
		char word[NEAREST_BYTES];

		if (grouped && (strncmp(k->name, argv[0], n - 1) != 0 || k->name[n - 1] != ' '))
			continue;
		snprintf(word, sizeof(word), "%.*s", (int)strcspn(k->name + n, " "), k->name + n);
		nearest_offer(near, word);
	}
	return nearest_found(near);
}
