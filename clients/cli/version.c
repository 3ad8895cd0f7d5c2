/* version.c - what runs here and there. */
#include "clients/cli/cli.h"

static int version_run(cli *c)
{
	json_t *service = http_json(c->http, "GET", "/version", NULL);
	const char *version = json_string_value(json_object_get(service, "version"));

	if (c->json) {
		json_t *all = json_pack("{s:s, s:O?}", "additive", ADDITIVE_VERSION, "service", service);
		cli_print_json(all);
		json_decref(all);
	} else {
		text shown = {0};
		if (version)
			terminal_escape(&shown, version, json_string_length(json_object_get(service, "version")),
			                false);
		printf("additive %s\nservice  %s at %s\n", ADDITIVE_VERSION,
		       version ? text_get(&shown) : "not reachable", http_url(c->http));
		text_free(&shown);
	}
	json_decref(service);
	return CLI_OK;
}

const command version_commands[] = {
    {"version", "", 0, 0, "show the versions of this program and the service", NULL, NULL, version_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
