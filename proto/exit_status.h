/* exit_status.h - exit statuses of the engine that its supervisor acts on. */
#ifndef PROTO_EXIT_STATUS_H
#define PROTO_EXIT_STATUS_H

/* The data folder, which must exist, has vanished: the supervisor tries again until it is back. EX_TEMPFAIL of
 * sysexits.h. */
enum { EXIT_NO_DATA = 75 };

#endif
