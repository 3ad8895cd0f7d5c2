/* sp_roles.h - roles of ids from the files beside a SentencePiece model: ids that begin, end and fill up texts, tokens
 * after the pieces, and tokens around a text.
 *
 * tokenizer_config.json: bos_token, eos_token, unk_token, pad_token, mask_token (names), add_bos_token, add_eos_token,
 * added_tokens_decoder, extra_ids and additional_special_tokens (T5's <extra_id_0> … count down from the last id),
 * tokenizer_class. special_tokens_map.json: names. The model's own ids are the default. */
#ifndef ENGINE_TEXT_SENTENCEPIECE_SP_ROLES_H
#define ENGINE_TEXT_SENTENCEPIECE_SP_ROLES_H

#include "engine/text/sentencepiece/sp_model.h"
#include "engine/text/tokenizer.h"

typedef struct sp_roles {
	int32_t begin, end, pad, unknown, mask; /* -1: none */
	bool wraps_begin, wraps_end;
	char **added; /* [n_added]: names of the ids after the pieces; NULL: an id without a token */
	int32_t n_added;
	trie specials; /* names of control pieces and added tokens */
} sp_roles;

/* t: only its files are used. Errors: STATUS_INVALID, STATUS_UNSUPPORTED for what the files ask for and is not here;
 * on error *out can be freed. */
status sp_roles_read(sp_roles *out, const sp_model *m, const tokenizer *t, error *err);
void sp_roles_fini(sp_roles *r);

#endif
