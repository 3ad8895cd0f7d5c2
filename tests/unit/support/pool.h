/* pool.h - libuv's thread pool with a single thread that a test can block. */
#ifndef TESTS_UNIT_SUPPORT_POOL_H
#define TESTS_UNIT_SUPPORT_POOL_H

/* Give the pool one thread. Call it before the process queues any work. */
void pool_setup(void);
void pool_teardown(void);
/* Block that thread, after the work queued so far, until pool_release. */
void pool_hold(void);
void pool_release(void);

#endif
