/* thread_check.h - whether the system lets this process have its threads.
 *
 * libuv and the OpenMP runtime end the process when a thread of theirs cannot be created. A program therefore checks
 * the number once at its start, where a message is possible, and creates all threads before it serves. */
#ifndef ENGINE_BASE_THREAD_CHECK_H
#define ENGINE_BASE_THREAD_CHECK_H

#include "engine/base/error.h"

/* Create n more threads at once and end them again. STATUS_NOMEM, with the limits named, if there cannot be that many.
 */
status thread_check(int n, error *err);

#endif
