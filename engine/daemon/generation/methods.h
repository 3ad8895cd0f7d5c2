/* methods.h - handlers of methods (dispatch.c) whose sources have no header. Each answers its stream once. Loop
 * thread. */
#ifndef ENGINE_DAEMON_GENERATION_METHODS_H
#define ENGINE_DAEMON_GENERATION_METHODS_H

#include "engine/daemon/net/stream.h"

void chat_create(stream *s);            /* chat.create */
void chat_respond(stream *s);           /* response.create */
void classify_create(stream *s);        /* classify */
void embeddings_create(stream *s);      /* embed */
void fill_mask_create(stream *s);       /* fill_mask */
void session_prompts_create(stream *s); /* session.create */
void session_prompts_append(stream *s); /* session.append */

#endif
