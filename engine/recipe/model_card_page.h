/* model_card_page.h - the page of a model: markdown after the YAML front matter that the Hugging Face Hub reads.
 *
 * Text from elsewhere, such as a file's name, is only written inside code spans and code blocks. Their fences are
 * longer than any run of backticks in the text, and control characters in a span become spaces. So no text can be
 * markup. The front matter has fixed words and, as base_model, a parent whose name has the form of a Hub id. */
#ifndef ENGINE_RECIPE_MODEL_CARD_PAGE_H
#define ENGINE_RECIPE_MODEL_CARD_PAGE_H

#include <jansson.h>

#define MODEL_CARD_PAGE "README.md"

/* Return the page of a card (model_card.h), malloc'ed; NULL: out of memory. */
char *model_card_page(const json_t *card);

#endif
