/* maintenance.h - `additived backup`, `restore` and `fsck`: work on a data folder, in a process of its own.
 *
 * Exit status: 0; 1 when something is damaged (the report names it); 2 when it could not be done. Reports go to stdout, errors to
 * stderr. */
#ifndef ENGINE_DAEMON_MAINTENANCE_H
#define ENGINE_DAEMON_MAINTENANCE_H

#include <stdbool.h>

/* Is the first argument the name of one of these commands? */
bool maintenance_is_asked(int argc, char **argv);
/* Run it: argv[0] is its name. Returns the exit status. */
int maintenance_run(int argc, char **argv);

#endif
