/* explain.h - shared by `explain` and `explain-evaluate`. */
#ifndef CLI_EXPLAIN_H
#define CLI_EXPLAIN_H

#include "clients/cli/cli.h"

/* Complete the `target` of a request: with --against it is of the kind "difference", unless another is given, which the
 * service refuses. False when out of memory. */
bool explain_add_kind(const cli *c, json_t *request);

#endif
