/* methods.h - the methods of this room that have no other interface. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_METHODS_H
#define ENGINE_DAEMON_GENERATION_METHODS_H

#include "engine/daemon/net/stream.h"

void chat_create(stream *s);
void chat_respond(stream *s);
void classify_create(stream *s);
void embeddings_create(stream *s);
void fill_mask_create(stream *s);
void session_prompts_create(stream *s);
void session_prompts_append(stream *s);

#endif
