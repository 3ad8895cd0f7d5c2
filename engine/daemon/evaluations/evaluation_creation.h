/* evaluation_creation.h - the method evaluation.create. The request is checked and the file tokenized before the job
 * exists. Loop thread. */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_CREATION_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_CREATION_H

#include "engine/daemon/net/stream.h"

void evaluation_creation_begin(stream *s);

#endif
