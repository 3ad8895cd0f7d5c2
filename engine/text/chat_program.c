/* The program is written again in one spelling, which is hashed. */
#include "engine/text/chat_program.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/memory.h"

static const char white[] = " \t\n\r\f\v";

typedef enum kind { START, WORD, LITERAL, PLUS, OTHER } kind;

typedef struct rewriting {
	const char *at;
	char *out;
	size_t n;
	kind last, before; /* kinds of the latest two tokens in a tag */
	bool line_starts;  /* nothing but dropped text is before `at` on its line */
} rewriting;

static bool chat_program_is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
	       (unsigned char)c >= 0x80;
}

static void chat_program_put(rewriting *r, const char *text, size_t bytes)
{
	memcpy(r->out + r->n, text, bytes);
	r->n += bytes;
}

static void put_token(rewriting *r, kind k)
{
	r->before = r->last;
	r->last = k;
}

/* --- within a tag ------------------------------------------------------------------------------------------- */

/* The contents of a literal, in which only quotes and backslashes are escaped. */
static void put_contents(rewriting *r, char quote)
{
	for (; *r->at && *r->at != quote; r->at++) {
		char c = *r->at;
		if (c == '\\' && r->at[1]) {
			c = *++r->at;
			c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
			if (c != '\n' && c != '\t' && c != '\r' && c != '\'' && c != '"' && c != '\\')
				chat_program_put(r, "\\", 1); /* an escape that is kept as it is */
		}
		if (c == '\'' || c == '\\')
			chat_program_put(r, "\\", 1);
		chat_program_put(r, &c, 1);
	}
	r->at += *r->at == quote;
}

static void put_literal(rewriting *r)
{
	const char quote = *r->at++;
	const bool joins = r->last == PLUS && r->before == LITERAL;
	const size_t start = r->n;
	if (joins)
		r->n -= 2; /* '+ */
	else
		chat_program_put(r, "'", 1);
	const size_t first = r->n;
	put_contents(r, quote);
	/* Characters directly after a literal apply to it alone. */
	const char *next = r->at + strspn(r->at, white);
	if (joins && *next && strchr("|.[(*/%", *next)) {
		memmove(r->out + start + 1, r->out + first, r->n - first);
		memcpy(r->out + start - 2, "'+'", 3);
		r->n += start + 1 - first;
	}
	chat_program_put(r, "'", 1);
	put_token(r, LITERAL);
}

/* A name after a dot, as a subscript unless it is called. */
static bool put_member(rewriting *r)
{
	const char *name = r->at + 1;
	size_t bytes = 0;
	while (chat_program_is_word(name[bytes]))
		bytes++;
	const char *next = name + bytes + strspn(name + bytes, white);
	if (r->last == START || bytes == 0 || (name[0] >= '0' && name[0] <= '9') || *next == '(')
		return false;
	chat_program_put(r, "['", 2);
	chat_program_put(r, name, bytes);
	chat_program_put(r, "']", 2);
	r->at = name + bytes;
	put_token(r, OTHER);
	return true;
}

static void put_word(rewriting *r)
{
	if (r->last == WORD)
		chat_program_put(r, " ", 1);
	size_t bytes = 0;
	while (chat_program_is_word(r->at[bytes]))
		bytes++;
	chat_program_put(r, r->at, bytes);
	r->at += bytes;
	put_token(r, WORD);
}

/* Move past the end of a tag, and what is dropped after it. */
static void end_tag(rewriting *r, bool block)
{
	const bool drops = *r->at == '-';
	r->at += *r->at == '-' || *r->at == '+' ? 3 : 2;
	const char *next = r->at;
	if (drops)
		next += strspn(next, white);
	else if (block && *next == '\n' && r->at[-3] != '+')
		next++;
	r->line_starts = next > r->at && next[-1] == '\n';
	r->at = next;
}

static bool ends(const char *at, char close)
{
	at += *at == '-' || *at == '+';
	return at[0] == close && at[1] == '}';
}

static void rewrite_tag(rewriting *r, char close)
{
	r->last = r->before = START;
	while (*r->at && !ends(r->at, close)) {
		if (strchr(white, *r->at))
			r->at++;
		else if (*r->at == '\'' || *r->at == '"')
			put_literal(r);
		else if (chat_program_is_word(*r->at))
			put_word(r);
		else if (*r->at != '.' || !put_member(r)) {
			put_token(r, *r->at == '+' ? PLUS : OTHER);
			chat_program_put(r, r->at++, 1);
		}
	}
	chat_program_put(r, (char[]){close, '}'}, 2);
	if (*r->at)
		end_tag(r, close == '%');
}

/* --- between tags ---------------------------------------------------------------------------------------------- */

/* Text up to a tag, without what is dropped before the tag. */
static void put_text(rewriting *r, const char *tag)
{
	size_t bytes = (size_t)(tag - r->at);
	const bool block = tag[0] && tag[1] != '{';
	size_t line = bytes;
	while (line > 0 && r->at[line - 1] != '\n')
		line--;
	if (tag[0] && tag[2] == '-') {
		while (bytes > 0 && strchr(white, r->at[bytes - 1]))
			bytes--;
	} else if (block && tag[2] != '+' && (line > 0 || r->line_starts) &&
	           line + strspn(r->at + line, white) >= bytes) {
		bytes = line;
	} else if (!tag[0]) {
		bytes -= bytes > 0 && r->at[bytes - 1] == '\n'; /* one line end at the end of a program */
	}
	chat_program_put(r, r->at, bytes);
	r->at = tag;
}

static void rewrite(rewriting *r)
{
	while (*r->at) {
		const char *tag = r->at;
		while (*tag && (tag[0] != '{' || !tag[1] || !strchr("{%#", tag[1])))
			tag++;
		put_text(r, tag);
		if (!*tag)
			return;
		const char close = tag[1] == '{' ? '}' : tag[1];
		r->at = tag + 2;
		r->at += *r->at == '-' || *r->at == '+';
		if (close == '#') {
			while (*r->at && !ends(r->at, '#'))
				r->at++;
			if (*r->at)
				end_tag(r, true);
			continue;
		}
		chat_program_put(r, tag, 2);
		rewrite_tag(r, close);
	}
}

status chat_program_digest(const char *program, uint64_t *out)
{
	/* A name after a dot grows by three bytes, an escape or a separator by one. */
	const size_t bytes = strlen(program);
	char *copy = memory_new(bytes + 4, 1);
	rewriting r = {.at = copy, .out = memory_new(4 * bytes + 16, 1), .line_starts = true};
	if (copy && r.out) {
		size_t n = 0;
		for (size_t i = 0; i < bytes; i++) /* all line ends are the same to Jinja */
			if (program[i] != '\r' || program[i + 1] != '\n')
				copy[n++] = program[i] == '\r' ? '\n' : program[i];
		rewrite(&r);
		*out = digest_bytes(r.out, r.n);
	}
	const status s = copy && r.out ? STATUS_OK : STATUS_NOMEM;
	free(copy);
	free(r.out);
	return s;
}
