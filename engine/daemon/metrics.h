/* metrics.h - the methods engine.status and engine.metrics. Loop thread. */
#ifndef ENGINE_DAEMON_METRICS_H
#define ENGINE_DAEMON_METRICS_H

#include "engine/daemon/net/stream.h"

void metrics_status(stream *s);
void metrics_read(stream *s);

#endif
