/* model_card.h - where a model comes from: its parents, files, settings, results and licence.
 *
 * A card is stored in the model's folder as JSON, and as a page for people (model_card_page.h). Both are written before
 * the folder is sealed, since jobs and files may be deleted later. They depend on the card alone, so writing them again
 * gives the same bytes. Evaluations are made later; the method model.card adds them.
 *
 *    {"object": "model.card", "id", "source": "training" or "import", null if unknown,
 *     "job": {"id", "created_at"}, "parents": [{"model", "relation"}], nearest first,
 *     "files": [{"use", "id", "filename", "bytes", "sha256"}],
 *     "recipe", "resolved": those of the job, "results": what it reached,
 *     "license": a text, "origin": the card that an import came with}
 *
 * Every member is present; it is null or an empty array if there is nothing to say. */
#ifndef ENGINE_RECIPE_MODEL_CARD_H
#define ENGINE_RECIPE_MODEL_CARD_H

#include <jansson.h>

#include "engine/store/store.h"
#include "engine/train/trainer.h"

#define MODEL_CARD_FILE "model_card.json"
#define MODEL_CARD_LICENSE "LICENSE"
/* Relations of a model to its parent. */
#define MODEL_CARD_TRAINED "trained from"
#define MODEL_CARD_IMPORTED "imported from"
enum { MODEL_CARD_MAX_BYTES = 1 << 20, MODEL_CARD_MAX_PARENTS = 64 };

/* Make a card without content. source: NULL if unknown. New reference; NULL: out of memory. */
json_t *model_card_new(const char *id, const char *source);
/* Make the card of the model that a job makes, from the job's document (job_document.h), with the results so far. It
 * shares nothing with the document, so another thread may change it. New reference; NULL: out of memory. */
json_t *model_card_of_job(const char *id, const json_t *job);
/* Add a file. use: "training", "validation", "tokenizer" or "import". Empty members of f are null in the card; without
 * a name the size is, too. False: out of memory. */
bool model_card_add_file(json_t *card, const char *use, const store_file *f);
/* Add the model that the training began with, then that model's parents, up to MODEL_CARD_MAX_PARENTS. Its licence
 * becomes that of the new model. base: its card, or NULL. False: out of memory. */
bool model_card_add_base(json_t *card, const char *id, const json_t *base);

/* Parse a card. STATUS_INVALID: it is not one. STATUS_NOMEM. */
status model_card_read(json_t **out, const char *text, size_t bytes);
/* Set the results, and write the card, its page and its licence into the folder that is to become the model. Files are
 * not synced; sealing the folder does that. A card over MODEL_CARD_MAX_BYTES loses its recipe, then its origin, settings,
 * licence and files, until it fits. Blocks. */
status model_card_finish(json_t *card, const train_progress *p, const char *folder, error *err);
/* Make the card of an import from its files, and write it like model_card_finish. names: files that a model may have,
 * NULL-terminated. A card among them is that of an exported model, which becomes the first parent. Without one, the
 * import's own page is kept. STATUS_INVALID, STATUS_TOO_LARGE, naming the file: it is no card, or too large. Blocks. */
status model_card_import(const char *id, const char *folder, const char *const *names, error *err);

#endif
