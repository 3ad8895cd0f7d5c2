/* load.h - a run of load: requests that arrive by a plan, histograms of their times, and checks of every answer.
 *
 *   closed loop   `clients` requests are in flight at any time
 *   open loop     requests arrive at random, `rate` a second on average, whether earlier ones have ended or not. Their
 *                 times count from the planned arrival, so they include what a slow service makes them wait
 *
 * First each distinct request is sent alone; its answer is the expected one. During the run every answer must be equal
 * to it, or be its beginning if the client left (answer.h). An engine whose tokens depend on other rows of a batch
 * fails this check.
 *
 * After a refusal, a failure or a lost connection a client rests for LOAD_REST_MS. The run gives up closing its
 * sessions once LOAD_CLOSE_MS have passed without one that was closed. */
#ifndef CLIENTS_LOAD_LOAD_H
#define CLIENTS_LOAD_LOAD_H

#include <stdio.h>

#include "clients/load/driver.h"
#include "clients/load/histogram.h"
#include "clients/load/sessions.h"

enum { LOAD_SHOWN = 5 /* reasons that a report keeps of each kind */, LOAD_REST_MS = 1000, LOAD_CLOSE_MS = 30000 };

typedef struct load_options {
	workload_options workload;
	sessions_options sessions; /* n 0: requests without a session */
	int clients;               /* requests in flight, in an open loop at most */
	double rate;               /* 0: closed loop */
	long long requests;        /* end of the run, whichever comes first; 0: no limit */
	double seconds;
	double slow, leave;      /* shares of the requests whose client reads slowly, or leaves */
	const char *const *keys; /* API keys used in turn; n_keys 0: that of `http` */
	int n_keys;
	bool compare;  /* compare texts with expected answers */
	FILE *history; /* one JSON object per request is written to it; NULL: none */
	/* Called about once a second, and when a signal has interrupted. False: end the run. */
	bool (*tick)(void *context);
	void *context;
} load_options;

typedef struct load_key {
	long long complete;
	histogram first;
} load_key;

typedef struct load_report {
	long long requests, outcomes[OUTCOMES], tokens, events;
	long long opened, unknown; /* sessions (sessions.h) */
	long long violations;      /* answers that break a rule */
	char problems[LOAD_SHOWN][300], reasons[LOAD_SHOWN][300];
	int n_problems, n_reasons;
	double seconds;
	histogram first, gap, whole; /* ns; first and whole of complete answers of clients that read as they can */
	load_key *keys;              /* [n_keys] */
	int in_flight;
} load_report;

/* Run. False: it could not begin, for the reason in `problem`. Free the report in any case. */
bool load_run(const http *h, const load_options *o, load_report *report, char problem[300]);
void load_report_free(load_report *r);

#endif
