/* load.c - the command `load`: its options, its progress, and the report. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "clients/cli/cli.h"
#include "clients/cli/footer.h"
#include "clients/cli/scrape.h"
#include "clients/load/load.h"

enum {
	CLIENTS = 64,
	REQUESTS = 1000,
	TURNS = 4,
	MAX_CLIENTS = 65536,
	MAX_KEYS = 1024,
	MAX_FILE = 64 << 20,
	IDLE_TRIES = 100
};

static const option_row load_options_rows[] = {
    {"clients", OPTION_COUNT, "N", "requests in flight; with --rate at most (default 64)", "1 to 65536"},
    {"rate", OPTION_SECONDS, "R", "requests a second on average, at random times: an open loop", "0.001 to 1000000"},
    {"requests", OPTION_COUNT, "N", "end after so many (default 1000; without a limit with --seconds)",
     "1 to 1000000000"},
    {"seconds", OPTION_SECONDS, "S", "end after this time", "0.1 to 1000000"},
    {"chat", OPTION_FLAG, NULL, "chat completions; default: completions", NULL},
    {"sessions", OPTION_COUNT, "N", "keep N sessions open, each read and continued in turns", "1 to 1000000"},
    {"turns", OPTION_COUNT, "N", "turns of a session, after which another one is opened (default 4)", "1 to 1000"},
    {"durable", OPTION_FLAG, NULL, "durable sessions", NULL},
    {"prompts", OPTION_TEXT, "FILE", "a prompt per line; default: 16 made of random letters, of 8 to 32 bytes", NULL},
    {"max-tokens", OPTION_INTEGERS, "N,N", "limits of answers, chosen at random (default 4,16,32)", NULL},
    {"temperature", OPTION_NUMBER, "T", "of sampling; default 0, the likeliest token", NULL},
    {"slow", OPTION_SECONDS, "SHARE", "share of clients that read one kilobyte each 100 ms", "0 to 1"},
    {"leave", OPTION_SECONDS, "SHARE", "share of clients that leave after 1 to 8 pieces of text", "0 to 1"},
    {"keys", OPTION_TEXT, "FILE", "an API key per line, used in turn; times are shown for each", NULL},
    {"seed", OPTION_INTEGER, "N", "of prompts, times and choices (default 1)", NULL},
    {"history", OPTION_TEXT, "FILE", "write a line of JSON for each request", NULL},
    {"no-compare", OPTION_FLAG, NULL, "do not compare texts with the answers of an idle service", NULL},
    {"allow-failures", OPTION_FLAG, NULL, "failed requests and lost connections are expected", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

/* --- the service at rest ------------------------------------------------------------------- */

/* Numbers of /metrics that a run must leave as they were. */
static const struct {
	const char *name;
	bool sessions;
} gauges[] = {{"additive_engine_generations_running", false},
              {"additive_engine_generations_waiting", false},
              {"additive_engine_sessions", true},
              {"additive_engine_sessions_live", true},
              {"additive_engine_tasks_pending", false}};
enum { GAUGES = sizeof(gauges) / sizeof(gauges[0]) };

/* False: the service has no such numbers. */
static bool look(cli *c, long long numbers[GAUGES])
{
	text metrics = {0};
	const bool ok =
	    http_text(c->http, "GET", "/metrics", NULL, NULL, &metrics) && scrape_has(&metrics, gauges[0].name);
	for (int i = 0; i < GAUGES; i++)
		numbers[i] = scrape_number(&metrics, gauges[i].name);
	text_free(&metrics);
	return ok;
}

/* Wait until no number is above what it was, apart from `unknown` sessions. Returns the name of one that stays above,
 * or NULL. */
static const char *wait_for_rest(cli *c, const long long before[GAUGES], long long unknown)
{
	const char *above = NULL;
	for (int i = 0; i < IDLE_TRIES; i++) {
		long long now[GAUGES];
		above = NULL;
		if (!look(c, now))
			above = "/metrics";
		for (int g = 0; !above && g < GAUGES; g++)
			above = now[g] > before[g] + (gauges[g].sessions ? unknown : 0) ? gauges[g].name : NULL;
		if (!above)
			return NULL;
		nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	}
	return above;
}

