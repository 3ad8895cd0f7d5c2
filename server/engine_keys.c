#include "server/engine_keys.h"

#include "proto/json_memory.h"

static void engine_keys_event(void *context, const frame *f)
{
	engine_keys *k = context;
	json_t *event = json_memory_parse(f->json, f->json_bytes, 0, NULL);
	auth *keys = auth_from_json(json_object_get(event, "keys"));
	k->current = keys != NULL;
	if (keys) {
		auth_free(k->known);
		k->known = keys;
		k->required = !json_is_false(json_object_get(event, "required"));
		engine_call_grant(k->call, 1);
	} else {
		engine_call_cancel(k->call); /* opened again for the next request */
		k->call = NULL;
	}
	json_decref(event);
}

static void engine_keys_end(void *context, const frame *f)
{
	engine_keys *k = context;
	(void)f;
	k->call = NULL;
	k->current = false;
}

void engine_keys_open(engine_keys *k, engine_link *l)
{
	static const engine_events events = {.event = engine_keys_event, .end = engine_keys_end};
	if (!k->call)
		k->call = engine_link_call(l, "key.watch", NULL, NULL, NULL, 1, false, 0, &events, k);
}

void engine_keys_free(engine_keys *k)
{
	auth_free(k->known);
	*k = (engine_keys){0};
}
