#include "engine/recipe/corpus_chat.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/json_text.h"

status corpus_chat_open(corpus_chat *out, const tokenizer *t, const json_t *config, error *err)
{
	const json_t *declared = json_object_get(config, "chat_template");
	char *text = declared ? json_text(declared, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;
	*out = (corpus_chat){.digest = text ? digest_bytes(text, strlen(text)) : 0};
	if (declared && !text)
		return error_settle(err, STATUS_NOMEM);
	free(text);
	status s = chat_template_open(&out->own, t, config, &out->problem);
	out->use = (conversation_template){out->own, &out->problem};
	return s == STATUS_NOMEM ? error_settle(err, s) : STATUS_OK;
}

void corpus_chat_close(corpus_chat *c)
{
	chat_template_free(c->own);
}