/* --- progress ------------------------------------------------------------------------------ */

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
	(void)signal;
	interrupted = 1;
}

typedef struct watch {
	const cli *c;
	const load_report *report;
	footer footer;
} watch;

static bool tick(void *context)
{
	watch *w = context;
	const load_report *r = w->report;
	text line = {0};
	if (w->c->err.tty && !w->c->json && r->requests > 0) {
		text_format(&line, "%.0f s: %lld requests, %d in flight, %.0f tokens/s", r->seconds, r->requests,
		            r->in_flight, r->seconds > 0 ? (double)r->tokens / r->seconds : 0);
		footer_draw(&w->footer, stderr, w->c->err.width, &line);
		text_free(&line);
	}
	return !interrupted;
}

/* --- the report ---------------------------------------------------------------------------- */

static json_t *times(const histogram *h)
{
	static const struct {
		const char *name;
		double percent;
	} points[] = {{"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99.9", 99.9}, {"max", 100}};
	json_t *all = json_object();
	for (size_t i = 0; h->n > 0 && i < sizeof(points) / sizeof(points[0]); i++)
		json_object_set_new(all, points[i].name,
		                    json_real((double)histogram_percentile(h, points[i].percent) * 1e-6));
	json_object_set_new(all, "count", json_integer((json_int_t)h->n));
	return all;
}

static json_t *texts(char kept[LOAD_SHOWN][300], int n)
{
	json_t *all = json_array();
	for (int i = 0; i < n; i++)
		json_array_append_new(all, json_string(kept[i]));
	return all;
}

/* above: the number that stays above its value at rest, or NULL. */
static json_t *describe(load_report *r, const load_options *o, const char *above)
{
	json_t *all = json_object(), *keys = json_array();
	json_object_set_new(all, "seconds", json_real(r->seconds));
	json_object_set_new(all, "requests", json_integer(r->requests));
	for (int i = 0; i < OUTCOMES; i++)
		json_object_set_new(all, outcome_name((outcome)i), json_integer(r->outcomes[i]));
	if (o->sessions.n > 0)
		json_object_set_new(all, "sessions", json_integer(r->opened));
	json_object_set_new(all, "tokens", json_integer(r->tokens));
	json_object_set_new(all, "tokens_per_second", json_real(r->seconds > 0 ? (double)r->tokens / r->seconds : 0));
	json_object_set_new(all, "first_ms", times(&r->first));
	json_object_set_new(all, "gap_ms", times(&r->gap));
	json_object_set_new(all, "whole_ms", times(&r->whole));
	for (int i = 0; i < o->n_keys; i++)
		json_array_append_new(keys,
		                      json_pack("{s:i, s:I, s:o}", "key", i + 1, "complete",
		                                (json_int_t)r->keys[i].complete, "first_ms", times(&r->keys[i].first)));
	json_object_set_new(all, "keys", keys);
	json_object_set_new(all, "violations", json_integer(r->violations));
	json_object_set_new(all, "problems", texts(r->problems, r->n_problems));
	json_object_set_new(all, "reasons", texts(r->reasons, r->n_reasons));
	json_object_set_new(all, "not_at_rest", above ? json_string(above) : json_null());
	return all;
}

static void print_times(const char *name, const histogram *h)
{
	static const double points[] = {50, 90, 99, 99.9, 100};
	printf("%-14s", name);
	for (size_t i = 0; h->n > 0 && i < sizeof(points) / sizeof(points[0]); i++)
		printf("%10.2f", (double)histogram_percentile(h, points[i]) * 1e-6);
	putchar('\n');
}

