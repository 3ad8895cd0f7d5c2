#include "server/auth.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <gnutls/crypto.h>

#include "server/log.h"

struct auth {
	auth_key *keys;
	size_t n_keys;
};

static const char *const role_names[] = {[ROLE_USER] = "user", [ROLE_TRAINER] = "trainer", [ROLE_ADMIN] = "admin"};

const char *auth_role_name(key_role role)
{
	return role_names[role];
}

static bool auth_hash(unsigned char out[AUTH_HASH_BYTES], const char *key)
{
	return gnutls_hash_fast(GNUTLS_DIG_SHA256, key, strlen(key), out) == 0;
}

static auth_key *auth_add(auth *a)
{
	auth_key *keys = realloc(a->keys, (a->n_keys + 1) * sizeof *keys);
	if (!keys)
		return NULL;
	a->keys = keys;
	keys[a->n_keys] = (auth_key){.role = ROLE_ADMIN};
	return &keys[a->n_keys++];
}

/* --- keys of a file ------------------------------------------------------------ */

static bool auth_add_line(auth *a, const char *text, size_t bytes)
{
	enum { SHOWN = 16 };
	char *key = strndup(text, bytes);
	auth_key *k = key ? auth_add(a) : NULL;
	bool ok = k && auth_hash(k->hash, key);
	int at = ok ? snprintf(k->name, sizeof k->name, "key-") : 0;
	for (int i = 0; ok && i < SHOWN; i++)
		at += snprintf(k->name + at, sizeof k->name - (size_t)at, "%02x", k->hash[i]);
	free(key);
	return ok;
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
			ok = auth_add_line(a, key, bytes);
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

/* --- keys of the engine ---------------------------------------------------------- */

static bool auth_read_role(const char *name, key_role *out)
{
	for (size_t i = 0; name && i < sizeof role_names / sizeof *role_names; i++) {
		if (strcmp(name, role_names[i]) == 0) {
			*out = (key_role)i;
			return true;
		}
	}
	return false;
}

static bool auth_read_key(const json_t *object, auth_key *out)
{
	const char *id = json_string_value(json_object_get(object, "id"));
	const char *hash = json_string_value(json_object_get(object, "hash"));
	size_t bytes = AUTH_HASH_BYTES;
	const gnutls_datum_t hex = {(unsigned char *)(uintptr_t)hash, hash ? (unsigned)strlen(hash) : 0};
	out->expires = json_integer_value(json_object_get(object, "expires_at"));
	return id && snprintf(out->name, sizeof out->name, "%s", id) < AUTH_NAME_BYTES &&
	       auth_read_role(json_string_value(json_object_get(object, "role")), &out->role) && hash &&
	       gnutls_hex_decode(&hex, out->hash, &bytes) == 0 && bytes == AUTH_HASH_BYTES;
}

auth *auth_from_json(const json_t *keys)
{
	auth *a = json_is_array(keys) ? calloc(1, sizeof *a) : NULL;
	for (size_t i = 0; a && i < json_array_size(keys); i++) {
		auth_key *k = auth_add(a);
		if (!k || !auth_read_key(json_array_get(keys, i), k)) {
			auth_free(a);
			a = NULL;
		}
	}
	return a;
}

void auth_free(auth *a)
{
	if (!a)
		return;
	free(a->keys);
	free(a);
}

/* --- finding ---------------------------------------------------------------------- */

const auth_key *auth_find(const auth *a, const char *header)
{
	unsigned char hash[AUTH_HASH_BYTES];
	if (!a || !header || strncasecmp(header, "Bearer ", 7) != 0 ||
	    !auth_hash(hash, header + 7 + strspn(header + 7, " ")))
		return NULL;
	size_t found = 0;
	for (size_t i = 0; i < a->n_keys; i++) {
		const size_t here = gnutls_memcmp(a->keys[i].hash, hash, AUTH_HASH_BYTES) == 0;
		found = here * (i + 1) + (1 - here) * found;
	}
	const auth_key *k = found ? &a->keys[found - 1] : NULL;
	return k && !(k->expires && k->expires <= time(NULL)) ? k : NULL;
}
