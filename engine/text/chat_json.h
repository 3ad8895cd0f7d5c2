/* chat_json.h - JSON as chat templates print it (internal). */
#ifndef ENGINE_TEXT_CHAT_JSON_H
#define ENGINE_TEXT_CHAT_JSON_H

#include "engine/text/chat_builder.h"

/* Append a value as text of a message, in the format of Python's json.dumps with ensure_ascii=False. indent: spaces
 * for each level; 0: everything is on one line. */
void chat_json_append(chat_builder *b, const json_t *value, int indent);

#endif
