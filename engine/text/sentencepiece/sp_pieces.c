/* Words and characters are cut here; unigram and BPE have files of their own. */
#include "engine/text/sentencepiece/sp_pieces.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

void sp_pieces_fini(sp_pieces *p)
{
	free(p->cuts);
	free(p->scratch);
	*p = (sp_pieces){0};
}

status sp_pieces_add(sp_pieces *p, size_t bytes, int32_t id)
{
	if (!MEMORY_ROOM(p->cuts, p->room, p->count + 1))
		return STATUS_NOMEM;
	p->cuts[p->count++] = (sp_cut){bytes, id};
	return STATUS_OK;
}

void *sp_pieces_scratch(sp_pieces *p, size_t bytes)
{
	if (bytes > p->scratch_bytes) {
		free(p->scratch);
		p->scratch = malloc(bytes);
		p->scratch_bytes = p->scratch ? bytes : 0;
	}
	return p->scratch;
}

static status add_text(sp_pieces *p, const char *text, size_t bytes)
{
	int32_t id = trie_find(&p->model->vocabulary, text, bytes);
	return sp_pieces_add(p, bytes, id < 0 ? p->model->unknown : id);
}

/* A word begins with each mark of a space. */
static status cut_words(sp_pieces *p, const char *text, size_t bytes, bool last)
{
	size_t begin = 0;
	for (size_t at = 1; at < bytes; at++) {
		if (bytes - at < SPACE_MARK_BYTES || memcmp(text + at, SPACE_MARK, SPACE_MARK_BYTES) != 0)
			continue;
		TRY(add_text(p, text + begin, at - begin));
		begin = at;
	}
	if (begin < bytes && (last || (begin == 0 && bytes > SP_RUN_MAX)))
		return add_text(p, text + begin, bytes - begin);
	return STATUS_OK;
}

static status cut_characters(sp_pieces *p, const char *text, size_t bytes, bool last)
{
	size_t n;
	for (size_t at = 0; at < bytes && (last || bytes - at >= p->model->longest); at += n) {
		int32_t id;
		n = trie_prefix(&p->model->user_defined, text + at, bytes - at, &id);
		if (n == 0)
			n = sp_model_character((unsigned char)text[at], bytes - at);
		TRY(add_text(p, text + at, n));
	}
	return STATUS_OK;
}

status sp_pieces_cut(sp_pieces *p, const char *text, size_t bytes, bool last)
{
	static status (*const cut[])(sp_pieces *, const char *, size_t, bool) = {
	    [SP_UNIGRAM] = sp_unigram_cut, [SP_BPE] = sp_bpe_cut, [SP_WORD] = cut_words, [SP_CHAR] = cut_characters};
	p->count = 0;
	return bytes == 0 ? STATUS_OK : cut[p->model->algorithm](p, text, bytes, last);
}
