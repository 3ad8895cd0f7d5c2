/* token_history.h - the tokens that a session has read.
 *
 * Tokens are appended to chunks of TOKEN_CHUNK. A full chunk never changes again, so histories share it and count their
 * references. A copy therefore takes time and memory for one chunk, plus a pointer per full chunk: 2 KB for 1,000,000
 * tokens. The last chunk, which is not full, belongs to one history and grows by doubling. In a copy it has room for
 * the copied tokens only.
 *
 * A history is used by one thread at a time; histories that share chunks may be used by several. */
#ifndef ENGINE_SERVE_TOKEN_HISTORY_H
#define ENGINE_SERVE_TOKEN_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { TOKEN_CHUNK = 4096 /* tokens */ };

typedef struct token_chunk token_chunk;

typedef struct token_history {
	token_chunk **chunks;
	int64_t count;
	int64_t capacity; /* tokens that the chunks hold */
} token_history;          /* {0}: empty */

/* Reserve memory for n tokens in all. STATUS_NOMEM leaves the tokens unchanged. */
status token_history_reserve(token_history *h, int64_t n);
/* Append tokens; memory for them must be reserved. */
void token_history_append(token_history *h, const int32_t *tokens, int64_t n);
int32_t token_history_at(const token_history *h, int64_t i);
/* Copy n tokens from index `from` on to out. */
void token_history_read(const token_history *h, int64_t from, int64_t n, int32_t *out);
/* True if all tokens are equal to ids [count]. */
bool token_history_equals(const token_history *h, const int32_t *ids);
/* True if both have the same tokens. */
bool token_history_same(const token_history *a, const token_history *b);
/* Return how many tokens the history and ids [n] have in common from the first on. */
int64_t token_history_common(const token_history *h, const int32_t *ids, int64_t n);
/* Make *out a copy of h, whose full chunks they share. STATUS_NOMEM: *out is empty. */
status token_history_copy(token_history *out, const token_history *h);
void token_history_fini(token_history *h);

#endif
