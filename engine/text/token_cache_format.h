/* token_cache_format.h - the file layout of a token cache, shared by its writer and reader. Private to engine/text. */
#ifndef ENGINE_TEXT_TOKEN_CACHE_FORMAT_H
#define ENGINE_TEXT_TOKEN_CACHE_FORMAT_H

#include "engine/text/token_cache.h"

enum { TOKEN_BLOCK = 1 << 18, TOKEN_CACHE_VERSION = 1 };

typedef struct token_block {
	uint64_t digest; /* digest of its bytes in the file */
	uint64_t hash;   /* hash of all tokens up to its end */
	uint32_t bytes[256];
} token_block;

typedef struct token_footer {
	char magic[8];
	uint32_t version, width, documents, vocab;
	uint64_t tokens, key;
	uint64_t index_digest;
	uint64_t digest; /* digest of the footer up to here */
} token_footer;

#define TOKEN_CACHE_MAGIC "ADDTOKEN"

/* Bytes of a block of `count` tokens in the file. */
static inline size_t token_block_bytes(const token_footer *f, int64_t count)
{
	size_t plane = ((size_t)count + 7) / 8;
	return (size_t)count * f->width + (f->documents ? 2 * plane : 0);
}

/* Tokens of block `index`, and number of blocks. */
static inline int64_t token_block_count(const token_footer *f, int64_t index)
{
	int64_t left = (int64_t)f->tokens - index * TOKEN_BLOCK;
	return left < TOKEN_BLOCK ? left : TOKEN_BLOCK;
}

static inline int64_t token_block_total(const token_footer *f)
{
	return ((int64_t)f->tokens + TOKEN_BLOCK - 1) / TOKEN_BLOCK;
}

/* Add the bytes of `n` occurrences of a token. */
void token_cache_count_token(const tokenizer *t, int32_t id, int64_t n, int64_t counts[256]);
/* Make a cache from an open file, which is taken over, even on failure. name is for messages. memory: the file has no
 * other name. */
status token_cache_adopt(token_cache **out, int fd, const char *name, bool memory, uint64_t key, int32_t vocab,
                         error *err);

#endif
