/* faults.h - the control page of faults.so, shared between a program under test and the test that drives it.
 *
 * The test maps the file named by FAULTS_CONTROL and writes fields at any time; the library reads them at every
 * wrapped call. tests/faults/control.py holds the same layout. All integers are little-endian and naturally
 * aligned. A rule is armed by writing `first` last and disarmed by writing 0 to it. */
#ifndef TESTS_FAULTS_FAULTS_H
#define TESTS_FAULTS_FAULTS_H

#include <stdatomic.h>
#include <stdint.h>

/* One kind of call. The order is part of the layout. */
enum {
	FAULTS_ALLOCATION, /* malloc, calloc, realloc, aligned_alloc, posix_memalign, memalign, strdup, strndup */
	FAULTS_OPEN,       /* open, openat, creat for writing; mkostemp, mkstemp; fopen for writing */
	FAULTS_WRITE,      /* write, pwrite, writev to a regular file */
	FAULTS_SYNC,       /* fsync, fdatasync */
	FAULTS_TRUNCATE,   /* ftruncate */
	FAULTS_RENAME,     /* rename, renameat2 */
	FAULTS_FOLDER,     /* mkdir, mkdtemp */
	FAULTS_UNLINK,     /* unlink, rmdir, remove */
	FAULTS_LINK,       /* link */
	FAULTS_READ,       /* read, pread from a regular file; open for reading */
	FAULTS_MAP,        /* mmap of a file or of fresh memory */
	FAULTS_THREAD,     /* pthread_create */
	FAULTS_CLASSES,
	FAULTS_MAGIC = 0x31544641 /* "AFT1" */
};

typedef struct faults_rule {
	atomic_int_least64_t calls; /* calls of this class so far; the test may reset it */
	atomic_int_least64_t first; /* the first call that fails, counted from 1; 0: none */
	atomic_int_least64_t count; /* number of calls that fail from there on */
	atomic_int_least64_t failed;
	atomic_int_least32_t error;  /* errno of a failed call; 0: a write takes half of its bytes */
	atomic_int_least32_t one_in; /* also one call in this number fails, chosen by a hash of its number; 0: none */
} faults_rule;

typedef struct faults_control {
	uint32_t magic;
	atomic_uint_least32_t full;  /* the disk is full: calls that need space below `folder` fail with ENOSPC */
	atomic_uint_least32_t trace; /* write the stack of every failed call to the file named by FAULTS_TRACE */
	uint32_t reserved;
	atomic_int_least64_t refused; /* calls that failed because the disk is full */
	char folder[232];             /* file calls count and fail only below this folder; empty: anywhere */
	faults_rule rules[FAULTS_CLASSES];
} faults_control;

#endif
