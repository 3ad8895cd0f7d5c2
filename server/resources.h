/* resources.h - the rows of every resource file; each table ends with a NULL method. */
#ifndef SERVER_RESOURCES_H
#define SERVER_RESOURCES_H

#include "gen/schemas.h"
#include "server/router.h"

extern const route models_routes[];
extern const route files_routes[];
extern const route jobs_routes[];
extern const route completions_routes[];
extern const route sessions_routes[];
extern const route explain_routes[];
extern const route tokenize_routes[];
extern const route storage_routes[];
extern const route operations_routes[];

#endif
