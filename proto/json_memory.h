/* json_memory.h - jansson for programs that continue when memory runs out.
 *
 * jansson 2.14 does not survive every failed allocation. Its lexer does not notice that a token was saved incompletely.
 * A long number loses digits, and a string without its closing quote is copied past the end of a buffer. Its printer
 * omits a key that it could not write. Therefore:
 *
 * - Texts are parsed by json_memory_parse, which avoids the lexer's fault at any size.
 * - Every failed allocation inside jansson is recorded, and json_memory_print then returns no text. An answer is
 *   complete or absent, even if the code that built it ignored a failure.
 *
 * The record belongs to the thread. */
#ifndef PROTO_JSON_MEMORY_H
#define PROTO_JSON_MEMORY_H

#include <jansson.h>
#include <stdbool.h>

/* Call once, before any other function of jansson. Memory comes from `allocate` and goes to `release`: malloc and free,
 * or those of a program with its own reserve. */
void json_memory_install(json_malloc_t allocate, json_free_t release);

/* Like json_loadb, for texts from untrusted sources. NULL if the text is not valid JSON or memory ran out;
 * json_memory_failed then returns true for the latter. Earlier failures are forgotten. */
json_t *json_memory_parse(const char *text, size_t bytes, size_t flags, json_error_t *error);

/* Like json_dumps; the text must be given to `release`. Also NULL if an allocation of jansson's has failed since
 * json_memory_forget or json_memory_parse; the failure stays recorded. `document` may be NULL. */
char *json_memory_print(const json_t *document, size_t flags);

/* True if an allocation of jansson's has failed on this thread since the latest json_memory_forget or
 * json_memory_parse. */
bool json_memory_failed(void);
/* Forget recorded failures, before building a new answer. */
void json_memory_forget(void);

#endif
