/* storage.c - contents of the service's data folder: a table of kinds, and damaged or lost items. */
#include "clients/cli/cli.h"

/* A list of the answer, under a title; nothing for an empty one. */
static void show_list(const cli *c, const json_t *answer, const char *list, const char *title,
                      const show_column *columns)
{
	const json_t *rows = json_object_get(answer, list);

	if (json_array_size(rows) == 0)
		return;
	printf("\n%s\n", title);
	show_table(stdout, c->out.width, rows, columns);
}

static int storage_run(cli *c)
{
	static const show_column kinds[] = {
	    {"KIND", "kind", SHOW_PLAIN}, {"COUNT", "count", SHOW_PLAIN}, {"SIZE", "bytes", SHOW_BYTES}, {NULL, NULL, SHOW_PLAIN}};
	static const show_column damaged[] = {
	    {"KIND", "kind", SHOW_PLAIN}, {"ID", "id", SHOW_PLAIN}, {"PROBLEM", "problem", SHOW_PLAIN}, {NULL, NULL, SHOW_PLAIN}};
	static const show_column lost[] = {
	    {"KIND", "kind", SHOW_PLAIN}, {"NAME", "name", SHOW_PLAIN}, {"SIZE", "bytes", SHOW_BYTES}, {NULL, NULL, SHOW_PLAIN}};
	static const show_column totals[] = {{"IN ALL", "data_bytes", SHOW_BYTES},
	                                     {"BUDGET", "budget_bytes", SHOW_BYTES},
	                                     {"FREE ON DISK", "disk_free_bytes", SHOW_BYTES},
	                                     {NULL, NULL, SHOW_PLAIN}};
	json_t *answer = http_json(c->http, "GET", "/v1/storage", NULL);

	if (!answer || c->json)
		return cli_answer(c, answer);
	json_t *whole = json_pack("[O]", answer);
	show_table(stdout, c->out.width, whole, totals);
	json_decref(whole);
	putchar('\n');
	show_table(stdout, c->out.width, json_object_get(answer, "kinds"), kinds);
	show_list(c, answer, "damaged", "Damaged:", damaged);
	show_list(c, answer, "lost", "Without a row, set aside (additive fsck adopts or removes them):", lost);
	json_decref(answer);
	return CLI_OK;
}

const command storage_commands[] = {{"storage", "", 0, 0, "show what uses how much of the service's disk, and what is damaged",
                                     "A budget of 0 bytes is none.", NULL, storage_run},
                                    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
