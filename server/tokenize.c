/* /v1/tokenize and /v1/detokenize. */
#include "server/forward.h"
#include "server/resources.h"

const route tokenize_routes[] = {{"POST", "/v1/tokenize", forward_handle, .engine_method = "tokenize",
                                  .body = BODY_JSON, .schema = &schema_tokenize},
                                 {"POST", "/v1/detokenize", forward_handle, .engine_method = "detokenize",
                                  .body = BODY_JSON, .schema = &schema_detokenize},
                                 {.method = NULL}};
