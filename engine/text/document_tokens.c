#include "engine/text/document_tokens.h"

#include <stdlib.h>

#include "engine/text/documents.h"

static status append_token(token_list *list, int32_t id, error *err)
{
	int32_t *ids = realloc(list->ids, (list->count + 1) * sizeof *ids);
	if (!ids) {
		token_list_fini(list);
		return error_no_memory(err, "the tokens of the text");
	}
	ids[list->count++] = id;
	list->ids = ids;
	return STATUS_OK;
}

status document_tokens_encode(document_tokens *d, const char *text, size_t bytes, const encode_options *how, int kind,
                              token_list *out, error *err)
{
	const int32_t end = tokenizer_end(d->t);
	encode_options alone = how ? *how : (encode_options){.begin = !d->started};
	alone.threads = 1;
	TRY(tokenizer_encode(d->t, text, bytes, &alone, out, err));
	if (out->count > 0) {
		d->started = true;
		d->last = out->ids[out->count - 1];
	}
	if (!(kind & DOCUMENT_LAST))
		return STATUS_OK;
	const bool ended = d->started && tokenizer_ends(d->t, d->last); /* by a template */
	d->started = false;
	return end == TOKEN_NONE || ended ? STATUS_OK : append_token(out, end, err);
}
