/* keys.c - the service's API keys. A secret is only ever written to stdout, once; it is never an argument. */
#include <string.h>
#include <time.h>

#include "clients/cli/cli.h"
#include "gen/options.h"

static const option_row create_options[] = {
    KEY_CREATE_OPTIONS,
    {"model", OPTION_TEXTS, "ID", "a model that it may use; without it all (may be repeated)", NULL},
    {"days", OPTION_COUNT, "N", "time after which it expires; without it never", "1 to 36500"},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const option_row update_options[] = {KEY_UPDATE_OPTIONS, {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int keys_list(cli *c)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"ROLE", "role", SHOW_PLAIN},
	                                      {"PROJECT", "project", SHOW_PLAIN},
	                                      {"USED", "last_used_at", SHOW_TIME},
	                                      {"EXPIRES", "expires_at", SHOW_TIME},
	                                      {"REVOKED", "revoked_at", SHOW_TIME},
	                                      {"NAME", "name", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, http_json(c->http, "GET", "/v1/keys", NULL), "data", columns);
}

/* Add what has no field of its own name. */
static bool add_rest(const options *o, json_t *request)
{
	const int64_t days = options_integer(o, "days", 0);
	json_t *models = json_array();
	bool whole = models;

	for (int i = 0; i < o->n_given; i++)
		if (strcmp(o->given[i].row->name, "model") == 0)
			whole = whole && json_array_append_new(models, json_string(o->given[i].value)) == 0;
	if (json_array_size(models) > 0)
		whole = whole && json_object_set(request, "models", models) == 0;
	if (days > 0)
		whole = whole && json_object_set_new(request, "expires_at",
		                                     json_integer(time(NULL) + (json_int_t)days * 24 * 3600)) == 0;
	json_decref(models);
	return whole;
}

static int keys_create(cli *c)
{
	json_t *request = json_pack("{s:s}", "name", cli_argument(c, 0));

	if (!request || !options_fill(&c->options, request) || !add_rest(&c->options, request)) {
		json_decref(request);
		return cli_fail("the name is not valid UTF-8");
	}
	json_t *answer = http_json(c->http, "POST", "/v1/keys", request);
	const char *secret = json_string_value(json_object_get(answer, "secret"));

	if (!answer || c->json || !secret)
		return cli_answer(c, answer);
	cli_note(c, "%s: the secret is shown this once", json_string_value(json_object_get(answer, "id")));
	puts(secret);
	json_decref(answer);
	return CLI_OK;
}

CLI_ON_ID(keys_show, "GET", "/v1/keys/%s")

static int keys_update(cli *c)
{
	json_t *request = json_object();

	if (!request || !options_fill(&c->options, request)) {
		json_decref(request);
		return cli_fail("out of memory");
	}
	return cli_answer(c,
	                  http_json(c->http, "POST", http_path(c->http, "/v1/keys/%s", cli_argument(c, 0)), request));
}

CLI_ON_ID(keys_revoke, "DELETE", "/v1/keys/%s")

const command keys_commands[] = {
    {"keys list", "", 0, 0, "list API keys", "Revoked ones too.", NULL, keys_list},
    {"keys create", "NAME", 1, 1, "create an API key and print its secret",
     "The first key must have --role admin: from then on each request needs a key, also this program's "
     "(ADDITIVE_API_KEY).\n"
     "The secret cannot be shown again. To keep it off the screen: additive keys create NAME >FILE",
     create_options, keys_create},
    {"keys show", "ID", 1, 1, "show a key", NULL, NULL, keys_show},
    {"keys update", "ID", 1, 1, "change a key's role, limits, quotas or weight", NULL, update_options, keys_update},
    {"keys revoke", "ID", 1, 1, "revoke a key; its streams end", NULL, NULL, keys_revoke},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
