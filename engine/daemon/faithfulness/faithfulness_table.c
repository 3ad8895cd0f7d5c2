#include "engine/daemon/faithfulness/faithfulness_table.h"

#include "engine/base/clock.h"

json_t *faithfulness_document_new(const char *id, const json_t *params, json_t *settings, int64_t texts)
{
	return json_pack("{s:s, s:s, s:I, s:n, s:s, s:O, s:O, s:{s:I, s:i}, s:o, s:n, s:n, s:O}", "id", id, "object",
	                 FAITHFULNESS_OBJECT, "created_at", (json_int_t)clock_unix(), "finished_at", "status", "queued",
	                 "model", json_object_get(params, "model"), "file", json_object_get(params, "file"), "texts",
	                 "total", (json_int_t)texts, "done", 0, "settings", settings, "error", "result", "request",
	                 params);
}
