/* auth.h - bearer keys from a file: one per line, blank lines and lines beginning with # ignored. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include <stdbool.h>
#include <stddef.h>

typedef struct auth auth;

/* Read the keys. NULL, with a message on stderr, when the file cannot be read or holds no key. */
auth *auth_load(const char *path);
void auth_free(auth *a);
/* Number, from 1, of the key in this Authorization header ("Bearer KEY"; NULL: no header); 0 if it is none of the keys.
 * The time depends only on the lengths, never on how much of a key is right. */
size_t auth_find(const auth *a, const char *header);

#endif
