/* session_prompts.h - the methods session.create and session.append with a prompt, which is read as a generation of no
 * tokens. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_SESSION_PROMPTS_H
#define ENGINE_DAEMON_GENERATION_SESSION_PROMPTS_H

#include "engine/daemon/net/stream.h"

void session_prompts_create(stream *s);
void session_prompts_append(stream *s);

#endif
