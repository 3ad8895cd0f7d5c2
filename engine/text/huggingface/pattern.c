#include "engine/text/huggingface/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include <time.h>

#include "engine/base/memory.h"
#include "engine/text/huggingface/pieces.h"
#include "engine/text/huggingface/reading.h"

enum { JIT_STACK_BYTES = 64 << 10, JIT_STACK_MAX = 8 << 20 };

struct pattern {
	pcre2_code *code;
	bool jit;
};

/* NULL: *code, *at say why. */
static pattern *pattern_compile(const char *text, size_t bytes, uint32_t options, int *code, size_t *at)
{
	pattern *p = memory_new(1, sizeof *p);
	*code = PCRE2_ERROR_NOMEMORY;
	*at = 0;
	if (!p)
		return NULL;
	p->code = pcre2_compile((PCRE2_SPTR)text, bytes, options | PCRE2_UTF | PCRE2_USE_OFFSET_LIMIT, code, at, NULL);
	if (!p->code) {
		free(p);
		return NULL;
	}
	p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
	return p;
}

static status pattern_explain(int code, size_t at, const char *path, error *err)
{
	char reason[160];
	if (code == PCRE2_ERROR_NOMEMORY)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
	return reading_refuse(err, path, "is a pattern that is not supported: %s, near byte %zu", reason, at);
}

enum { SYNTAX = PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C };

status pattern_new(pattern **out, const char *text, size_t bytes, bool literal, const char *path, error *err)
{
	int code;
	size_t at;
	*out = NULL;
	if (literal) {
		*out = pattern_compile(text, bytes, PCRE2_LITERAL, &code, &at);
		return *out ? STATUS_OK : pattern_explain(code, at, path, err);
	}
	char *translated;
	TRY(onig_translate(&translated, text, bytes, path, err));
	*out = pattern_compile(translated, strlen(translated), SYNTAX, &code, &at);
	status s = *out ? STATUS_OK : pattern_explain(code, at, path, err);
	free(translated);
	return s;
}

status pattern_own(pattern **out, const char *text, error *err)
{
	int code;
	size_t at;
	*out = pattern_compile(text, strlen(text), SYNTAX, &code, &at);
	return *out ? STATUS_OK : pattern_explain(code, at, "pattern", err);
}

status pattern_read(pattern **out, const json_t *part, const char *path, error *err)
{
	const json_t *of = json_object_get(part, "pattern");
	const json_t *literal = json_object_get(of, "String"), *regex = json_object_get(of, "Regex");
	const json_t *text = literal ? literal : regex;
	if (!json_is_string(text) || json_object_size(of) != 1)
		return reading_refuse(err, path, "needs a \"pattern\" with a \"String\" or \"Regex\"");
	return pattern_new(out, json_string_value(text), json_string_length(text), literal, path, err);
}

void pattern_free(pattern *p)
{
	if (p)
		pcre2_code_free(p->code);
	free(p);
}

/* --- searching --------------------------------------------------------------------------------- */

/* Compiled patterns run on 32 KB of the thread's own stack. Few texts need more, and making a larger one takes longer
 * than encoding a line. */
static status search_enlarge(pattern_search *s)
{
	if (!s->stack)
		s->stack = pcre2_jit_stack_create(JIT_STACK_BYTES, JIT_STACK_MAX, NULL);
	if (!s->stack)
		return STATUS_NOMEM;
	pcre2_jit_stack_assign(s->context, NULL, s->stack);
	return STATUS_OK;
}

void pattern_search_fini(pattern_search *s)
{
	pcre2_match_data_free(s->data);
	pcre2_match_context_free(s->context);
	pcre2_jit_stack_free(s->stack);
	*s = (pattern_search){0};
}

/* PCRE2 bounds the steps from one start, and a text has as many starts as characters. A pattern that reads on to the
 * text's end from each of them takes quadratic time. */
enum { NS_PER_TEXT = 1000000000, NS_PER_BYTE = 1000 };
/* A process that is stopped inside a search is charged no more than this. */
enum { NS_PER_SEARCH = NS_PER_TEXT / 2 };
/* The time is looked at after this number of starts. */
enum { STARTS = 1024 };

/* The coarse clock takes some nanoseconds to read. Its ticks of milliseconds hit short searches in proportion to their
 * time, so the sum is right. */
static int64_t search_clock(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Matches that begin at `from` to `last`. -> what PCRE2 returns. */
static int search_run(const pattern *p, pattern_search *s, const char *text, size_t bytes, size_t from, size_t last)
{
	pcre2_set_offset_limit(s->context, last);
	const PCRE2_SPTR subject = (PCRE2_SPTR)text;
	int rc = PCRE2_ERROR_JIT_STACKLIMIT;
	if (p->jit)
		rc = pcre2_jit_match(p->code, subject, bytes, from, 0, s->data, s->context);
	if (p->jit && rc == PCRE2_ERROR_JIT_STACKLIMIT && !s->stack) {
		if (search_enlarge(s) != STATUS_OK)
			return PCRE2_ERROR_NOMEMORY;
		rc = pcre2_jit_match(p->code, subject, bytes, from, 0, s->data, s->context);
	}
	if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
		rc = pcre2_match(p->code, subject, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->data, s->context);
	return rc;
}

status pattern_find(const pattern *p, pattern_search *s, const char *text, size_t bytes, size_t from, bool *found,
                    byte_range *match)
{
	*found = false;
	if (!s->data)
		s->data = pcre2_match_data_create(1, NULL);
	if (!s->context)
		s->context = pcre2_match_context_create(NULL);
	if (!(s->data && s->context))
		return STATUS_NOMEM;
	if (bytes > s->longest)
		s->longest = bytes;
	int rc;
	size_t last;
	do {
		if (s->spent > NS_PER_TEXT + (int64_t)s->longest * NS_PER_BYTE)
			return STATUS_TOO_LARGE;
		last = bytes - from > STARTS ? from + STARTS : bytes;
		const int64_t start = search_clock();
		rc = search_run(p, s, text, bytes, from, last);
		const int64_t taken = search_clock() - start;
		s->spent += taken < NS_PER_SEARCH ? taken : NS_PER_SEARCH;
		for (from = last + 1; from < bytes && ((unsigned char)text[from] & 0xC0) == 0x80;)
			from++;
	} while (rc == PCRE2_ERROR_NOMATCH && last < bytes && from <= bytes);
	*found = rc >= 0;
	if (*found) {
		const size_t *ends = pcre2_get_ovector_pointer(s->data);
		*match = (byte_range){ends[0], ends[1] - ends[0]};
		return STATUS_OK;
	}
	if (rc == PCRE2_ERROR_NOMATCH)
		return STATUS_OK;
	return rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT ? STATUS_NOMEM : STATUS_TOO_LARGE;
}

status pattern_next(pattern_walk *w, pattern_search *s, bool *found, byte_range *match)
{
	*found = false;
	while (w->from <= w->bytes) {
		TRY(pattern_find(w->pattern, s, w->text, w->bytes, w->from, found, match));
		if (!*found)
			return STATUS_OK;
		if (match->bytes > 0 || !w->any || match->first != w->last) {
			w->from = w->last = match->first + match->bytes;
			w->any = true;
			return STATUS_OK;
		}
		size_t character = 1;
		if (w->from < w->bytes)
			pieces_first(w->text + w->from, &character);
		w->from += character;
		*found = false;
	}
	return STATUS_OK;
}
