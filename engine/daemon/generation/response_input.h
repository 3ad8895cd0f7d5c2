/* response_input.h - the input and the functions of a response, in the form of a chat. */
#ifndef ENGINE_DAEMON_GENERATION_RESPONSE_INPUT_H
#define ENGINE_DAEMON_GENERATION_RESPONSE_INPUT_H

#include <jansson.h>

#include "engine/base/error.h"

/* Return the messages of params (new reference), and give its tools the form of a chat's. STATUS_INVALID names a member
 * of an item; STATUS_NOMEM. */
status response_input_read(json_t *params, json_t **messages, error *err);
/* Replace the error's parameter, a member of the messages or of a chat's tools, by that of the request. */
void response_input_rename(const json_t *messages, error *err);

#endif
