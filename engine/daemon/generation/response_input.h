/* response_input.h - the input and the functions of a response, in the form of a chat. */
#ifndef ENGINE_DAEMON_GENERATION_RESPONSE_INPUT_H
#define ENGINE_DAEMON_GENERATION_RESPONSE_INPUT_H

#include <jansson.h>

#include "engine/base/error.h"

/* Set *messages to those of params (new reference), and give its tools the form of a chat's. STATUS_INVALID: an item is
 * wrong, and the error names its member. STATUS_NOMEM. */
status response_input_read(json_t *params, json_t **messages, error *err);
/* Replace the error's parameter, a member of the messages or of a chat's tools, by that of the request. */
void response_input_rename(const json_t *messages, error *err);

#endif
