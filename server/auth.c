/* Every key is compared with every byte of the candidate, so neither a match nor its place can be timed. */
#include "server/auth.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <gnutls/crypto.h>

#include "server/log.h"

typedef struct auth_key {
	char *text;
	char name[AUTH_NAME_BYTES];
} auth_key;

struct auth {
	auth_key *keys;
	size_t n_keys;
};

static bool auth_name(char name[AUTH_NAME_BYTES], const char *key)
{
	enum { HASH = 32, SHOWN = 16 };
	unsigned char hash[HASH];
	int at = snprintf(name, AUTH_NAME_BYTES, "key-");
	if (gnutls_hash_fast(GNUTLS_DIG_SHA256, key, strlen(key), hash) != 0)
		return false;
	for (int i = 0; i < SHOWN; i++)
		at += snprintf(name + at, (size_t)(AUTH_NAME_BYTES - at), "%02x", hash[i]);
	return true;
}

static bool auth_add(auth *a, const char *key, size_t bytes)
{
	auth_key *keys = realloc(a->keys, (a->n_keys + 1) * sizeof *keys);
	if (!keys)
		return false;
	a->keys = keys;
	auth_key *k = &keys[a->n_keys];
	k->text = strndup(key, bytes);
	a->n_keys += k->text != NULL;
	return k->text && auth_name(k->name, k->text);
}

auth *auth_load(const char *path)
{
	FILE *file = fopen(path, "re");
	auth *a = file ? calloc(1, sizeof *a) : NULL;
	char *line = NULL;
	size_t capacity = 0;
	bool ok = a != NULL;
	while (ok && getline(&line, &capacity, file) >= 0) {
		const char *key = line + strspn(line, " \t\r\n");
		size_t bytes = strcspn(key, " \t\r\n");
		if (bytes > 0 && *key != '#')
			ok = auth_add(a, key, bytes);
	}
	if (!file)
		log_line(LOG_ERROR, "cannot read the key file %s: %s", path, strerror(errno));
	else if (!ok || ferror(file))
		log_line(LOG_ERROR, "cannot read the key file %s", path);
	else if (a->n_keys == 0)
		log_line(LOG_ERROR, "the key file %s holds no key", path);
	if (!ok || (file && ferror(file)) || a->n_keys == 0) {
		auth_free(a);
		a = NULL;
	}
	if (file)
		fclose(file);
	free(line);
	return a;
}

void auth_free(auth *a)
{
	if (!a)
		return;
	for (size_t i = 0; i < a->n_keys; i++)
		free(a->keys[i].text);
	free(a->keys);
	free(a);
}

static bool auth_equal(const char *key, const char *candidate, size_t bytes)
{
	size_t key_bytes = strlen(key);
	unsigned differ = key_bytes != bytes;
	for (size_t i = 0; i < bytes; i++)
		differ |= (unsigned char)(candidate[i] ^ key[i % key_bytes]);
	return differ == 0;
}

const char *auth_find(const auth *a, const char *header)
{
	if (!header || strncasecmp(header, "Bearer ", 7) != 0)
		return NULL;
	const char *candidate = header + 7 + strspn(header + 7, " ");
	size_t bytes = strlen(candidate);
	size_t found = 0;
	for (size_t i = 0; i < a->n_keys; i++) {
		size_t here = auth_equal(a->keys[i].text, candidate, bytes);
		found = here * (i + 1) + (1 - here) * found;
	}
	return found ? a->keys[found - 1].name : NULL;
}
