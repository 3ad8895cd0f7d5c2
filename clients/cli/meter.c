#include "clients/cli/meter.h"

static bool is_due(const meter *m, int percent, long long ms)
{
	if (ms - m->began_ms < METER_QUIET_MS)
		return false;
	return m->tty ? !m->drawn || ms - m->drawn_ms >= METER_REDRAW_MS
	              : percent / METER_LINE_PERCENT > m->percent / METER_LINE_PERCENT;
}

bool meter_take(meter *m, const char *name, long long done, long long total, long long ms, text *out)
{
	const int percent = total > 0 ? (int)(100 * (double)done / (double)total) : 0;

	if (!m->running)
		*m = (meter){.tty = m->tty, .running = true, .began_ms = ms};
	if (total <= 0 || !is_due(m, percent, ms))
		return false;
	m->percent = percent;
	m->drawn = true;
	m->drawn_ms = ms;
	return text_format(out, m->tty ? "\r\x1b[K%3d %%  %.1f of %.1f MB  %s" : "%3d %%  %.1f of %.1f MB  %s\n",
	                   percent, (double)done / 1e6, (double)total / 1e6, name);
}

void meter_end(meter *m, text *out)
{
	if (m->drawn && m->tty)
		text_string(out, "\r\x1b[K");
	*m = (meter){.tty = m->tty};
}
