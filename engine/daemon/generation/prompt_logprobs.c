#include "engine/daemon/generation/prompt_logprobs.h"

#include <stdio.h>

#include "engine/daemon/generation/tokens.h"

static bool prompt_logprobs_add(json_t *object, const tokenizer *t, token_logprob p)
{
	enum { LEAST = -9999 }; /* vLLM's value for minus infinity */
	char id[16];
	snprintf(id, sizeof id, "%d", (int)p.token);
	return json_object_set_new(object, id,
	                           json_pack("{s:f, s:i, s:o}", "logprob",
	                                     p.logprob > LEAST ? (double)p.logprob : LEAST, "rank", (int)p.rank,
	                                     "decoded_token", tokens_name(t, p.token))) == 0;
}

json_t *prompt_logprobs_list(const tokenizer *t, const generation_event *e, int n)
{
	json_t *list = json_array();
	bool whole = list;
	for (int i = 0; whole && i < e->n_tokens; i++) {
		json_t *one = json_object();
		const token_logprob *top = e->top + (size_t)i * (size_t)e->n_top;
		whole = one && prompt_logprobs_add(one, t, e->logprobs[i]);
		for (int j = 0; whole && j < n && j < e->n_top && top[j].token >= 0; j++)
			whole = top[j].token == e->logprobs[i].token || prompt_logprobs_add(one, t, top[j]);
		whole = json_array_append_new(list, one) == 0 && whole;
	}
	if (whole)
		return list;
	json_decref(list);
	return NULL;
}
