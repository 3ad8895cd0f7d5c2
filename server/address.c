/* The counts are nodes of the C library's balanced tree. */
#include "server/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- text --------------------------------------------------------------------------- */

static bool address_is_port(const char *text)
{
	size_t digits = strspn(text, "0123456789");
	return digits > 0 && digits <= 5 && !text[digits] && strtoul(text, NULL, 10) <= 65535;
}

static bool address_copy(char *out, size_t size, const char *text, size_t bytes)
{
	if (bytes == 0 || bytes >= size)
		return false;
	memcpy(out, text, bytes);
	out[bytes] = '\0';
	return true;
}

bool address_split(const char *text, char *host, size_t host_size, char *port, size_t port_size)
{
	static const char loopback[] = "127.0.0.1";
	const char *colon = strrchr(text, ':'), *digits = colon ? colon + 1 : text;
	if (!address_is_port(digits) || !address_copy(port, port_size, digits, strlen(digits)))
		return false;
	if (!colon)
		return address_copy(host, host_size, loopback, sizeof loopback - 1);
	size_t bytes = (size_t)(colon - text);
	if (text[0] == '[' && bytes > 2 && text[bytes - 1] == ']')
		return address_copy(host, host_size, text + 1, bytes - 2);
	return strcspn(text, ":*[]") == bytes && address_copy(host, host_size, text, bytes);
}

/* --- bytes -------------------------------------------------------------------------- */

static const unsigned char address_mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

address_bytes address_of(const struct sockaddr *name)
{
	address_bytes a = {{0}};
	if (name->sa_family == AF_INET6) {
		memcpy(a.bytes, &((const struct sockaddr_in6 *)name)->sin6_addr, sizeof a.bytes);
	} else if (name->sa_family == AF_INET) {
		memcpy(a.bytes, address_mapped, sizeof address_mapped);
		memcpy(a.bytes + sizeof address_mapped, &((const struct sockaddr_in *)name)->sin_addr, 4);
	}
	return a;
}

static bool address_is_v4(const address_bytes *a)
{
	return memcmp(a->bytes, address_mapped, sizeof address_mapped) == 0;
}

bool address_is_loopback(const address_bytes *a)
{
	static const unsigned char one[16] = {[15] = 1};
	return address_is_v4(a) ? a->bytes[12] == 127 : memcmp(a->bytes, one, sizeof one) == 0;
}

void address_text(const address_bytes *a, char out[ADDRESS_TEXT_BYTES])
{
	const bool v4 = address_is_v4(a);
	out[0] = '\0';
	inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? a->bytes + sizeof address_mapped : a->bytes, out, ADDRESS_TEXT_BYTES);
}

void address_client(const address_bytes *a, char out[ADDRESS_TEXT_BYTES])
{
	address_bytes network = *a;
	if (!address_is_v4(a))
		memset(network.bytes + 8, 0, 8);
	address_text(&network, out);
	if (address_is_v4(a))
		return;
	strncat(out, "/64", ADDRESS_TEXT_BYTES - 1 - strlen(out));
}

/* --- ranges -------------------------------------------------------------------------- */

static void address_mask(address_bytes *a, unsigned bits)
{
	for (unsigned i = 0; i < sizeof a->bytes; i++, bits = bits > 8 ? bits - 8 : 0)
		a->bytes[i] &= (unsigned char)(bits >= 8 ? 0xff : 0xff00 >> bits);
}

bool address_range_has(const address_range *range, const address_bytes *a)
{
	address_bytes masked = *a;
	address_mask(&masked, range->bits);
	return memcmp(masked.bytes, range->first.bytes, sizeof masked.bytes) == 0;
}

bool address_range_parse(address_range *out, const char *text)
{
	char address[ADDRESS_TEXT_BYTES];
	const char *slash = strchr(text, '/'), *bits = slash ? slash + 1 : "";
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
	if (!address_copy(address, sizeof address, text, slash ? (size_t)(slash - text) : strlen(text)))
		return false;
	const bool is_v4 = inet_pton(AF_INET, address, &v4.sin_addr) == 1;
	if (!is_v4 && inet_pton(AF_INET6, address, &v6.sin6_addr) != 1)
		return false;
	const unsigned most = is_v4 ? 32 : 128;
	if (slash && (strspn(bits, "0123456789") != strlen(bits) || strlen(bits) < 1 || strlen(bits) > 3))
		return false;
	const unsigned given = slash ? (unsigned)strtoul(bits, NULL, 10) : most;
	out->first = address_of(is_v4 ? (const struct sockaddr *)&v4 : (const struct sockaddr *)&v6);
	out->bits = given + 128 - most;
	return given <= most && address_range_has(out, &out->first);
}

/* --- counts -------------------------------------------------------------------------- */

typedef struct address_count {
	address_bytes address; /* first: a node is compared as an address */
	unsigned count;
} address_count;

static int address_compare(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(address_bytes));
}

bool address_counts_add(address_counts *c, const address_bytes *a)
{
	address_count **found = tsearch(a, &c->root, address_compare);
	if (!found)
		return false;
	if ((const void *)*found == (const void *)a) { /* a new node */
		address_count *made = calloc(1, sizeof *made);
		if (!made) {
			tdelete(a, &c->root, address_compare);
			return false;
		}
		made->address = *a;
		*found = made;
	}
	(*found)->count++;
	return true;
}

void address_counts_remove(address_counts *c, const address_bytes *a)
{
	address_count **found = tfind(a, &c->root, address_compare);
	address_count *node = found ? *found : NULL;
	if (!node || --node->count > 0)
		return;
	tdelete(node, &c->root, address_compare);
	free(node);
}

unsigned address_counts_get(const address_counts *c, const address_bytes *a)
{
	address_count **found = tfind(a, &c->root, address_compare);
	return found ? (*found)->count : 0;
}
