/* pool.h - libuv's thread pool, with one thread that a test can stop. */
#ifndef TESTS_UNIT_SUPPORT_POOL_H
#define TESTS_UNIT_SUPPORT_POOL_H

/* Before the first work of the process: the pool has one thread. */
void pool_setup(void);
void pool_teardown(void);
/* Block that thread, when it has done the work queued so far, until pool_release. */
void pool_hold(void);
void pool_release(void);

#endif
