#include "engine/text/huggingface/roles.h"

#include <string.h>

/* Names under which models end a text or a turn. */
static const char *const ends[] = {"<|endoftext|>", "</s>",          "<|end_of_text|>", "<|im_end|>", "<|eot_id|>",
                                   "<|eom_id|>",    "<end_of_turn>", "<eos>",           "<|end|>"};
static const char *const begins[] = {"<s>", "<|begin_of_text|>", "<bos>"};
static const char *const pads[] = {"<pad>", "[PAD]", "<|pad|>"};
static const char *const masks[] = {"[MASK]", "<mask>"};
enum {
	ENDS = sizeof ends / sizeof *ends,
	BEGINS = sizeof begins / sizeof *begins,
	PADS = sizeof pads / sizeof *pads,
	MASKS = sizeof masks / sizeof *masks
};

/* The id of a special token of this name; TOKEN_NONE: there is none. */
static int32_t find_special(const added *a, const vocabulary *names, const char *name)
{
	for (int set = 0; set < 2; set++)
		for (size_t i = 0; i < a->sets[set].count; i++) {
			const added_token *t = &a->sets[set].tokens[i];
			size_t bytes;
			const char *own = vocabulary_name(names, t->id, &bytes);
			if (t->special && bytes == strlen(name) && memcmp(own, name, bytes) == 0)
				return t->id;
		}
	return TOKEN_NONE;
}

static int32_t find_any(const added *a, const vocabulary *names, const char *const *list, int count)
{
	int32_t id = TOKEN_NONE;
	for (int i = 0; i < count && id == TOKEN_NONE; i++)
		id = find_special(a, names, list[i]);
	return id;
}

/* A role of a file: "bos_token": "<s>" or {"content": "<s>", …}. A token that only this file knows has no id here. */
static void read_role(const json_t *file, const char *key, const added *a, const vocabulary *names, int32_t *id)
{
	const json_t *value = json_object_get(file, key);
	if (json_is_object(value))
		value = json_object_get(value, "content");
	const char *name = json_string_value(value);
	if (*id != TOKEN_NONE || !name)
		return;
	*id = find_special(a, names, name);
	if (*id == TOKEN_NONE)
		*id = vocabulary_find(names, name, json_string_length(value));
}

status roles_read(tokenizer *t, const vocabulary *names, const added *a, error *err)
{
	static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json"};
	json_t *file;
	for (int i = 0; i < 2; i++) {
		TRY(tokenizer_file_json(t, files[i], &file, err));
		read_role(file, "bos_token", a, names, &t->begin);
		read_role(file, "eos_token", a, names, &t->end);
		read_role(file, "pad_token", a, names, &t->pad);
		read_role(file, "unk_token", a, names, &t->unknown);
		read_role(file, "mask_token", a, names, &t->mask);
		json_decref(file);
	}
	t->end = t->end != TOKEN_NONE ? t->end : find_any(a, names, ends, ENDS);
	t->begin = t->begin != TOKEN_NONE ? t->begin : find_any(a, names, begins, BEGINS);
	t->pad = t->pad != TOKEN_NONE ? t->pad : find_any(a, names, pads, PADS);
	t->mask = t->mask != TOKEN_NONE ? t->mask : find_any(a, names, masks, MASKS);
	tokenizer_add_end(t, t->end);
	for (int i = 0; i < ENDS; i++)
		tokenizer_add_end(t, find_special(a, names, ends[i]));
	return STATUS_OK;
}
