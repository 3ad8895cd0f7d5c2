/* classifier.c - a text is read unchanged, with an end token only if the head reads there (POOL_END). */
#include "engine/model/architecture.h"

static int64_t pooled_row(const model_dims *d, const int32_t *ids, int64_t count)
{
	int64_t i = count - 1;
	while (d->pool == POOL_END && i >= 0 && ids[i] != d->end)
		i--;
	return i;
}

const model_form form_classifier = {
    .name = "classifier",
    .does = "classifies texts",
    .offers = "classify and embed",
    .head = HEAD_CLASSES,
    .row = pooled_row,
    .context = form_whole_context,
    .removals = form_whole_removals,
};
