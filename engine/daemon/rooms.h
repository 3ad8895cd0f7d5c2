/* rooms.h - contexts that give each room of the daemon the parts of the engine that it needs. Loop thread only. */
#ifndef ENGINE_DAEMON_ROOMS_H
#define ENGINE_DAEMON_ROOMS_H

#include "engine/daemon/engine_parts.h"

/* A method's row in dispatch.c names the room whose context its streams get (stream.room). */
typedef enum room { ROOM_ENGINE, ROOM_LIBRARY, ROOM_SESSIONS, ROOM_GENERATION, ROOM_KEYS } room;

/* Return the context of a room. */
void *rooms_context(engine *e, room which);
/* Fill in the contexts of library and generation. The engine has all its parts. */
void rooms_connect(engine *e);
session_parts rooms_sessions(engine *e);
job_parts rooms_jobs(engine *e);

#endif
