/* thread_check.h - check that the system lets this process create its threads.
 *
 * libuv and the OpenMP runtime end the process when they cannot create a thread. A program therefore checks the number
 * once at its start, where a message is possible, and creates all threads before it serves. */
#ifndef ENGINE_BASE_THREAD_CHECK_H
#define ENGINE_BASE_THREAD_CHECK_H

#include "engine/base/error.h"

/* Create n threads at once and end them. STATUS_NOMEM, with the limits named, if that many cannot be created. */
status thread_check(int n, error *err);

#endif
