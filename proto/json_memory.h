/* json_memory.h - jansson for programs that go on when memory runs out.
 *
 * jansson 2.14 does not survive every failed allocation. Its lexer ignores that a token could not be saved whole: a
 * long number loses digits, and a string without its closing quote is copied past the end of a buffer. Its printer
 * leaves out a key that it could not write. So
 *   - texts are parsed by json_memory_parse, which cannot run into the lexer's fault at any size;
 *   - every allocation that fails inside jansson is remembered, and json_memory_print gives no text then: an answer is
 *     whole or there is none, whether or not the code that built it looked at every result.
 *
 * What is remembered belongs to the thread. */
#ifndef PROTO_JSON_MEMORY_H
#define PROTO_JSON_MEMORY_H

#include <jansson.h>
#include <stdbool.h>

/* Once, before anything else of jansson is called. Its memory comes from `allocate` and goes to `release`: malloc and
 * free, or those of a program with a reserve of its own. */
void json_memory_install(json_malloc_t allocate, json_free_t release);

/* As json_loadb, for texts from untrusted sources. NULL when the text is not valid JSON, or when memory ran out, which
 * json_memory_failed then says. What failed before the call is forgotten. */
json_t *json_memory_parse(const char *text, size_t bytes, size_t flags, json_error_t *error);

/* As json_dumps, the text to be given to `release`; NULL also when an allocation of jansson's has failed since
 * json_memory_forget or json_memory_parse. What failed stays remembered. `document` may be NULL. */
char *json_memory_print(const json_t *document, size_t flags);

/* Has an allocation of jansson's failed on this thread since the latest json_memory_forget or json_memory_parse? */
bool json_memory_failed(void);
/* Before a new answer is built. */
void json_memory_forget(void);

#endif
