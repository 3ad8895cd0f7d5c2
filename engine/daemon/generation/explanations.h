/* explanations.h - the methods explain and session.alpha. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_EXPLANATIONS_H
#define ENGINE_DAEMON_GENERATION_EXPLANATIONS_H

#include "engine/daemon/net/stream.h"

void explanations_create(stream *s);
void explanations_session(stream *s);

#endif
