/* meter.h - progress of the transfer of a large body, as lines on stderr. Zero-initialise, and set `tty`. */
#ifndef CLI_METER_H
#define CLI_METER_H

#include <stdbool.h>

#include "clients/cli/text.h"

enum { METER_QUIET_MS = 1000, METER_REDRAW_MS = 200, METER_LINE_PERCENT = 10 };

typedef struct meter {
	bool tty; /* the line is drawn again in place; else there is one for each tenth */
	bool running, drawn;
	long long began_ms, drawn_ms;
	int percent; /* shown by the last line */
} meter;

/* Append a line if one is due: `done` of `total` bytes are transferred at the time `ms`. name: of what is transferred.
 * Nothing is due in the first METER_QUIET_MS. False: nothing was appended. */
bool meter_take(meter *m, const char *name, long long done, long long total, long long ms, text *out);
/* The transfer has ended. Append what clears a line that was drawn. */
void meter_end(meter *m, text *out);

#endif
