/* auth.h - bearer keys from a file: one per line, blank lines and lines beginning with # ignored. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include <stdbool.h>
#include <stddef.h>

typedef struct auth auth;

/* Read the keys. NULL, with a message on stderr, when the file cannot be read or holds no key. */
auth *auth_load(const char *path);
void auth_free(auth *a);
/* Which key, counted from 1, is in this Authorization header ("Bearer KEY", NULL: none)? 0: none of them. The time taken
 * depends on the lengths alone, never on how much of a key is right. */
size_t auth_find(const auth *a, const char *header);

#endif