static void print_report(const load_report *r, const load_options *o)
{
	printf("%lld requests in %.1f s:", r->requests, r->seconds);
	for (int i = 0; i < OUTCOMES; i++)
		printf("%s %lld %s", i ? "," : "", r->outcomes[i], outcome_name((outcome)i));
	if (o->sessions.n > 0)
		printf("\n%lld sessions", r->opened);
	printf("\n%lld tokens, %.0f a second\n\n", r->tokens, r->seconds > 0 ? (double)r->tokens / r->seconds : 0);
	printf("%-14s%10s%10s%10s%10s%10s\n", "ms", "p50", "p90", "p99", "p99.9", "max");
	print_times("first text", &r->first);
	print_times("gap", &r->gap);
	print_times("whole answer", &r->whole);
	for (int i = 0; i < o->n_keys; i++) {
		char name[32];
		snprintf(name, sizeof(name), "first, key %d", i + 1);
		print_times(name, &r->keys[i].first);
	}
}

static int conclude(cli *c, load_report *r, const load_options *o, bool rests, const char *above)
{
	const bool failed = r->outcomes[OUTCOME_FAILED] + r->outcomes[OUTCOME_LOST] > 0;
	if (c->json) {
		json_t *all = describe(r, o, above);
		cli_print_json(all);
		json_decref(all);
	} else {
		print_report(r, o);
	}
	fflush(stdout);
	for (int i = 0; !c->json && i < r->n_reasons; i++)
		cli_note(c, "%s", r->reasons[i]);
	for (int i = 0; !c->json && i < r->n_problems; i++)
		cli_note(c, "wrong: %s", r->problems[i]);
	if (r->violations > 0)
		return cli_fail("%lld answers are wrong", r->violations);
	if (above)
		return cli_fail("the service is not at rest: %s is above its value before the run", above);
	if (failed && !options_flag(&c->options, "allow-failures"))
		return cli_fail("%lld requests failed or were lost",
		                r->outcomes[OUTCOME_FAILED] + r->outcomes[OUTCOME_LOST]);
	if (r->outcomes[OUTCOME_COMPLETE] == 0)
		return cli_fail("no request was answered");
	cli_note(c, "All answers are right%s.", rests ? ", and the service is at rest" : "");
	return CLI_OK;
}

/* --- options ------------------------------------------------------------------------------- */

/* A file's contents, malloc'ed; NULL after a complaint. */
static char *slurp(const char *path)
{
	text all = {0};
	char block[4096];
	FILE *file = fopen(path, "rb");
	for (size_t n; file && all.used < MAX_FILE && (n = fread(block, 1, sizeof(block), file)) > 0;)
		text_append(&all, block, n);
	if (!file || ferror(file))
		cli_fail("cannot read %s: %s", path, strerror(errno));
	if (file)
		fclose(file);
	if (file && !all.data)
		text_append(&all, "", 0);
	return file ? all.data : NULL;
}

/* Split into lines in place. */
static int cut_lines(char *lines, const char **out, int most)
{
	int n = 0;
	for (char *save, *line = strtok_r(lines, "\r\n", &save); line && n < most; line = strtok_r(NULL, "\r\n", &save))
		out[n++] = line;
	return n;
}

static int read_limits(const char *list, long long *out)
{
	int n = 0;
	for (const char *at = list; at && *at && n < WORKLOAD_MAX_LIMITS; at += strcspn(at, ","), at += *at == ',')
		out[n++] = strtoll(at, NULL, 10);
	for (int i = 0; i < n; i++)
		if (out[i] < 1)
			return 0;
	return n;
}

/* A connection needs a descriptor. */
static void raise_limit(void)
{
	struct rlimit l;
	if (getrlimit(RLIMIT_NOFILE, &l) != 0)
		return;
	l.rlim_cur = l.rlim_max;
	setrlimit(RLIMIT_NOFILE, &l);
}

