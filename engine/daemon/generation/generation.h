/* generation.h - the parts of the engine that requests for text use. The streams of this folder's methods have it as
 * their room. Loop thread only. */
#ifndef ENGINE_DAEMON_GENERATION_GENERATION_H
#define ENGINE_DAEMON_GENERATION_GENERATION_H

#include "engine/daemon/generation/admission.h"
#include "engine/daemon/sessions/sessions.h"

typedef struct generation_room {
	catalog *catalog;
	executor *executor;
	sessions *sessions;
	admission *admission;
	int max_generations;
	int max_explanations;
	int explanations; /* answers being made or sent */
} generation_room;

static inline generation_room *generation_of(const stream *s)
{
	return s->room;
}

#endif
