/* address.h - addresses to listen on, and addresses of clients.
 *
 * An address is 16 bytes: IPv6, or IPv4 mapped into it. */
#ifndef SERVER_ADDRESS_H
#define SERVER_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

enum { ADDRESS_TEXT_BYTES = 56 };

typedef struct address_bytes {
	unsigned char bytes[16];
} address_bytes;

/* Split "HOST:PORT" or "[V6]:PORT" into its halves, without brackets; "PORT" alone means 127.0.0.1. False when
 * malformed, also for a wildcard that is not written as an address (*:8080, :8080). */
bool address_split(const char *text, char *host, size_t host_size, char *port, size_t port_size);

/* Zero for families other than IPv4 and IPv6. */
address_bytes address_of(const struct sockaddr *name);
bool address_is_loopback(const address_bytes *a);
/* The address as text, IPv4 without the IPv6 prefix. */
void address_text(const address_bytes *a, char out[ADDRESS_TEXT_BYTES]);
/* The client that an address belongs to, as text: an IPv4 address, or the /64 network of an IPv6 address. */
void address_client(const address_bytes *a, char out[ADDRESS_TEXT_BYTES]);

/* The addresses whose first `bits` bits are these. */
typedef struct address_range {
	address_bytes first;
	unsigned bits;
} address_range;

/* Read ADDRESS or ADDRESS/BITS, of IPv4 or IPv6. False when malformed, or if a bit after them is set. */
bool address_range_parse(address_range *out, const char *text);
bool address_range_has(const address_range *range, const address_bytes *a);

/* Number of connections of each address. Zero-initialise; without entries it holds no memory. */
typedef struct address_counts {
	void *root;
} address_counts;

/* Count one connection; false when out of memory. */
bool address_counts_add(address_counts *c, const address_bytes *a);
/* Uncount one connection of an address that was added. */
void address_counts_remove(address_counts *c, const address_bytes *a);
unsigned address_counts_get(const address_counts *c, const address_bytes *a);

#endif
