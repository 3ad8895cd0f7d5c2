/* statistics.h - the method file.statistics. Loop thread.
 *
 * A kept result is answered at once. Otherwise a pool thread verifies the file and then reads it in pieces, which takes
 * as long as the file is large. Requests for the same file and model share one reading. When all their clients have
 * left, the work ends after the verification or the piece. At most STATISTICS_MAX threads of the pool do this, and at
 * most half of the pool but at least one; further requests are refused (STATUS_BUSY). */
#ifndef ENGINE_DAEMON_LIBRARY_STATISTICS_H
#define ENGINE_DAEMON_LIBRARY_STATISTICS_H

#include "engine/daemon/net/stream.h"

enum { STATISTICS_MAX = 2 };

void statistics_read(stream *s);

#endif
