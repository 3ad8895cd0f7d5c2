/* preview.h - text that the model being trained generates: some tokens that continue the beginning of the validation
 * text.
 *
 * Prompt and random numbers are the same at every evaluation, so previews of a run can be compared. A preview reads the
 * weights and changes nothing that the run depends on. It is a plan of one token, which the trainer runs like its other
 * plans:
 *
 *   preview_begin(p);
 *   do { preview_enter(p); … run preview_plan(p) …; preview_leave(p, &more); } while (more);
 *   preview_tokens(p, &prompt, &count); */
#ifndef ENGINE_TRAIN_PREVIEW_H
#define ENGINE_TRAIN_PREVIEW_H

#include "engine/model/model.h"
#include "engine/text/dataset.h"

enum { PREVIEW_PROMPT = 32, PREVIEW_TOKENS = 96 }; /* maxima; fewer if the model has fewer positions */

typedef struct preview preview;

/* m must outlive the preview. STATUS_NOMEM, or an error of model_plan. */
status preview_new(preview **out, const model *m, const dataset *valid, uint64_t seed, error *err);
void preview_free(preview *p);

void preview_begin(preview *p);
plan *preview_plan(const preview *p);
/* Call before and after the plan runs. more: another token must be read. */
status preview_enter(preview *p);
status preview_leave(preview *p, bool *more);
/* Return the last preview: *prompt tokens of the text, then those generated, *count in total (0: none so far). Valid
 * until the next preview_begin. */
const int32_t *preview_tokens(const preview *p, int *prompt, int *count);

#endif
