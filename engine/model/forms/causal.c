#include "engine/model/form.h"

/* Tokens before the removed one are read once for all removals. */
static double prefix_removals(double tokens)
{
	return tokens * (tokens + 5) / 2;
}

const model_form form_causal = {
    .name = "causal",
    .does = "generates text",
    .stepwise = true,
    .begins = true,
    .many_rows = true,
    .row = form_last_row,
    .context = form_earlier_context,
    .removals = prefix_removals,
};
