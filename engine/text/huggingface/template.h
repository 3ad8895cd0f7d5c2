/* template.h - the "post_processor" of a tokenizer.json: what is put around a single text, and around the two of a
 * pair. Types: TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel (offsets alone), Sequence. */
#ifndef ENGINE_TEXT_HUGGINGFACE_TEMPLATE_H
#define ENGINE_TEXT_HUGGINGFACE_TEMPLATE_H

#include <jansson.h>
#include <stdint.h>

#include "engine/text/tokenizer.h"

typedef struct text_template {
	tokenizer_frame single, pair;
} text_template;

/* part NULL or null: nothing. Ids are below `size`. STATUS_UNSUPPORTED by name. */
status template_read(text_template *t, const json_t *part, int32_t size, error *err);

#endif
