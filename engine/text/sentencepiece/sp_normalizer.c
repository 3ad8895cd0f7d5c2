/* From each place on, the longest user-defined piece is taken as it is; else the longest text for which there is a rule
 * is replaced; else a character is taken as it is, and a byte that begins none becomes U+FFFD. */
#include "engine/text/sentencepiece/sp_normalizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

void sp_normalizer_init(sp_normalizer *n, const sp_model *m, const char *text, size_t bytes, bool track, bool continues,
                        size_t *budget)
{
	*n = (sp_normalizer){.model = m,
	                     .text = text,
	                     .bytes = bytes,
	                     .track = track,
	                     .continues = continues,
	                     .budget = budget,
	                     .after_space = m->remove_extra_whitespaces && !continues};
}

void sp_normalizer_fini(sp_normalizer *n)
{
	free(n->out);
	free(n->origin);
	n->out = NULL;
	n->origin = NULL;
}

/* --- the next piece of text --------------------------------------------------------------- */

typedef struct replaced {
	const char *text;
	size_t bytes, consumed;
} replaced;

static replaced next_prefix(const sp_normalizer *n)
{
	const char *text = n->text + n->at;
	size_t left = n->bytes - n->at;
	int32_t id;
	size_t length = trie_prefix(&n->model->user_defined, text, left, &id);
	if (length > 0)
		return (replaced){text, length, length};
	const charsmap_match rule = charsmap_longest(&n->model->rules, text, left);
	if (rule.length > 0)
		return (replaced){rule.made, rule.bytes, rule.length};
	if ((unsigned char)*text < 0x80)
		return (replaced){text, 1, 1};
	if (utf8_next((const unsigned char *)text, left, &length) == UTF8_WHOLE)
		return (replaced){text, length, length};
	return (replaced){"\xEF\xBF\xBD", 3, 1};
}

/* --- what comes out --------------------------------------------------------------------------- */

static status sp_normalizer_reserve(sp_normalizer *n, size_t more)
{
	size_t room = n->room ? n->room : 256;
	if (more > *n->budget)
		return STATUS_INVALID;
	if (n->count + more + 1 <= n->room)
		return STATUS_OK;
	while (room < n->count + more + 1)
		room *= 2;
	char *out = realloc(n->out, room);
	if (!out)
		return STATUS_NOMEM;
	n->out = out;
	if (n->track) {
		size_t *origin = realloc(n->origin, room * sizeof *origin);
		if (!origin)
			return STATUS_NOMEM;
		n->origin = origin;
	}
	n->room = room;
	return STATUS_OK;
}

/* Append bytes that come from n->at; there is room. */
static void sp_normalizer_append(sp_normalizer *n, const char *bytes, size_t count)
{
	memcpy(n->out + n->count, bytes, count);
	*n->budget -= count;
	for (size_t i = 0; n->track && i < count; i++)
		n->origin[n->count + i] = n->at;
	n->count += count;
}

static void append_space(sp_normalizer *n)
{
	bool escape = n->model->escape_whitespaces;
	sp_normalizer_append(n, escape ? SPACE_MARK : " ", escape ? SPACE_MARK_BYTES : 1);
}

static status append_replaced(sp_normalizer *n, replaced r)
{
	while (n->after_space && r.bytes > 0 && *r.text == ' ') {
		r.text++;
		r.bytes--;
	}
	if (r.bytes == 0)
		return STATUS_OK;
	TRY(sp_normalizer_reserve(n, r.bytes * SPACE_MARK_BYTES));
	n->last = n->count;
	for (size_t i = 0; i < r.bytes;) {
		size_t plain = i;
		while (plain < r.bytes && r.text[plain] != ' ')
			plain++;
		sp_normalizer_append(n, r.text + i, plain - i);
		if (plain < r.bytes)
			append_space(n);
		i = plain + (plain < r.bytes);
	}
	n->after_space = n->model->remove_extra_whitespaces && r.text[r.bytes - 1] == ' ';
	return STATUS_OK;
}

/* The length of out without the spaces at its end. */
static size_t without_spaces(const sp_normalizer *n)
{
	size_t space = n->model->escape_whitespaces ? SPACE_MARK_BYTES : 1, count = n->count;
	while (count >= space && memcmp(n->out + count - space, space == 1 ? " " : SPACE_MARK, space) == 0)
		count -= space;
	return count;
}

static status sp_normalizer_begin(sp_normalizer *n)
{
	if (n->model->remove_extra_whitespaces && !n->continues)
		while (n->at < n->bytes) {
			replaced r = next_prefix(n);
			if (r.bytes != 1 || *r.text != ' ')
				break;
			n->at += r.consumed;
		}
	n->started = true;
	if (n->at == n->bytes)
		return STATUS_OK;
	TRY(sp_normalizer_reserve(n, SPACE_MARK_BYTES));
	if (n->model->dummy_prefix && !n->model->whitespace_as_suffix && !n->continues)
		append_space(n);
	return STATUS_OK;
}

static status end(sp_normalizer *n, bool any)
{
	n->ended = true;
	if (n->model->remove_extra_whitespaces && n->count > 0) {
		size_t count = without_spaces(n);
		if (n->track && count < n->count)
			n->at = n->origin[count];
		n->count = count;
	}
	TRY(sp_normalizer_reserve(n, SPACE_MARK_BYTES));
	if (any && n->model->dummy_prefix && n->model->whitespace_as_suffix)
		append_space(n);
	if (n->track)
		n->origin[n->count] = n->at;
	n->settled = n->count;
	return STATUS_OK;
}

status sp_normalizer_fill(sp_normalizer *n, size_t goal)
{
	bool any = n->started;
	if (!n->started) {
		TRY(sp_normalizer_begin(n));
		any = n->at < n->bytes;
	}
	while (n->at < n->bytes && n->count < goal) {
		replaced r = next_prefix(n);
		TRY(append_replaced(n, r));
		n->at += r.consumed;
	}
	if (n->at == n->bytes && !n->ended)
		return end(n, any);
	if (!n->ended) {
		n->settled = n->model->remove_extra_whitespaces ? without_spaces(n) : n->count;
		n->settled = n->settled < n->last ? n->settled : n->last;
	}
	return STATUS_OK;
}

void sp_normalizer_drop(sp_normalizer *n, size_t bytes)
{
	memmove(n->out, n->out + bytes, n->count - bytes);
	if (n->track)
		memmove(n->origin, n->origin + bytes, (n->count - bytes + n->ended) * sizeof *n->origin);
	n->count -= bytes;
	n->settled -= bytes;
	n->last = n->last > bytes ? n->last - bytes : 0;
}
