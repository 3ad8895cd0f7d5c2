/* /v1/storage: what the data folder holds. */
#include "server/forward.h"
#include "server/resources.h"

const route storage_routes[] = {{"GET", "/v1/storage", forward_handle, .engine_method = "storage.usage"},
                                {.method = NULL}};
