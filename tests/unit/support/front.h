/* front.h - the front end inside this process, on a loop that the caller turns; its engine is a child process.
 *
 * Nothing here allocates between front_new and front_free, so a failing allocation is the front end's. The engine
 * answers by method: generations stream two events, contents are downloads, and everything else is a small object. The
 * id "missing" is not found, the id "hang" is never answered. Link with everything that the server links. */
#ifndef TESTS_UNIT_SUPPORT_FRONT_H
#define TESTS_UNIT_SUPPORT_FRONT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct front front;

/* Start the front end and connect it with its engine. request_ms: time in which a request must arrive. If it cannot
 * start, prints a message and returns NULL. */
front *front_new(uint64_t request_ms);
void front_free(front *f);

/* Turn the loop once; waits up to `ms` if there is nothing to do. */
void front_turn(front *f, int ms);
bool front_connected(const front *f);
/* Number of requests and connections in memory. */
uint64_t front_requests(const front *f);
uint64_t front_connections(const front *f);

/* Connect a client and return its non-blocking socket; -1 on failure. */
int front_client(front *f);
/* Send all bytes, turning the loop; false if the connection has ended. */
bool front_send(front *f, int client, const void *data, size_t bytes);
/* Receive until the connection ends, `room` is full or nothing has arrived for quiet_ms. *ended: the connection has
 * ended. */
size_t front_receive(front *f, int client, char *out, size_t room, int quiet_ms, bool *ended);

#endif
