/* contributions.h - the signed parts of the score of one prediction, in an explanation (model/attribution.h).
 *
 *   loop:     what is to be explained is read from the request (contributions_read)
 *   executor: a scoring of the tokens up to the position (scoring_task)
 *   pool:     the parts become JSON (contributions_object) */
#ifndef ENGINE_DAEMON_GENERATION_CONTRIBUTIONS_H
#define ENGINE_DAEMON_GENERATION_CONTRIBUTIONS_H

#include "engine/daemon/generation/scoring_task.h"

typedef struct contributions {
	bool wanted;
	scoring_sequence sequence; /* its ids are the explanation's */
	explain_parts parts;
	float share;
	float *numbers; /* of parts, [3][tokens] */
} contributions;

/* Does the request ask for them: by `method`, or, where the explanation can have them, by leaving that out? */
bool contributions_asked(const json_t *params);
/* Of the prediction behind `position` of so many tokens; of a model with a head for classes, of these. Sets c->wanted,
 * false where they were not asked for by name and there are too many tokens. STATUS_INVALID names "target", "share",
 * "position" or "input". STATUS_NOMEM. */
status contributions_read(contributions *c, const json_t *params, const model_entry *m, const int32_t *ids, int64_t n,
                          int64_t position, error *err);
/* Begin the scoring; t->finished is the caller's. */
void contributions_submit(contributions *c, stream *s, model_entry *m, scoring_task *t);
/* Pool thread. New reference; NULL without err: out of memory. */
json_t *contributions_object(const contributions *c, const model_entry *m, error *err);
void contributions_fini(contributions *c);

#endif
