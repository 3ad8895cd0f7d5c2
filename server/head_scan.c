/* The library offers no view of a head's bytes. It reads them with recv, or with gnutls_record_recv if the connection
 * is encrypted. The dynamic linker resolves both to the functions defined here, as it does in refusal.c. A library that
 * reads in another way gets every request refused, so the check cannot vanish unnoticed. */
#include "server/head_scan.h"

#if HEAD_SCAN_IS_NEEDED

#include <ctype.h>
#include <dlfcn.h>
#include <gnutls/gnutls.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef struct head_scan {
	bool watched;       /* the descriptor is a client's connection */
	bool encrypted;     /* its bytes come from gnutls_record_recv; recv sees records */
	bool seen;          /* some of its bytes have been read */
	bool odd;           /* a head has two readings; stays set */
	bool started;       /* the head's first line has begun; empty lines before it are skipped */
	unsigned char last; /* the byte before */
	bool chunked;       /* the head has a Transfer-Encoding: no more heads are read here */
	size_t line;        /* bytes of the current line */
	char begins[18];    /* the first of them, in lower case */
	uint64_t length;    /* the head's Content-Length so far */
	uint64_t body;      /* bytes left of the body */
} head_scan;

static head_scan *scans;
static int n_scans;

/* Framing checks refuse a length that is repeated or not a number, so the digits of one line are the length. */
static void head_scan_framing(head_scan *s, unsigned char c)
{
	static const char length[] = "content-length:", encoding[] = "transfer-encoding:";
	if (s->line < sizeof s->begins)
		s->begins[s->line] = (char)tolower(c);
	if (s->line + 1 == sizeof encoding - 1)
		s->chunked |= memcmp(s->begins, encoding, sizeof encoding - 1) == 0;
	if (s->line + 1 >= sizeof length && isdigit(c) && memcmp(s->begins, length, sizeof length - 1) == 0)
		s->length = s->length * 10 + (c - '0');
}

static void head_scan_byte(head_scan *s, unsigned char c)
{
	s->odd |=
	    c == '\0' || (s->last == '\r') != (c == '\n') || (s->started && s->line == 0 && (c == ' ' || c == '\t'));
	s->last = c;
	if (c != '\n') {
		head_scan_framing(s, c);
		s->started |= c != '\r';
		s->line++;
		return;
	}
	if (s->started && s->line == 1) { /* a CR alone: the head ends */
		s->body = s->chunked ? UINT64_MAX : s->length;
		s->length = 0;
		s->started = false;
	}
	s->line = 0;
}

static void head_scan_take(head_scan *s, const unsigned char *data, size_t bytes)
{
	s->seen |= bytes > 0;
	while (bytes > 0 && !s->odd) {
		const size_t skipped = s->body < bytes ? (size_t)s->body : bytes;
		s->body -= skipped;
		data += skipped;
		bytes -= skipped;
		if (bytes == 0)
			return;
		head_scan_byte(s, *data++);
		bytes--;
	}
}

static void head_scan_read(int fd, bool encrypted, const void *data, ssize_t got)
{
	if (got > 0 && fd < n_scans && scans[fd].watched && scans[fd].encrypted == encrypted)
		head_scan_take(&scans[fd], data, (size_t)got);
}

ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
	ssize_t got = recvfrom(fd, data, bytes, flags, NULL, NULL);
	head_scan_read(fd, false, data, got);
	return got;
}

ssize_t gnutls_record_recv(gnutls_session_t session, void *data, size_t bytes)
{
	ssize_t (*receive)(gnutls_session_t session, void *data, size_t bytes);
	void *found = dlsym(RTLD_NEXT, "gnutls_record_recv");
	memcpy(&receive, &found, sizeof receive);
	ssize_t got = receive ? receive(session, data, bytes) : GNUTLS_E_INTERNAL_ERROR;
	head_scan_read(gnutls_transport_get_int(session), true, data, got);
	return got;
}

bool head_scan_reserve(int n)
{
	head_scan *grown = n > n_scans ? realloc(scans, (size_t)n * sizeof *scans) : scans;
	if (!grown)
		return false;
	scans = grown;
	for (; n_scans < n; n_scans++)
		scans[n_scans] = (head_scan){0};
	return true;
}

void head_scan_begin(int fd, bool encrypted)
{
	if (fd < n_scans)
		scans[fd] = (head_scan){.watched = true, .encrypted = encrypted};
}

void head_scan_end(int fd)
{
	if (fd < n_scans)
		scans[fd] = (head_scan){0};
}

bool head_scan_is_last(int fd)
{
	return fd >= n_scans || scans[fd].chunked;
}

bool head_scan_is_odd(int fd)
{
	return fd >= n_scans || !scans[fd].seen || scans[fd].odd;
}

#endif
