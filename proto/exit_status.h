/* exit_status.h - exit statuses of the engine that its supervisor acts on. */
#ifndef PROTO_EXIT_STATUS_H
#define PROTO_EXIT_STATUS_H

/* The data folder has vanished; the supervisor retries until it is back. The value is that of EX_TEMPFAIL in
 * <sysexits.h>. */
enum { EXIT_NO_DATA = 75 };

#endif
