/* token_cache.h - the tokens of a text as an immutable file.
 *
 *   block 0 │ block 1 │ … │ index │ footer
 *
 * A block is 2^18 tokens (fewer in the last one) of 2 or 4 bytes each. If the text has documents, two planes of one bit
 * per token follow: TOKEN_LAST and TOKEN_PROMPT. A token's offset is therefore computed from its number. The index has
 * for each block a checksum, the running hash of all tokens so far, and the count of each byte value in its text. The
 * footer has the counts, the caller's key and a checksum of itself and the index. Numbers are in the machine's byte
 * order.
 *
 * Tokens are read by pread(2) instead of a mapping. With a mapping, a failing disk or a truncated file causes SIGBUS
 * instead of an error, and touched pages count as the process's memory. A block is verified when its first token is
 * read.
 *
 * A writer belongs to one thread. A cache may be used by several and is reference-counted. While it is open,
 * cache_folder.h treats its file as in use. */
#ifndef ENGINE_TEXT_TOKEN_CACHE_H
#define ENGINE_TEXT_TOKEN_CACHE_H

#include "engine/text/tokenizer.h"

enum {
	TOKEN_LAST = 1,  /* last token of its document */
	TOKEN_PROMPT = 2 /* part of a prompt: given to the model, not to be predicted */
};

typedef struct token_writer token_writer;
typedef struct token_cache token_cache;

/* path: the new file, which must not exist; NULL: memory without a name. most: limit of the file's bytes; 0: none.
 * documents: flags will be given. t is borrowed for the life of the writer; NULL: the numbers are any 32 bits, not
 * tokens, and the size of the vocabulary is 0. STATUS_FULL (also over `most`) and STATUS_IO, as for all functions
 * below that write a file. */
status token_writer_new(token_writer **out, const char *path, int64_t most, uint64_t key, const tokenizer *t,
                        bool documents, error *err);
/* flags: [count], of TOKEN_LAST and TOKEN_PROMPT; NULL without documents. */
status token_writer_add(token_writer *w, const int32_t *ids, const unsigned char *flags, int64_t count, error *err);
/* Write the rest durably, and open the file. The writer stays the caller's. */
status token_writer_finish(token_writer *w, token_cache **out, error *err);
/* Unlinks an unfinished file. NULL is legal. */
void token_writer_free(token_writer *w);

/* Open a file and record its use (its modification time). STATUS_NOT_FOUND; STATUS_STORAGE if it is damaged, or has
 * another key or tokenizer size. */
status token_cache_open(token_cache **out, const char *path, uint64_t key, int32_t vocab, error *err);
token_cache *token_cache_share(token_cache *c);
void token_cache_free(token_cache *c); /* NULL is legal */

int64_t token_cache_tokens(const token_cache *c);
bool token_cache_has_documents(const token_cache *c);
/* Bytes of the file. */
int64_t token_cache_bytes(const token_cache *c);
/* Bytes of memory that it occupies: 0 for a file with a name. */
int64_t token_cache_memory(const token_cache *c);

/* Read tokens first … first + count - 1. flags may be NULL; zeros without documents. STATUS_STORAGE: they are damaged.
 * Any thread. */
status token_cache_read(const token_cache *c, int64_t first, int64_t count, int32_t *ids, unsigned char *flags,
                        error *err);
/* FNV-1a hash over the ids, as 32-bit words, of `count` tokens from `first` on. Constant time if first is 0. */
status token_cache_hash(const token_cache *c, int64_t first, int64_t count, uint64_t *out, error *err);
/* Add to counts the occurrences of each byte value in the text of the first `tokens` tokens. Constant time per
 * block. */
status token_cache_count_bytes(const token_cache *c, const tokenizer *t, int64_t tokens, int64_t counts[256],
                               error *err);

#define TOKEN_CACHE_HASH_BEGIN 0xcbf29ce484222325u
/* Continue a hash over some words. */
uint64_t token_cache_hash_words(uint64_t hash, const int32_t *words, int64_t n);

#endif
