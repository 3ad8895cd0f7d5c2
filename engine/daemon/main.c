/* additived: the engine daemon. `additived --help` lists its options. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/reserve.h"
#include "engine/cpu/threads.h"
#include "engine/daemon/maintenance.h"
#include "engine/daemon/engine.h"
#include "engine/daemon/sessions/sessions.h"
#include "engine/daemon/spare_memory.h"
#include "engine/daemon/successor.h"
#include "engine/recipe/tokenizer_training.h"
#include "proto/config/config.h"
#include "proto/exit_status.h"
#include "proto/json_memory.h"
#include "proto/manual.h"
#include "proto/options.h"

static const option_row rows[] = {
#include "proto/engine_options.def"
    {"socket", OPTION_TEXT, "ADDRESS", "unix:PATH or HOST:PORT (unix:DIR/engine.sock)", NULL},
    {"allow-remote", OPTION_FLAG, NULL, "let HOST be other than loopback: every peer has full access", NULL},
    {"", OPTION_FLAG, NULL, "Only on the command line:", NULL},
    {"config", OPTION_TEXT, "FILE", "options from [engine] of a TOML file, except those given here", NULL},
    {"version", OPTION_FLAG, NULL, "the version (-v)", NULL},
    {"help", OPTION_FLAG, NULL, "this text (-h)", NULL},
    {"man", OPTION_FLAG, NULL, "this text as a page of the manual, in roff", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const config_section sections[] = {{"engine", rows}, {"server", NULL}, {NULL, NULL}};

static const manual_page manual = {
    .name = "additived",
    .section = 8,
    .summary = "the engine daemon of Additive",
    .usage = "additived --data DIR [OPTIONS]",
    .text = "Prints \"ready ADDRESS\" when it listens. SIGTERM and SIGINT stop it; SIGHUP is ignored. What was "
            "acknowledged also survives kill -9.\n"
            "\n"
            "Beside or instead of a running engine:\n"
            "  additived backup --data DIR TO        back up; see additived backup --help\n"
            "  additived restore FROM --data DIR     restore a backup into an empty folder\n"
            "  additived fsck --data DIR             check what is stored; lost blobs\n"
            "  additived train-tokenizer             train a tokenizer on texts",
    .rows = rows,
    .see = "additive(1), additive-serve(1), additive-httpd(8), additive-train(8)"};

static responses_limits responses_of(const options *o)
{
	return (responses_limits){.seconds = options_integer(o, "responses-seconds", RESPONSES_SECONDS),
	                          .bytes = options_integer(o, "responses-bytes", RESPONSES_BYTES),
	                          .owner_bytes = options_integer(o, "responses-owner-bytes", RESPONSES_OWNER_BYTES)};
}

/* A max_batch of 0 lets the device choose. */
static engine_options engine_options_of(const options *o)
{
	const char *name = options_text(o, "backend");
	const int64_t live = options_integer(o, "max-sessions", 256);
	const int64_t known = live > SESSIONS_MAX_KNOWN ? live : SESSIONS_MAX_KNOWN;
	return (engine_options){.data = options_text(o, "data"),
	                        .socket = options_text(o, "socket"),
	                        .allow_remote = options_flag(o, "allow-remote"),
	                        .backend = name ? name : "auto",
	                        .threads = (int)options_integer(o, "threads", 0),
	                        .data_identity = options_text(o, "data-identity"),
	                        .data_must_exist = options_flag(o, "data-must-exist"),
	                        .data_budget = options_integer(o, "data-budget", 0) << 20,
	                        .retain_days = (int)options_integer(o, "retain-days", ENGINE_RETAIN_DAYS),
	                        .retain_bytes = options_integer(o, "retain-bytes", ENGINE_RETAIN_BYTES),
	                        .lost = {.days = (int)options_integer(o, "lost-days", ENGINE_LOST_DAYS),
	                                 .bytes = options_integer(o, "lost-bytes", ENGINE_LOST_BYTES)},
	                        .corpus_cache_bytes = options_integer(o, "corpus-cache-bytes", 16LL << 30),
	                        .limits = {.max_models = (int)options_integer(o, "max-models", 4),
	                                   .max_sessions = (int)live,
	                                   .max_generations = (int)options_integer(o, "max-generations", 256),
	                                   .max_batch = (int)options_integer(o, "max-batch", 0),
	                                   .prefix_bytes = options_integer(o, "prefix-bytes", ENGINE_PREFIX_BYTES),
	                                   .automatic_bytes =
	                                       options_integer(o, "snapshot-bytes", SESSIONS_SNAPSHOT_BYTES)},
	                        .max_known_sessions = (int)options_integer(o, "max-known-sessions", known),
	                        .session_memory_bytes =
	                            options_integer(o, "session-memory-bytes", SESSIONS_MEMORY_BYTES),
	                        .session_disk_bytes = options_integer(o, "session-disk-bytes", SESSIONS_DISK_BYTES),
	                        .prefix_disk_bytes = options_integer(o, "prefix-disk-bytes", 0),
	                        .state_key_file = options_text(o, "state-key-file"),
	                        .audit_log = options_text(o, "audit-log"),
	                        .max_snapshots = (int)options_integer(o, "max-snapshots", SESSIONS_MAX_SNAPSHOTS),
	                        .snapshot_bytes = options_integer(o, "snapshot-bytes", SESSIONS_SNAPSHOT_BYTES),
	                        .max_explanations = (int)options_integer(o, "max-explanations", 64),
	                        .responses = responses_of(o)};
}