static int perform(cli *c, load_options *o)
{
	load_report *r = calloc(1, sizeof(*r));
	long long before[GAUGES];
	char problem[300];
	watch w = {.c = c, .report = r};
	if (!r)
		return cli_fail("out of memory");
	o->tick = tick;
	o->context = &w;
	raise_limit();
	signal(SIGINT, interrupt);
	const bool rests = look(c, before);
	const bool ran = load_run(c->http, o, r, problem);
	signal(SIGINT, SIG_DFL);
	footer_erase(&w.footer, stderr, c->err.width);
	int status = ran ? CLI_OK : cli_fail("%s", problem);
	const bool waits = rests && !interrupted;
	if (ran)
		status = conclude(c, r, o, waits, waits ? wait_for_rest(c, before, r->unknown) : NULL);
	load_report_free(r);
	free(r);
	return interrupted ? CLI_INTERRUPTED : status;
}

static int load_with_files(cli *c, load_options *o, const char **keys)
{
	const char *prompts = options_text(&c->options, "prompts"), *key_file = options_text(&c->options, "keys"),
	           *history = options_text(&c->options, "history");
	char *lines = NULL, *key_lines = NULL;
	int status = CLI_FAILED;
	if ((prompts && !(lines = slurp(prompts))) || (key_file && !(key_lines = slurp(key_file))))
		goto out;
	o->workload.prompts = lines;
	o->keys = keys;
	o->n_keys = key_lines ? cut_lines(key_lines, keys, MAX_KEYS) : 0;
	if (history && !(o->history = fopen(history, "w"))) {
		cli_fail("cannot write %s: %s", history, strerror(errno));
		goto out;
	}
	status = perform(c, o);
	if (o->history && fclose(o->history) != 0)
		status = cli_fail("cannot write %s: %s", history, strerror(errno));
out:
	free(lines);
	free(key_lines);
	return status;
}

static int load_run_command(cli *c)
{
	const options *given = &c->options;
	const char *limits = options_text(given, "max-tokens");
	long long max_tokens[WORKLOAD_MAX_LIMITS];
	const char *keys[MAX_KEYS];
	load_options o = {.clients = (int)options_integer(given, "clients", CLIENTS),
	                  .rate = options_number(given, "rate", 0),
	                  .seconds = options_number(given, "seconds", 0),
	                  .slow = options_number(given, "slow", 0),
	                  .leave = options_number(given, "leave", 0),
	                  .compare = !options_flag(given, "no-compare")};
	o.requests = options_integer(given, "requests", o.seconds > 0 ? 0 : REQUESTS);
	o.sessions = (sessions_options){.model = cli_argument(c, 0),
	                                .n = (int)options_integer(given, "sessions", 0),
	                                .turns = (int)options_integer(given, "turns", TURNS),
	                                .durable = options_flag(given, "durable"),
	                                .may_vanish = options_flag(given, "allow-failures")};
	o.workload = (workload_options){.model = cli_argument(c, 0),
	                                .sessions = o.sessions.n > 0,
	                                .chat = options_flag(given, "chat"),
	                                .max_tokens = max_tokens,
	                                .n_limits = read_limits(limits ? limits : "4,16,32", max_tokens),
	                                .temperature = options_number(given, "temperature", 0),
	                                .seed = (uint64_t)options_integer(given, "seed", 1)};
	if (o.workload.n_limits == 0)
		return cli_usage("--max-tokens takes up to %d numbers of at least 1", WORKLOAD_MAX_LIMITS);
	if (o.sessions.n > 0 && (o.workload.chat || !o.compare))
		return cli_usage("--sessions does not go with --chat or --no-compare");
	if (o.slow + o.leave > 1)
		return cli_usage("--slow and --leave are shares of all clients: together at most 1");
	return load_with_files(c, &o, keys);
}

const command load_commands[] = {
    {"load", "MODEL", 1, 1, "load a service, measure its times and check every answer",
     "Sends requests of a model, all streamed. First each distinct request is sent alone; under load its answer must "
     "be the "
     "same text.\nA client that leaves must have received the beginning of it. Each stream must have one finish reason "
     "and "
     "one [DONE]. At the end\nnothing may be left running. The service may be any with OpenAI's API. Exit status 1: an "
     "answer is wrong, or a request failed.\nRefusals (409, 429 and 503) are counted, and are no failures.",
     load_options_rows, load_run_command},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
