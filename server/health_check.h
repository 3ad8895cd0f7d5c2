/* health_check.h - check that a running front end responds; for containers, which have no curl. */
#ifndef SERVER_HEALTH_CHECK_H
#define SERVER_HEALTH_CHECK_H

/* GET /healthz at "HOST:PORT" and print its backend and device, or the error on stderr. An any-address is contacted on
 * loopback. required_backend: "cpu" or "cuda"; NULL: any, or none while the engine is unavailable. Returns 0 if it
 * answered 200 and the engine has the required backend, else 1. Blocks. */
int health_check(const char *listen, const char *required_backend);

#endif
