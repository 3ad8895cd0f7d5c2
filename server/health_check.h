/* health_check.h - ask a running front end whether it lives; for containers, which have no curl. */
#ifndef SERVER_HEALTH_CHECK_H
#define SERVER_HEALTH_CHECK_H

/* GET /healthz at "HOST:PORT" (an any-address is asked on loopback) and print what it says of backend and device, or on
 * stderr what is wrong. required_backend: "cpu" or "cuda"; NULL: any, and none while the engine is away.
 * 0: it answered 200, by an engine with the required backend; 1: it did not. Blocks. */
int health_check(const char *listen, const char *required_backend);

#endif
