#include "engine/recipe/job_preview.h"

#include <string.h>

#include "engine/train/preview.h"

/* Append a text, each NUL of it as U+FFFD, since the ledger's JSON has no NUL. False: there is no room. */
static bool append_text(char *out, size_t size, size_t *used, const char *text, size_t bytes)
{
	size_t at = *used;
	for (size_t i = 0; i < bytes; i++) {
		const char *part = text[i] ? text + i : "\xef\xbf\xbd";
		size_t n = text[i] ? 1 : 3;
		if (at + n > size)
			return false;
		memcpy(out + at, part, n);
		at += n;
	}
	*used = at;
	return true;
}

/* As much of the tokens' text as a preview has room for; NULL when out of memory. begun: other text is before it. */
static json_t *text_of(const tokenizer *t, const int32_t *ids, int n, bool started)
{
	char text[TEXT_STREAM_ROOM], all[(PREVIEW_PROMPT + PREVIEW_TOKENS) * 8];
	size_t used = 0;
	text_stream stream = {.started = started};
	for (int i = 0; i <= n; i++) {
		size_t m = text_stream_token(&stream, t, i < n ? ids[i] : TOKEN_NONE, i == n, text);
		if (!append_text(all, sizeof all, &used, text, m))
			break;
	}
	return json_stringn(all, used);
}

json_t *job_preview(const trainer *t, const tokenizer *words)
{
	int prompt, count;
	const int32_t *ids = trainer_preview(t, &prompt, &count);
	return count > 0 ? json_pack("{s:o, s:o}", "prompt", text_of(words, ids, prompt, false), "text",
	                             text_of(words, ids + prompt, count - prompt, true))
	                 : NULL;
}
