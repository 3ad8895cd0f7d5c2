/* pattern.h - regular expressions of a tokenizer.json, which are in Oniguruma's syntax, matched by PCRE2.
 *
 * Both are backtracking matchers with Unicode properties and nearly the same syntax. What differs is translated (white
 * space, words and decimal digits by their Unicode properties; scripts as scripts, not as script extensions), and what
 * would mean something else in PCRE2 is refused by name. A pattern is immutable and thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_PATTERN_H
#define ENGINE_TEXT_HUGGINGFACE_PATTERN_H

#include <stddef.h>

#include "engine/base/error.h"
#include "engine/text/tokenizer.h"

typedef struct pattern pattern;
/* literal: the text itself. path names the pattern in messages. STATUS_UNSUPPORTED, STATUS_INVALID. */
status pattern_new(pattern **out, const char *text, size_t bytes, bool literal, const char *path, error *err);
/* A pattern of our own in PCRE2's syntax. */
status pattern_own(pattern **out, const char *text, error *err);
/* The "pattern" of a part of a tokenizer.json: {"String": …} or {"Regex": …}. */
status pattern_read(pattern **out, const json_t *part, const char *path, error *err);
void pattern_free(pattern *p);

/* State that a thread needs to search the parts of one text. Zero-initialise. */
typedef struct pattern_search {
	void *data, *context, *stack;
	int64_t spent;  /* nanoseconds inside the matcher */
	size_t longest; /* bytes of the longest part that was searched */
} pattern_search;
void pattern_search_fini(pattern_search *s);
/* The leftmost match that begins at `from` or later, in well-formed UTF-8; *found: there is one. Text before `from` is
 * seen by assertions. STATUS_NOMEM; STATUS_TOO_LARGE: the pattern needs too many steps on this text, or
 * all searches of `s` together took too long. */
status pattern_find(const pattern *p, pattern_search *s, const char *text, size_t bytes, size_t from, bool *found,
                    byte_range *match);

/* All matches of a text in order. An empty match directly after another match does not count. Zero except for the first
 * three members. */
typedef struct pattern_walk {
	const pattern *pattern;
	const char *text;
	size_t bytes;
	size_t from, last; /* last: end of the match before */
	bool any;          /* there was one */
} pattern_walk;
status pattern_next(pattern_walk *w, pattern_search *s, bool *found, byte_range *match);

/* Translate a pattern in Oniguruma's syntax to PCRE2's. *out is malloc'ed. STATUS_UNSUPPORTED names what has no equal. */
status onig_translate(char **out, const char *text, size_t bytes, const char *path, error *err);

#endif
