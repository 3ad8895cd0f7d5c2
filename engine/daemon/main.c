/* additived: the engine daemon. `additived --help` says what it takes. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/reserve.h"
#include "engine/cpu/threads.h"
#include "engine/daemon/engine.h"
#include "engine/daemon/maintenance.h"
#include "engine/daemon/sessions.h"
#include "proto/json_memory.h"

static const char usage[] = "additived " ADDITIVE_VERSION ": the engine daemon of Additive\n"
                            "\n"
                            "  --data DIR            where everything is kept (required)\n"
                            "  --socket ADDRESS      unix:PATH or HOST:PORT (default unix:DIR/engine.sock)\n"
                            "  --backend NAME        auto, cpu or cuda (default auto)\n"
                            "  --device N            which CUDA device (default 0)\n"
                            "  --threads N           CPU threads (default 0: all cores)\n"
                            "  --max-models N        models on the device at once (default 4)\n"
                            "  --max-sessions N      sessions on the device at once (default 256)\n"
                            "  --max-known-sessions N  sessions on the device and stored (default 65536)\n"
                            "  --max-generations N   generations running and waiting (default 256)\n"
                            "  --max-batch N         sequences in one decode step (default 32, 256 on a GPU)\n"
                            "  --data-budget MIB     refuse what would make the data larger (default 0: no limit)\n"
                            "  --retain-days N       remove checkpoints of ended jobs when so old (default 0: never)\n"
                            "  --retain-bytes N      keep so many bytes of them, the newest (default 0: all)\n"
                            "  --help, --version\n"
                            "\n"
                            "Beside or instead of a running engine:\n"
                            "  additived backup --data DIR TO        back up; \"additived backup --help\" says how\n"
                            "  additived restore FROM --data DIR     restore a backup into an empty folder\n"
                            "  additived fsck --data DIR             check what is stored; lost blobs\n"
                            "\n"
                            "Prints \"ready ADDRESS\" when it listens. SIGTERM and SIGINT stop it; what was "
                            "acknowledged also survives kill -9.\n";

typedef struct number {
	const char *name;
	int *target;
	int64_t min, max;
	int64_t *wide; /* instead of target */
} number;

static bool read_number(const number *n, const char *text)
{
	char *end;
	errno = 0;
	long given = strtol(text, &end, 10);
	if (errno || end == text || *end || given < n->min || given > n->max) {
		fprintf(stderr, "additived: --%s must be a number from %lld to %lld\n", n->name, (long long)n->min,
		        (long long)n->max);
		return false;
	}
	if (n->wide)
		*n->wide = given;
	else
		*n->target = (int)given;
	return true;
}

/* 0: go on; else the exit status plus one. */
static int read_options(engine_options *o, int argc, char **argv)
{
	int budget_mib = 0;
	const number numbers[] = {{"threads", &o->threads, 0, 1024, NULL},
	                          {"device", &o->device, 0, 1023, NULL},
	                          {"max-models", &o->limits.max_models, 1, 64, NULL},
	                          {"max-sessions", &o->limits.max_sessions, 1, 65536, NULL},
	                          {"max-known-sessions", &o->max_known_sessions, 1, 1 << 24, NULL},
	                          {"max-generations", &o->limits.max_generations, 1, 65536, NULL},
	                          {"max-batch", &o->limits.max_batch, 1, 4096, NULL},
	                          {"data-budget", &budget_mib, 0, INT_MAX, NULL},
	                          {"retain-days", &o->retain_days, 0, 36500, NULL},
	                          {"retain-bytes", NULL, 0, INT64_MAX, &o->retain_bytes}};
	const struct {
		const char *name, **target;
	} texts[] = {{"data", &o->data}, {"socket", &o->socket}, {"backend", &o->backend}};
	enum { NUMBERS = sizeof numbers / sizeof *numbers, TEXTS = sizeof texts / sizeof *texts, HELP = 100, VERSION };
	struct option table[NUMBERS + TEXTS + 3] = {{"help", no_argument, NULL, HELP},
	                                            {"version", no_argument, NULL, VERSION}};
	for (int i = 0; i < NUMBERS; i++)
		table[2 + i] = (struct option){numbers[i].name, required_argument, NULL, i};
	for (int i = 0; i < TEXTS; i++)
		table[2 + NUMBERS + i] = (struct option){texts[i].name, required_argument, NULL, NUMBERS + i};
	for (int found; (found = getopt_long(argc, argv, "", table, NULL)) != -1;) {
		if (found == HELP || found == VERSION)
			return fputs(found == HELP ? usage : ADDITIVE_VERSION "\n", stdout), 1;
		if (found == '?' || (found < NUMBERS && !read_number(&numbers[found], optarg)))
			return 3;
		if (found >= NUMBERS)
			*texts[found - NUMBERS].target = optarg;
	}
	if (optind < argc || !o->data || !o->data[0]) {
		fprintf(stderr, optind < argc ? "additived: unexpected \"%s\"\n" : "additived: --data is required%s\n",
		        optind < argc ? argv[optind] : "");
		return 3;
	}
	o->data_budget = (int64_t)budget_mib << 20;
	if (o->max_known_sessions < o->limits.max_sessions) {
		fprintf(stderr, "additived: --max-known-sessions must be at least --max-sessions (%d)\n",
		        o->limits.max_sessions);
		return 3;
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (maintenance_is_asked(argc, argv))
		return maintenance_run(argc - 1, argv + 1);
	threads_sleep_when_idle(argv);
	engine_options options = {
	    .backend = "auto",
	    .limits = {.max_models = 4, .max_sessions = 256, .max_generations = 256}, /* max_batch: the device's */
	    .max_known_sessions = SESSIONS_MAX_KNOWN};
	int stop = read_options(&options, argc, argv);
	if (stop)
		return stop - 1;
	error err = ERROR_INIT;
	bool forced;
	log_init("additived", LOG_INFO);
	umask(0077);
	signal(SIGPIPE, SIG_IGN);
	json_memory_install(reserve_malloc, reserve_free);
	uv_replace_allocator(reserve_malloc, reserve_realloc, reserve_calloc, reserve_free);
	signal(SIGXFSZ, SIG_IGN); /* a file over the process's limit is an error like a full disk */
	json_object_seed(0); /* before threads make objects */
	status s = engine_run(&options, &forced, &err);
	if (s != STATUS_OK)
		log_line(LOG_ERROR, "%s", err.status == STATUS_OK ? status_text(s) : error_message(&err));
	if (forced)
		_exit(s == STATUS_OK ? 0 : 1);
	return s == STATUS_OK ? 0 : 1;
}
