/* head_scan.h - refuse request heads that libmicrohttpd before 0.9.77 misreads.
 *
 * Those versions cut a line at a NUL and treat a line that begins with a NUL as the end of the head. They end a line at
 * a CR alone and drop parts of folded headers. Later versions refuse all of these (http.c sets how strict they are),
 * and this file then does nothing. */
#ifndef SERVER_HEAD_SCAN_H
#define SERVER_HEAD_SCAN_H

#include <microhttpd.h>
#include <stdbool.h>

#define HEAD_SCAN_IS_NEEDED (MHD_VERSION < 0x00097701)

#if HEAD_SCAN_IS_NEEDED

/* Prepare for descriptors below n. False when out of memory. */
bool head_scan_reserve(int n);
/* A connection begins or ends. encrypted: it is read through GnuTLS. */
void head_scan_begin(int fd, bool encrypted);
void head_scan_end(int fd);
/* True if the connection's latest head, or the head of a request sent after it, has two readings; also if the
 * connection's bytes were never seen. */
bool head_scan_is_odd(int fd);
/* True if the connection must not carry another request: the end of a body in chunks is not followed here. */
bool head_scan_is_last(int fd);

#else

static inline bool head_scan_reserve(int n)
{
	(void)n;
	return true;
}

static inline void head_scan_begin(int fd, bool encrypted)
{
	(void)fd;
	(void)encrypted;
}

static inline void head_scan_end(int fd)
{
	(void)fd;
}

static inline bool head_scan_is_odd(int fd)
{
	(void)fd;
	return false;
}

static inline bool head_scan_is_last(int fd)
{
	(void)fd;
	return false;
}

#endif

#endif
