/* auth.h - bearer keys from a file: one per line, blank lines and lines beginning with # ignored. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include <stdbool.h>
#include <stddef.h>

enum { AUTH_NAME_BYTES = 40 /* with the NUL */ };

typedef struct auth auth;

/* Read the keys. NULL, with a message on stderr, when the file cannot be read or holds no key. */
auth *auth_load(const char *path);
void auth_free(auth *a);
/* Return the name of the key in this Authorization header ("Bearer KEY"; NULL: no header), or NULL if it is none of the
 * keys. A name is a hash of its key, so it is the same in every file and process. It is valid until auth_free. The time
 * depends only on the lengths, never on how much of a key is right. */
const char *auth_find(const auth *a, const char *header);

#endif
