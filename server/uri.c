/* One copy of the target is cut and decoded in place: decoding never lengthens. */
#include "server/uri.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int uri_hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decode %XX (and + when it is a query) in place. */
static bool uri_decode(char *text, bool plus)
{
	char *out = text;
	for (const char *in = text; *in; in++) {
		char c = *in;
		if (c == '%') {
			int high = uri_hex(in[1]);
			int low = high < 0 ? -1 : uri_hex(in[2]);
			if (low < 0 || (high == 0 && low == 0))
				return false;
			c = (char)(high << 4 | low);
			in += 2;
		} else if (c == '+' && plus) {
			c = ' ';
		}
		*out++ = c;
	}
	*out = '\0';
	return uri_utf8_valid(text);
}

static bool uri_split_path(uri *u, char *path)
{
	if (*path != '/')
		return false;
	if (path[1] == '\0')
		return true;
	while (path) {
		char *segment = path + 1;
		path = strchr(segment, '/');
		if (path)
			*path = '\0';
		if (u->n_segments == URI_MAX_SEGMENTS || !uri_decode(segment, false))
			return false;
		u->segments[u->n_segments++] = segment;
	}
	return true;
}

static bool uri_split_query(uri *u, char *query)
{
	for (char *next; query; query = next) {
		next = strchr(query, '&');
		if (next)
			*next++ = '\0';
		if (*query == '\0')
			continue;
		char *value = strchr(query, '=');
		if (value)
			*value++ = '\0';
		if (u->n_query == URI_MAX_QUERY || !uri_decode(query, true) || (value && !uri_decode(value, true)))
			return false;
		u->query[u->n_query++] = (uri_pair){query, value ? value : ""};
	}
	return true;
}

bool uri_parse(uri *u, const char *target)
{
	*u = (uri){0};
	for (const char *c = target; *c; c++)
		if ((unsigned char)*c <= ' ' || *c == 0x7f)
			return false;
	if (*target != '/') { /* absolute form: scheme://host/path */
		const char *host = strstr(target, "://");
		const char *path = host ? strchr(host + 3, '/') : NULL;
		if (!path)
			return false;
		target = path;
	}
	u->memory = strdup(target);
	u->out_of_memory = !u->memory;
	if (!u->memory)
		return false;
	char *query = strchr(u->memory, '?');
	if (query)
		*query++ = '\0';
	if (uri_split_path(u, u->memory) && uri_split_query(u, query))
		return true;
	uri_fini(u);
	return false;
}

const char *uri_query(const uri *u, const char *name)
{
	for (int i = 0; i < u->n_query; i++)
		if (strcmp(u->query[i].name, name) == 0)
			return u->query[i].value;
	return NULL;
}

void uri_fini(uri *u)
{
	free(u->memory);
	*u = (uri){0};
}

bool uri_id_valid(const char *id)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
	size_t bytes = strlen(id);
	return bytes >= 1 && bytes <= 63 && strspn(id, allowed) == bytes && strspn(id, ".") < bytes;
}

const char *uri_base_name(const char *path)
{
	const char *slash = strrchr(path, '/'), *backslash = strrchr(path, '\\');
	const char *last = slash > backslash ? slash : backslash;
	return last ? last + 1 : path;
}

/* Bytes of the UTF-8 character at `c`, 0 when there is none: too long, a surrogate, beyond U+10FFFF. */
static size_t uri_character(const unsigned char *c)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t bytes = *c < 0x80 ? 1 : *c < 0xc0 ? 0 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : *c < 0xf8 ? 4 : 0;
	uint32_t code = bytes < 2 ? *c : *c & (0x7fu >> bytes);
	for (size_t i = 1; i < bytes; i++) {
		if ((c[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (c[i] & 0x3f);
	}
	bool surrogate = code >= 0xd800 && code <= 0xdfff;
	return code >= least[bytes] && code <= 0x10ffff && !surrogate ? bytes : 0;
}

bool uri_utf8_valid(const char *text)
{
	const unsigned char *c = (const unsigned char *)text;
	for (size_t bytes; *c; c += bytes)
		if ((bytes = uri_character(c)) == 0)
			return false;
	return true;
}
