/* chat_signature.h - functions as Hermes' template lists them: with a signature in Python's types (internal). */
#ifndef ENGINE_TEXT_CHAT_SIGNATURE_H
#define ENGINE_TEXT_CHAT_SIGNATURE_H

#include "engine/text/chat_builder.h"

/* Append a tool whose function has this object. index: in "tools". STATUS_INVALID names a member that the template
 * cannot print. */
status chat_signature_append(chat_builder *b, const json_t *function, size_t index, error *err);

#endif
