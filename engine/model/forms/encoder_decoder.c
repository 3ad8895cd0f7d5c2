/* encoder_decoder.c - the tokens of a decoder begin with a start token (model_dims.start), not with the tokenizer's. A
 * decoder without an encoder (model_dims.source 0) attends to rows that the caller gives. */
#include "engine/model/form.h"

const model_form form_encoder_decoder = {
    .name = "encoder_decoder",
    .does = "generates text",
    .stepwise = true,
    .source = true,
    .many_rows = true,
    .row = form_last_row,
    .context = form_earlier_context,
    .removals = form_whole_removals,
};
