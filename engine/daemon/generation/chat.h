/* chat.h - the methods chat.create and response.create. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_CHAT_H
#define ENGINE_DAEMON_GENERATION_CHAT_H

#include "engine/daemon/net/stream.h"

void chat_create(stream *s);
void chat_respond(stream *s);

#endif
