/* job_preview.h - the text that a model generated at an evaluation. */
#ifndef ENGINE_RECIPE_JOB_PREVIEW_H
#define ENGINE_RECIPE_JOB_PREVIEW_H

#include "engine/train/trainer.h"

/* {"prompt", "text"} of the evaluation that was just completed (trainer_preview). New reference; NULL: the model cannot
 * write, or out of memory. */
json_t *job_preview(const trainer *t, const tokenizer *words);

#endif
