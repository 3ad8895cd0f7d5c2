/* preview.h - what the model that is being trained writes: some tokens after the beginning of the validation text.
 *
 * Prompt and random numbers are the same at every evaluation, so previews of a run can be compared. Writing one reads
 * the weights and changes nothing that decides the future of the run. It is a plan of one token, which the trainer
 * steps through like its other plans:
 *
 *   preview_begin(p);
 *   do { preview_enter(p); … run preview_plan(p) …; preview_leave(p, &more); } while (more);
 *   preview_tokens(p, &prompt, &count); */
#ifndef ENGINE_TRAIN_PREVIEW_H
#define ENGINE_TRAIN_PREVIEW_H

#include "engine/model/model.h"
#include "engine/text/dataset.h"

enum { PREVIEW_PROMPT = 32, PREVIEW_TOKENS = 96 }; /* at most; fewer where the model has not the positions */

typedef struct preview preview;

/* m must outlive it. STATUS_NOMEM, or the plan's errors. */
status preview_new(preview **out, const model *m, const dataset *valid, uint64_t seed, error *err);
void preview_free(preview *p);

void preview_begin(preview *p);
plan *preview_plan(const preview *p);
/* Before and after the plan has run. more: another token is to be read. */
status preview_enter(preview *p);
status preview_leave(preview *p, bool *more);
/* The last preview: *prompt tokens of the text, then those that the model wrote, *count in all (0: there is none yet).
 * Valid until the next preview_begin. */
const int32_t *preview_tokens(const preview *p, int *prompt, int *count);

#endif