/* Return what is wrong with the options, or NULL. Sets the devices. */
static const char *fault(const options *o, engine_options *e)
{
	static error err;
	const char *devices = options_text(o, "device");
	if (o->n_arguments)
		return "unexpected argument";
	if (!e->data || !e->data[0])
		return "--data is required";
	if (device_list_parse(devices ? devices : "0", e->devices, &e->n_devices, &err) != STATUS_OK)
		return error_message(&err);
	return e->max_known_sessions < e->limits.max_sessions
	           ? "--max-known-sessions must be at least --max-sessions (256 when it is not given)"
	           : NULL;
}

/* Each connection and each open file needs a descriptor. The soft limit, often 1024, exists for select(), which is not
 * used. */
static void raise_file_limit(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static int main_run(const engine_options *given, char **argv)
{
	engine_options o = *given;
	error err = ERROR_INIT;
	successor before, next;
	engine_end end = {.next = &next};
	successor_read(&before);
	o.before = &before;
	umask(0077);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN); /* no configuration is reloaded; closing a terminal must not end a service */
	raise_file_limit();
	json_memory_install(reserve_malloc, reserve_free);
	uv_replace_allocator(reserve_malloc, reserve_realloc, reserve_calloc, reserve_free);
	signal(SIGXFSZ, SIG_IGN); /* a file over the process's limit is an error, like a full disk */
	json_object_seed(0);      /* before threads create objects */
	status s = engine_run(&o, &end, &err);
	if (s != STATUS_OK)
		log_line(LOG_ERROR, "%s", err.status == STATUS_OK ? status_text(s) : error_message(&err));
	if (end.reexecute) {
		successor_execute(&next, argv);
		s = STATUS_IO; /* makes a supervisor start it again */
	}
	if (end.forced)
		_exit(s == STATUS_OK ? 0 : 1);
	return s == STATUS_OK ? 0 : end.no_data ? EXIT_NO_DATA : 1;
}

static int main_start(const options *o, char **argv)
{
	engine_options e = engine_options_of(o);
	const char *wrong = fault(o, &e);
	if (options_flag(o, "help")) {
		manual_help(stdout, &manual);
		return 0;
	}
	if (options_flag(o, "man")) {
		manual_write(stdout, &manual);
		return 0;
	}
	if (options_flag(o, "version"))
		return puts(ADDITIVE_VERSION) < 0;
	if (!wrong)
		return main_run(&e, argv);
	fprintf(stderr, "additived: %s%s%s\n", wrong, o->n_arguments ? ": " : "",
	        o->n_arguments ? o->arguments[0] : "");
	return 2;
}

int main(int argc, char **argv)
{
	options o;
	if (maintenance_is_asked(argc, argv))
		return maintenance_run(argc - 1, argv + 1);
	if (tokenizer_training_is_asked(argc, argv))
		return tokenizer_training_run(argc - 1, argv + 1);
	threads_sleep_when_idle(argv);
	spare_memory_init();
	log_init("additived", LOG_INFO);
	bool ok = options_parse(&o, argc - 1, argv + 1, NULL, rows);
	const char *file = ok ? options_text(&o, "config") : NULL;
	if (file)
		ok = config_read(&o, file, sections);
	const char *form = ok ? options_text(&o, "log-format") : NULL;
	log_use_json(form && strcmp(form, "json") == 0);
	if (o.out_of_memory)
		log_line(LOG_ERROR, "%s", o.problem);
	else if (!ok)
		fprintf(stderr, "additived: %s. additived --help lists the options\n", o.problem);
	int code = ok ? main_start(&o, argv) : o.out_of_memory ? 1 : 2;
	options_free(&o);
	return code;
}
