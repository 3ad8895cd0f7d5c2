#include "server/rate_headers.h"

#include <stdio.h>

#include "proto/json_memory.h"

static const char *const rate_kinds[RATE_KINDS] = {"requests", "tokens"};

void rate_headers_read(rate_headers *h, const frame *note)
{
	json_t *object = json_memory_parse(note->json, note->json_bytes, 0, NULL);
	for (int i = 0; i < RATE_KINDS; i++) {
		json_int_t limit, remaining;
		double reset;
		if (json_unpack(json_object_get(object, rate_kinds[i]), "[I, I, F]", &limit, &remaining, &reset) == 0)
			h->kinds[i] = (rate_state){true, limit, remaining, reset};
	}
	json_decref(object);
}

int rate_headers_write(const rate_headers *h, rate_header out[RATE_HEADERS])
{
	static const char *const names[RATE_KINDS][3] = {
	    {"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"},
	    {"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"}};
	int n = 0;
	for (int i = 0; i < RATE_KINDS; i++) {
		const rate_state *k = &h->kinds[i];
		if (!k->known)
			continue;
		for (int j = 0; j < 3; j++)
			out[n + j].name = names[i][j];
		snprintf(out[n].value, sizeof out->value, "%lld", (long long)k->limit);
		snprintf(out[n + 1].value, sizeof out->value, "%lld", (long long)k->remaining);
		snprintf(out[n + 2].value, sizeof out->value, "%.3fs", k->reset);
		n += 3;
	}
	return n;
}
