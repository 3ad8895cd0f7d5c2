/* /v1/completions. */
#include "server/generation.h"
#include "server/resources.h"

const route completions_routes[] = {{"POST", "/v1/completions", generation_handle, .engine_method = "completion.create",
                                     .body = BODY_JSON, .schema = &schema_completion},
                                    {.method = NULL}};
