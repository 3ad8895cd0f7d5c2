/* large_body.h - read a large JSON body on the thread pool, while the loop serves other requests.
 *
 * The pool has one thread (main.c), so bodies are read one at a time and at most one parsed body is in memory. Loop
 * thread only. */
#ifndef SERVER_LARGE_BODY_H
#define SERVER_LARGE_BODY_H

#include "server/json_body.h"
#include "server/server.h"

typedef struct large_body large_body;

/* Read the text, which is taken over and counts `reserved` bytes of server.buffered until it has been read. `done` gets
 * the body and may take parts of it; the rest is freed. NULL when out of memory: the text is not taken over, and `done`
 * is not called. */
large_body *large_body_read(server *s, buffer *text, uint64_t reserved, const schema *expected,
                            void (*done)(void *context, json_body *body), void *context);
/* Do not call `done` any more. The body is still read, and freed. */
void large_body_forget(large_body *b);

#endif
