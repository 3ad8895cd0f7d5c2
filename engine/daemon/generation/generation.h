/* generation.h - the parts of the engine that requests for text use. stream.room of this folder's methods points to a
 * generation_room (rooms.h). Loop thread only. */
#ifndef ENGINE_DAEMON_GENERATION_GENERATION_H
#define ENGINE_DAEMON_GENERATION_GENERATION_H

#include "engine/base/sealed_text.h"
#include "engine/daemon/generation/admission.h"
#include "engine/daemon/sessions/sessions.h"

typedef struct generation_room {
	catalog *catalog;
	fleet *fleet;
	sessions *sessions;
	admission *admission;
	int max_generations;
	int max_explanations;
	seal_key state_key; /* seals states in answers */
	int explanations;   /* explanations whose answers are being computed or sent */
} generation_room;

/* Return the room of a stream of these methods. Borrowed. */
static inline generation_room *generation_room_of(const stream *s)
{
	return s->room;
}

#endif
