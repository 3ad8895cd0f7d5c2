/* health_check.h - ask a running front end whether it lives; for containers, which have no curl. */
#ifndef SERVER_HEALTH_CHECK_H
#define SERVER_HEALTH_CHECK_H

/* GET /healthz at "HOST:PORT" (an any-address is asked on loopback). 0: it answered 200; 1: it did not. Blocks. */
int health_check(const char *listen);

#endif
