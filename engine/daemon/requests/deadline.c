#include "engine/daemon/requests/deadline.h"

#include <math.h>

static void on_timer(uv_timer_t *timer);

/* Set the timer to the earliest end. */
static void arm(net *n)
{
	uint64_t next = UINT64_MAX;
	const uint64_t now = uv_now(n->loop);
	for (const stream *s = n->deadlines; s; s = s->deadline_next)
		next = s->deadline_ms < next ? s->deadline_ms : next;
	if (next == UINT64_MAX)
		uv_timer_stop(&n->deadline);
	else
		uv_timer_start(&n->deadline, on_timer, next > now ? next - now : 0, 0);
}

static stream *first_due(const net *n)
{
	stream *s = n->deadlines;
	while (s && s->deadline_ms > uv_now(n->loop))
		s = s->deadline_next;
	return s;
}

/* Cancelling may answer a request, which removes it from the list. */
static void on_timer(uv_timer_t *timer)
{
	net *n = timer->data;
	for (stream *s; (s = first_due(n));) {
		stream_remove_deadline(s);
		stream_stop(s, &s->expired);
	}
	arm(n);
}

void deadline_begin(stream *s)
{
	net *n = s->net;
	const json_t *given = json_object_get(s->params, "timeout");
	double seconds = json_is_number(given) ? json_number_value(given) : s->timeout;
	if (s->timeout > 0 && s->timeout < seconds)
		seconds = s->timeout;
	if (!(seconds > 0) || s->deadline_at)
		return;
	s->deadline_ms = uv_now(n->loop) + (uint64_t)ceil(seconds * 1000);
	s->deadline_next = n->deadlines;
	if (s->deadline_next)
		s->deadline_next->deadline_at = &s->deadline_next;
	s->deadline_at = &n->deadlines;
	n->deadlines = s;
	arm(n);
}
