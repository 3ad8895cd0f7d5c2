/* progress.c - the parts of the line are made first; the bar gets the room that they leave. */
#include "clients/cli/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BAR_LEAST = 10, BAR_MOST = 30, PART_BYTES = 48, MAX_PARTS = 7, SILENCE_SECONDS = 60 };

void progress_init(progress *p)
{
	*p = (progress){-1, -1, NAN, NAN, NAN, NAN, NAN, NAN, -1, 0, 0};
}

static void update_count(long long *value, const json_t *data, const char *name)
{
	const json_t *x = json_object_get(data, name);

	if (json_is_integer(x) && json_integer_value(x) >= 0)
		*value = json_integer_value(x);
}

static void update_number(double *value, const json_t *data, const char *name)
{
	const json_t *x = json_object_get(data, name);

	if (json_is_number(x))
		*value = json_number_value(x);
}

void progress_update(progress *p, const json_t *data)
{
	update_count(&p->step, data, "step");
	update_count(&p->total, data, "total_steps");
	update_number(&p->train_loss, data, "train_loss");
	update_number(&p->valid_loss, data, "valid_loss");
	update_number(&p->bits_per_byte, data, "bits_per_byte");
	update_number(&p->accuracy, data, "accuracy");
	update_number(&p->tokens_per_second, data, "tokens_per_second");
	update_number(&p->eta_seconds, data, "eta_seconds");
}

void progress_estimate(progress *p, const json_t *data, long long time)
{
	if (!json_object_get(data, "step") || json_is_number(json_object_get(data, "eta_seconds")))
		return;
	if (p->from_step < 0 || time - p->latest_time > SILENCE_SECONDS || p->step < p->from_step) {
		p->from_step = p->step;
		p->from_time = time;
		p->eta_seconds = NAN;
	}
	p->latest_time = time;
	if (p->step > p->from_step && time > p->from_time && p->total >= p->step)
		p->eta_seconds =
		    (double)(p->total - p->step) * (double)(time - p->from_time) / (double)(p->step - p->from_step);
}

int progress_percent(const progress *p)
{
	if (p->total <= 0 || p->step < 0)
		return 0;
	return p->step >= p->total ? 100 : (int)(100.0 * (double)p->step / (double)p->total);
}

static void write_duration(double seconds, char *out, size_t size)
{
	long long s = seconds < 0 ? 0 : seconds > 1e9 ? 1000000000 : llround(seconds);

	if (s >= 86400)
		snprintf(out, size, "ETA %lldd %lldh", s / 86400, s / 3600 % 24);
	else if (s >= 3600)
		snprintf(out, size, "ETA %lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
	else
		snprintf(out, size, "ETA %lld:%02lld", s / 60, s % 60);
}

/* The parts right of the bar, the most wanted first. */
static int write_parts(const progress *p, char parts[MAX_PARTS][PART_BYTES])
{
	int n = 0;

	if (!isnan(p->train_loss))
		snprintf(parts[n++], PART_BYTES, "loss %.4g", p->train_loss);
	if (!isnan(p->eta_seconds) && progress_percent(p) < 100)
		write_duration(p->eta_seconds, parts[n++], PART_BYTES);
	if (!isnan(p->valid_loss))
		snprintf(parts[n++], PART_BYTES, "valid %.4g", p->valid_loss);
	if (!isnan(p->bits_per_byte))
		snprintf(parts[n++], PART_BYTES, "%.3f bits/byte", p->bits_per_byte);
	if (!isnan(p->accuracy))
		snprintf(parts[n++], PART_BYTES, "accuracy %.4g", p->accuracy);
	if (!isnan(p->tokens_per_second)) {
		char *out = parts[n++];
		if (p->tokens_per_second >= 1e6)
			snprintf(out, PART_BYTES, "%.1fM tokens/s", p->tokens_per_second / 1e6);
		else if (p->tokens_per_second >= 1e4)
			snprintf(out, PART_BYTES, "%.1fk tokens/s", p->tokens_per_second / 1e3);
		else
			snprintf(out, PART_BYTES, "%.0f tokens/s", p->tokens_per_second);
	}
	return n;
}

void progress_line(const progress *p, int width, text *out)
{
	char parts[MAX_PARTS][PART_BYTES], head[64];
	int n = write_parts(p, parts), shown = 0;

	if (p->total > 0)
		snprintf(head, sizeof(head), "%lld/%lld", p->step < 0 ? 0 : p->step, p->total);
	else
		snprintf(head, sizeof(head), "step %lld", p->step < 0 ? 0 : p->step);

	/* head, space, bar in brackets, space, percent, and two spaces before each part */
	int room = width - (int)strlen(head) - BAR_LEAST - 8;

	if (room < 0) {
		text_format(out, "%.*s", width, head);
		if (width >= (int)strlen(head) + 5)
			text_format(out, " %3d%%", progress_percent(p));
		return;
	}
	while (shown < n && room >= (int)strlen(parts[shown]) + 2)
		room -= (int)strlen(parts[shown++]) + 2;
	int bar = BAR_LEAST + room;
	bar = bar > BAR_MOST ? BAR_MOST : bar;
	int full = bar * progress_percent(p) / 100;

	text_format(out, "%s [", head);
	for (int i = 0; i < bar; i++)
		text_string(out, i < full ? "#" : ".");
	text_format(out, "] %3d%%", progress_percent(p));
	for (int i = 0; i < shown; i++)
		text_format(out, "  %s", parts[i]);
}
