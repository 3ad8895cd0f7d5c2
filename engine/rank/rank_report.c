#include "engine/rank/rank_report.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/json_text.h"
#include "engine/base/memory.h"

enum { PROGRESS_NS = 100000000 };

struct rank_report {
	bool asks, rows_missing;
	int unanswered; /* evaluations without an answer */
	rank_wish wish;
	uint64_t progress_ns;
};

rank_report *rank_report_new(bool asks)
{
	rank_report *r = memory_new(1, sizeof *r);
	if (r)
		r->asks = asks;
	return r;
}

void rank_report_free(rank_report *r)
{
	free(r);
}

rank_wish rank_report_wish(rank_report *r)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	char byte;
	while (r->asks && r->wish != WISH_STOP && poll(&input, 1, 0) > 0) {
		const ssize_t n = read(STDIN_FILENO, &byte, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			r->wish = WISH_STOP;
		else if (byte == 's')
			r->wish = WISH_SAVE;
		else {
			r->rows_missing = byte == 'l';
			if (byte != 'w' && r->unanswered > 0)
				r->unanswered--;
		}
	}
	return r->wish;
}

bool rank_report_waits(const rank_report *r)
{
	return r->asks && r->unanswered > 0;
}

bool rank_report_rows_missing(const rank_report *r)
{
	return r->rows_missing;
}

/* Write a line, which is taken over. */
static bool say(json_t *line)
{
	char *text = json_text(line, JSON_COMPACT | JSON_REAL_PRECISION(17));
	const bool said = text && puts(text) >= 0 && fflush(stdout) == 0;
	free(text);
	json_decref(line);
	return said;
}

static json_t *line_of(const char *kind, const train_progress *p)
{
	return json_pack("{s:s, s:o*}", "report", kind, "progress", p ? train_progress_write(p) : NULL);
}

static bool add_error(json_t *line, const error *err)
{
	return json_object_set_new(line, "error",
	                           json_pack("{s:i, s:s, s:s}", "status", (int)err->status, "param", err->param,
	                                     "message", error_message(err))) == 0;
}

bool rank_report_progress(rank_report *r, const train_progress *p)
{
	const uint64_t now = clock_ns();
	if (now - r->progress_ns < PROGRESS_NS)
		return true;
	r->progress_ns = now;
	return say(line_of("progress", p));
}

bool rank_report_started(rank_report *r, const train_progress *p, const char *sums)
{
	json_t *line = line_of("started", p);
	(void)r;
	if (sums[0])
		json_object_set_new(line, "gradients", json_string(sums));
	return say(line);
}

bool rank_report_evaluated(rank_report *r, const train_progress *p, json_t *preview)
{
	json_t *line = line_of("evaluated", p);
	r->unanswered++;
	if (preview)
		json_object_set(line, "preview", preview);
	return say(line);
}

bool rank_report_saved(rank_report *r, const train_progress *p, json_t *row, const error *err)
{
	json_t *line = line_of("saved", p);
	(void)r;
	if (err->status != STATUS_OK)
		add_error(line, err);
	else if (row)
		json_object_set(line, "checkpoint", row);
	return say(line);
}

bool rank_report_ended(rank_report *r, const train_progress *p, bool finished, const error *err)
{
	json_t *line = line_of("ended", p);
	(void)r;
	json_object_set_new(line, "finished", json_boolean(finished));
	if (err->status != STATUS_OK && err->status != STATUS_CANCELLED)
		add_error(line, err);
	return say(line);
}
