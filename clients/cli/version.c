/* version.c - versions of this program and the service. */
#include "clients/cli/cli.h"

/* ", BACKEND on DEVICE" of the engine's greeting; nothing while it is unavailable. */
static void add_device(text *shown, const json_t *service)
{
	const json_t *backend = show_get(service, "engine.backend"), *device = show_get(service, "engine.device");

	if (!json_is_string(backend) || !json_is_string(device))
		return;
	text_format(shown, ", ");
	terminal_escape(shown, json_string_value(backend), json_string_length(backend), false);
	text_format(shown, " on ");
	terminal_escape(shown, json_string_value(device), json_string_length(device), false);
}

static int version_run(cli *c)
{
	json_t *service = http_json(c->http, "GET", "/version", NULL);
	const char *version = json_string_value(json_object_get(service, "version"));

	if (c->json) {
		json_t *all = json_pack("{s:s, s:O?}", "additive", ADDITIVE_VERSION, "service", service);
		cli_print_json(all);
		json_decref(all);
	} else {
		text shown = {0}, device = {0};
		if (version)
			terminal_escape(&shown, version, json_string_length(json_object_get(service, "version")),
			                false);
		add_device(&device, service);
		printf("additive %s\nservice  %s at %s%s\n", ADDITIVE_VERSION,
		       version ? text_get(&shown) : "not reachable", http_url(c->http), text_get(&device));
		text_free(&shown);
		text_free(&device);
	}
	json_decref(service);
	return CLI_OK;
}

const command version_commands[] = {
    {"version", "", 0, 0, "show the versions of this program and the service", NULL, NULL, version_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
