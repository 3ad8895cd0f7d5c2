/* The lexer's token buffer starts with LEXER_BYTES and doubles, and grows nowhere else than where a byte of the text is
 * saved. So a parse begins with a spare block that would hold the longest token, and the text is handed over byte by
 * byte. The first allocation that fails gets the spare: if it was the token buffer's growth, nothing was lost. No
 * further byte is handed over, so the token buffer cannot want to grow again, and the parse ends. Every other
 * allocation of the parser is checked by it.
 *
 * A reserve for everything was rejected: no size is enough for every text, and what is built from it has to be refused
 * all the same. Leaving the parser with longjmp was rejected: its blocks would have to be known. */
#include "proto/json_memory.h"

#include <stdlib.h>
#include <string.h>

enum { LEXER_BYTES = 16 };

typedef struct json_memory {
	bool failed;
	void *spare; /* while a text is parsed */
	size_t spare_bytes;
} json_memory;

static _Thread_local json_memory memory;
static json_malloc_t base_allocate = malloc; /* set once, before there are threads */
static json_free_t base_release = free;

static void *json_memory_allocate(size_t bytes)
{
	void *data = base_allocate(bytes);
	if (data)
		return data;
	memory.failed = true;
	if (!memory.spare || bytes > memory.spare_bytes)
		return NULL;
	data = memory.spare;
	memory.spare = NULL;
	return data;
}

void json_memory_install(json_malloc_t allocate, json_free_t release)
{
	base_allocate = allocate;
	base_release = release;
	json_set_alloc_funcs(json_memory_allocate, release);
}

bool json_memory_failed(void)
{
	return memory.failed;
}

void json_memory_forget(void)
{
	memory.failed = false;
}

/* --- parsing ---------------------------------------------------------------------------- */

/* The longest run of bytes that can be one token: a string, or anything between two separators. */
static size_t json_memory_longest_token(const char *text, size_t bytes)
{
	size_t longest = 0, first = 0;
	bool string = false;
	for (size_t i = 0; i < bytes; i++) {
		char c = text[i];
		if (string && c == '\\') {
			i++;
			continue;
		}
		if (c == '"')
			string = !string;
		else if (string || !strchr(" \t\r\n,:[]{}", c) || c == '\0')
			continue;
		/* A quote belongs to its string. */
		size_t run = i + 1 - first;
		longest = run > longest ? run : longest;
		first = c == '"' && string ? i : i + 1;
	}
	return bytes - first > longest ? bytes - first : longest;
}

typedef struct json_memory_text {
	const char *at, *end;
} json_memory_text;

static size_t json_memory_next(void *out, size_t room, void *context)
{
	json_memory_text *text = context;
	if (room == 0 || memory.failed || text->at == text->end)
		return 0;
	*(char *)out = *text->at++;
	return 1;
}

json_t *json_memory_parse(const char *text, size_t bytes, size_t flags, json_error_t *error)
{
	memory.failed = false;
	size_t token = json_memory_longest_token(text, bytes);
	/* The growth of the buffer that holds the token, its first byte and its end: at most twice that. */
	memory.spare_bytes = token < LEXER_BYTES - 1 ? 0 : 2 * (token + 2);
	memory.spare = memory.spare_bytes ? base_allocate(memory.spare_bytes) : NULL;
	memory.failed = memory.spare_bytes && !memory.spare;
	json_memory_text from = {text, text + bytes};
	json_t *json = memory.failed ? NULL : json_load_callback(json_memory_next, &from, flags, error);
	if (memory.spare)
		base_release(memory.spare);
	memory.spare = NULL;
	if (memory.failed) {
		json_decref(json);
		json = NULL;
		if (error)
			*error = (json_error_t){.line = -1, .column = -1, .text = "out of memory"};
	}
	return json;
}

/* --- printing ---------------------------------------------------------------------------- */

char *json_memory_print(const json_t *document, size_t flags)
{
	char *text = document && !memory.failed ? json_dumps(document, flags) : NULL;
	if (text && !memory.failed)
		return text;
	memory.failed = true;
	if (text)
		base_release(text);
	return NULL;
}
