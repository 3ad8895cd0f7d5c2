#include "engine/daemon/generation/mask_text.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

mask_name mask_text_name(const model_entry *m)
{
	mask_name name = {.id = catalog_mask(m)};
	if (name.id == TOKEN_NONE)
		return name;
	name.bytes = tokenizer_token_name(m->tokenizer, name.id, name.text, sizeof name.text);
	name.known = name.bytes > 0 && name.bytes <= sizeof name.text;
	if (!name.known) {
		name.bytes = strlen(MASK_TEXT_NAME);
		memcpy(name.text, MASK_TEXT_NAME, name.bytes);
	}
	return name;
}

bool mask_text_is_mask(const mask_name *name, const token_list *tokens, size_t i)
{
	return tokens->ids[i] == name->id && tokens->spans[i].bytes >= name->bytes;
}

/* Find the places of the name in a text; *out is from malloc. */
static status find_names(const mask_name *name, const char *text, size_t bytes, byte_range **out, size_t *count)
{
	*out = memory_new(bytes / name->bytes + 1, sizeof **out);
	*count = 0;
	if (!*out)
		return STATUS_NOMEM;
	for (const char *at = text; (at = memmem(at, (size_t)(text + bytes - at), name->text, name->bytes));
	     at += name->bytes)
		(*out)[(*count)++] = (byte_range){(size_t)(at - text), name->bytes};
	return STATUS_OK;
}

/* Append tokens; spans of text begin at `base`. */
static status mask_text_append(token_list *out, const token_list *more, size_t base)
{
	const size_t n = out->count + more->count;
	int32_t *ids = realloc(out->ids, (n + 1) * sizeof *ids);
	out->ids = ids ? ids : out->ids;
	byte_range *spans = realloc(out->spans, (n + 1) * sizeof *spans);
	out->spans = spans ? spans : out->spans;
	if (!ids || !spans)
		return STATUS_NOMEM;
	for (size_t i = 0; i < more->count; i++) {
		ids[out->count] = more->ids[i];
		spans[out->count++] = (byte_range){base + more->spans[i].first, more->spans[i].bytes};
	}
	return STATUS_OK;
}

/* Append the text between bytes `from` and `to`. */
static status append_text(token_list *out, const model_entry *m, const char *text, size_t from, size_t to,
                          const encode_options *o, error *err)
{
	token_list more = {0};
	status s = STATUS_OK;
	if (to > from || o->begin || o->end)
		s = tokenizer_encode(m->tokenizer, text + from, to - from, o, &more, err);
	if (s == STATUS_OK)
		s = mask_text_append(out, &more, from);
	token_list_fini(&more);
	return s;
}

/* Encode with a tokenizer that does not know the name. */
static status encode_apart(const model_entry *m, const mask_name *name, const char *text, size_t bytes,
                           const encode_options *o, const byte_range *names, size_t n, token_list *out, error *err)
{
	size_t at = 0;
	*out = (token_list){0};
	for (size_t k = 0; k <= n; k++) {
		const encode_options how = {
		    .begin = o->begin && k == 0, .end = o->end && k == n, .continues = k > 0, .spans = true};
		TRY(append_text(out, m, text, at, k < n ? names[k].first : bytes, &how, err));
		if (k == n)
			break;
		int32_t id = name->id;
		byte_range place = names[k];
		TRY(mask_text_append(out, &(token_list){&id, &place, 1}, 0));
		at = names[k].first + names[k].bytes;
	}
	return STATUS_OK;
}

/* True if tokens of words begin with the space before them. */
static status joins_spaces(const tokenizer *t, bool *out, error *err)
{
	size_t count[2];
	for (int i = 0; i < 2; i++) {
		token_list list;
		TRY(tokenizer_encode(t, i ? "a" : " a", i ? 1 : 2, &(encode_options){.continues = true}, &list, err));
		count[i] = list.count;
		token_list_fini(&list);
	}
	*out = count[0] == count[1];
	return STATUS_OK;
}

/* Make a token that is only a space part of the mask that follows it. */
static void join_spaces(const mask_name *name, const char *text, token_list *tokens)
{
	size_t n = 0;
	for (size_t i = 0; i < tokens->count; i++) {
		const byte_range *space = n > 0 ? &tokens->spans[n - 1] : NULL, *own = &tokens->spans[i];
		byte_range place = *own;
		if (space && mask_text_is_mask(name, tokens, i) && space->bytes == 1 && text[space->first] == ' ' &&
		    space->first + 1 == own->first) {
			place = (byte_range){space->first, own->bytes + 1};
			n--;
		}
		tokens->ids[n] = tokens->ids[i];
		tokens->spans[n++] = place;
	}
	tokens->count = n;
}

status mask_text_encode(const model_entry *m, const mask_name *name, const char *text, size_t bytes,
                        const encode_options *o, token_list *out, error *err)
{
	byte_range *names = NULL;
	size_t n = 0;
	bool joins = false;
	*out = (token_list){0};
	status s = name->id == TOKEN_NONE ? STATUS_OK : find_names(name, text, bytes, &names, &n);
	if (s == STATUS_OK && n > 0)
		s = joins_spaces(m->tokenizer, &joins, err);
	const encode_options known = {
	    .trusted = names, .n_trusted = n, .begin = o->begin, .end = o->end, .spans = true};
	if (s == STATUS_OK)
		s = n == 0 || name->known ? tokenizer_encode(m->tokenizer, text, bytes, &known, out, err)
		                          : encode_apart(m, name, text, bytes, o, names, n, out, err);
	if (s != STATUS_OK)
		token_list_fini(out);
	else if (joins)
		join_spaces(name, text, out);
	free(names);
	return s;
}

status mask_text_read(const model_entry *m, const char *text, size_t bytes, encode_options o, token_list *out,
                      error *err)
{
	const mask_name name = mask_text_name(m);
	TRY(mask_text_encode(m, &name, text, bytes, &o, out, err));
	free(out->spans);
	out->spans = NULL;
	return STATUS_OK;
}
