/* successor.h - the engine executes itself anew: same process id, arguments, environment, parent and output, new
 * memory.
 *
 * For a fault that does not end but with the process (device.h). Nothing is handed over but what is below, in the
 * environment: data come from the store, and the socket is opened again under the same name. */
#ifndef ENGINE_DAEMON_SUCCESSOR_H
#define ENGINE_DAEMON_SUCCESSOR_H

#include "engine/daemon/compute/device.h"

typedef struct successor {
	device_history device;
	char address[256]; /* of the socket: a port that the system chose stays */
} successor;

/* Am I one? Take what was handed over out of the environment; all zero: nothing was. Before threads. */
void successor_read(successor *out);
/* Become one. Descriptors but the standard ones are closed. Returns only if that fails, when it has been logged. */
void successor_execute(const successor *s, char **argv);

#endif
