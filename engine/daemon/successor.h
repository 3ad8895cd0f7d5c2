/* successor.h - re-execution of the engine: same process id, arguments, environment, parent and output, new memory.
 *
 * For a fault that only ends with the process (device.h). Only the struct below is handed over, in the environment.
 * Data comes from the store, and the socket is opened again under the same name. */
#ifndef ENGINE_DAEMON_SUCCESSOR_H
#define ENGINE_DAEMON_SUCCESSOR_H

#include "engine/daemon/compute/fleet.h"

typedef struct successor {
	device_history devices[FLEET_MAX]; /* as the options name them */
	int n_devices;
	char address[256]; /* the socket's, including a port that the system chose */
} successor;

/* Read and remove the data of a predecessor from the environment; all zero: none. Call before starting threads. */
void successor_read(successor *out);
/* Execute the program again with this data, closing all but the standard descriptors. Returns only on failure, which
 * has been logged. */
void successor_execute(const successor *s, char **argv);

#endif
