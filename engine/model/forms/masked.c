#include "engine/model/form.h"

const model_form form_masked = {
    .name = "masked",
    .does = "fills in masks",
    .offers = "fill in masks and embed",
    .fills = true,
    .begins = true,
    .many_rows = true,
    .row = form_last_row,
    .context = form_whole_context,
    .removals = form_whole_removals,
};
