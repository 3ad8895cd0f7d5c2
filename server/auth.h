/* auth.h - lists of bearer keys: those of a file, and those that the engine has (engine_keys.h).
 *
 * A list has the SHA-256 of each key, never the key. Finding one compares all hashes with that of the candidate, so the
 * time depends on nothing but the candidate's length and the number of keys. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/router.h"

enum { AUTH_HASH_BYTES = 32, AUTH_NAME_BYTES = 64 /* with the NUL */ };

typedef struct auth_key {
	unsigned char hash[AUTH_HASH_BYTES];
	char name[AUTH_NAME_BYTES]; /* owner's name: the engine's id, or for a key of a file its hash */
	key_role role;
	int64_t expires; /* Unix seconds; 0: never */
} auth_key;

typedef struct auth auth;

/* Read a file of keys, all admins: one per line, blank lines and lines beginning with # ignored. NULL, with a message
 * on stderr, when the file cannot be read or holds no key. */
auth *auth_load(const char *path);
/* Read the "keys" of an event of key.watch. NULL: malformed, or out of memory. */
auth *auth_from_json(const json_t *keys);
void auth_free(auth *a);
/* Return the key in this Authorization header ("Bearer KEY"; NULL: no header), or NULL if it is none of the keys or has
 * expired. It is valid until auth_free. a: NULL is legal and has none. */
const auth_key *auth_find(const auth *a, const char *header);
/* Return "user", "trainer" or "admin". */
const char *auth_role_name(key_role role);

#endif
