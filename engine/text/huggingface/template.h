/* template.h - the "post_processor" of a tokenizer.json: what is put before and behind a single text. */
#ifndef ENGINE_TEXT_HUGGINGFACE_TEMPLATE_H
#define ENGINE_TEXT_HUGGINGFACE_TEMPLATE_H

#include <jansson.h>
#include <stdint.h>

#include "engine/base/error.h"

enum { TEMPLATE_MAX_IDS = 16 };

typedef struct text_template {
	int32_t before[TEMPLATE_MAX_IDS], behind[TEMPLATE_MAX_IDS];
	int n_before, n_behind;
} text_template;

/* part NULL or null: nothing. Ids are below `size`. STATUS_UNSUPPORTED by name. */
status template_read(text_template *t, const json_t *part, int32_t size, error *err);

#endif
