/* front.h - the whole front end inside this process, on a loop that the caller turns; its engine is a child process.
 *
 * Nothing here allocates between front_new and front_free, so a failing allocation is the front end's. The engine
 * answers by the method: generations stream two events, contents are downloads, the id "missing" is not found, the
 * id "hang" is never answered; everything else is a small object. Link with what the server links. */
#ifndef TESTS_UNIT_SUPPORT_FRONT_H
#define TESTS_UNIT_SUPPORT_FRONT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct front front;

/* Started and connected with its engine. request_ms: its time for a request to arrive. NULL, with a message, when it
 * cannot start. */
front *front_new(uint64_t request_ms);
void front_free(front *f);

/* One turn of the loop; waits up to `ms` when there is nothing to do. */
void front_turn(front *f, int ms);
bool front_connected(const front *f);
/* Requests and connections in memory. */
uint64_t front_requests(const front *f);
uint64_t front_connections(const front *f);

/* A client's socket that never blocks; -1 on failure. */
int front_client(front *f);
/* Send all of it, turning the loop; false when the connection has ended. */
bool front_send(front *f, int client, const void *data, size_t bytes);
/* Receive until the connection ends, `room` is full or nothing has come for quiet_ms. *ended: the connection has. */
size_t front_receive(front *f, int client, char *out, size_t room, int quiet_ms, bool *ended);

#endif
