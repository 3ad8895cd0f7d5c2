/* faithfulness_creation.h - the request for an evaluation of an input, which is answered at once, or of a file, which
 * becomes a job. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_CREATION_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_CREATION_H

#include "engine/daemon/queue/job_draft.h"

extern const job_draft_steps faithfulness_creation_steps;

#endif
