/* model_cards.h - the cards of stored models (engine/recipe/model_card.h).
 *
 * A model of an earlier version and a checkpoint have no stored card. Theirs is made from the job, while the ledger has
 * it. Loop thread. */
#ifndef ENGINE_DAEMON_CATALOG_MODEL_CARDS_H
#define ENGINE_DAEMON_CATALOG_MODEL_CARDS_H

#include "engine/store/store.h"

/* Find the card of a model or checkpoint; without content if nothing is known. New reference. STATUS_STORAGE: the
 * stored card is damaged. STATUS_NOT_FOUND: there is no such model. */
status model_cards_find(json_t **out, store *s, const char *id, error *err);
/* Make the card of the model `id` that a job makes. New reference. Errors of model_cards_find for the base. */
status model_cards_of_job(json_t **out, store *s, const char *id, const json_t *job, error *err);

#endif
