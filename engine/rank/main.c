/* additive-train: one training job over several processes, started by mpirun. `additive-train --help` lists its
 * options. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/device_list.h"
#include "engine/base/json_read.h"
#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/threads.h"
#include "engine/rank/device_sums.h"
#include "engine/rank/rank_plan.h"
#include "engine/rank/rank_run.h"
#include "engine/recipe/tokenizer_training.h"
#include "proto/manual.h"
#include "proto/options.h"

enum { EXIT_STOPPED = 130, PATIENCE_SECONDS = 60, LOST_SECONDS = 10 };

static const option_row rows[] = {
    {"out", OPTION_TEXT, "FOLDER", "of the run: checkpoints, the tokens of its texts, and at the end the model", NULL},
    {"plan", OPTION_TEXT, "FILE", "what the engine has written, in place of RECIPE and --out", NULL},
    {"backend", OPTION_TEXT, "NAME:auto|cpu|cuda",
     "where it computes; of several devices each rank takes its own, and ranks beyond these share (auto)", NULL},
    {"device", OPTION_TEXT, "N,…",
     "numbers of the CUDA devices for a machine's ranks, in turn, at most 16, separated by commas (all)", NULL},
    {"threads", OPTION_COUNT, "N", "of a rank on the CPU (the machine's cores, shared by its ranks)", "1 to 4096"},
    {"version", OPTION_FLAG, NULL, "the version (-v)", NULL},
    {"help", OPTION_FLAG, NULL, "this text (-h)", NULL},
    {"man", OPTION_FLAG, NULL, "this text as a page of the manual, in roff", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

/* Section 8, because additive-train(1) is the command `additive train`. */
static const manual_page manual = {
    .name = "additive-train",
    .section = 8,
    .summary = "one training job over several processes",
    .usage = "mpirun -n RANKS additive-train RECIPE --out FOLDER [OPTIONS]",
    .text =
        "RECIPE is the body of POST /v1/fine_tuning/jobs; files and a model to continue from are paths in it.\n"
        "Reports are JSON lines on stdout. Ctrl-C saves a checkpoint; the same command goes on from the newest one.",
    .rows = rows,
    .see = "additive-train(1), additived(8)"};

static int usage(const char *problem)
{
	fprintf(stderr, "additive-train: %s. additive-train --help lists the options\n", problem);
	return 2;
}

static status open_backend(backend **out, const options *o, const ranks *r, error *err)
{
	const char *name = options_text(o, "backend");
	int index, here = mpi_ranks_here(r, &index);
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	int threads = (int)options_integer(o, "threads", cores / here > 1 ? cores / here : 1);
	backend_options where = {.device = index, .wrap = true};
	int devices[DEVICE_LIST_MAX], n;
	if (options_text(o, "device")) {
		TRY(device_list_parse(options_text(o, "device"), devices, &n, err));
		where = (backend_options){.device = devices[index % n]};
	}
	return backend_open(out, name ? name : "auto", &where, cpu_open, threads, err);
}

/* Rank 0 makes the document; it is NULL on all ranks if that fails. */
static status share_plan(json_t **document, const options *o, const backend *b, ranks *r, error *err)
{
	const rank_device d = {b->name, b->bf16};
	const char *file = options_text(o, "plan");
	char *text = NULL;
	status s = STATUS_OK;
	*document = NULL;
	if (r->rank == 0) {
		s = file ? rank_plan_read(document, file, err)
		         : rank_plan_of_recipe(document, o->arguments[0], options_text(o, "out"), &d, err);
		text = s == STATUS_OK ? json_text(*document, JSON_COMPACT) : NULL;
	}
	status shared = mpi_ranks_share(r, &text, err);
	if (r->rank != 0 && shared == STATUS_OK && text)
		s = json_read(document, text, strlen(text), 0, NULL);
	free(text);
	TRY(s);
	TRY(shared);
	return *document ? STATUS_OK : STATUS_CANCELLED; /* rank 0 reports why */
}

static void complain(const ranks *r, const error *err)
{
	log_line(LOG_ERROR, "rank %d: %s%s%s", r->rank, err->param, err->param[0] ? ": " : "", error_message(err));
}

/* The end of one rank makes mpirun end the others: SIGTERM, then SIGKILL after a delay or when the first of them
 * ends. So ranks that are stopped end together, after rank 0 has saved. */
static void leave_early(ranks *r, status s, unsigned seconds, const error *err)
{
	const int exit_status = s == STATUS_CANCELLED ? EXIT_STOPPED : 1;
	if (s != STATUS_CANCELLED)
		complain(r, err);
	if (r->rank == 0 && !rank_run_got_signal()) /* otherwise mpirun is ending all ranks */
		mpi_ranks_abort(r, exit_status);
	if (s == STATUS_CANCELLED)
		mpi_ranks_meet(r, PATIENCE_SECONDS);
	else
		sleep(seconds);
	_exit(exit_status);
}

static int rank_main_run(const options *o, ranks *r)
{
	error err = ERROR_INIT;
	backend *b;
	json_t *document;
	char sums[DEVICE_SUMS_BYTES];
	status s = open_backend(&b, o, r, &err);
	if (s != STATUS_OK)
		leave_early(r, error_settle(&err, s), 0, &err);
	s = share_plan(&document, o, b, r, &err);
	if (s != STATUS_OK) {
		if (r->rank == 0)
			complain(r, &err);
		return 1;
	}
	if (b->choose_fastest)
		b->choose_fastest(b, rank_plan_text(document, "cache"));
	s = device_sums_open(r, b, sums, &err);
	if (s != STATUS_OK)
		leave_early(r, error_settle(&err, s), 0, &err);
	if (sums[0])
		log_line(LOG_INFO, "gradients are %s", sums);
	const rank_run_options run = {.ranks = r,
	                              .document = document,
	                              .backend = b,
	                              .sums = sums,
	                              .report = r->rank == 0 ? rank_report_new(options_text(o, "plan")) : NULL};
	s = rank_run(&run, &err);
	if (s != STATUS_OK)
		leave_early(r, s, s == STATUS_UNAVAILABLE ? LOST_SECONDS : 0, &err);
	rank_report_free(run.report);
	json_decref(document);
	device_sums_close(r, b, false);
	backend_close(b);
	return 0;
}

int main(int argc, char **argv)
{
	options o = {0};
	error err = ERROR_INIT;
	ranks *r;
	if (tokenizer_training_is_asked(argc, argv)) /* started by ourselves (job_tokenizer.h) */
		return tokenizer_training_run(argc - 1, argv + 1);
	threads_sleep_when_idle(argv);
	log_init("additive-train", LOG_INFO);
	if (!options_parse(&o, argc - 1, argv + 1, NULL, rows))
		return usage(o.problem);
	if (options_flag(&o, "help")) {
		manual_help(stdout, &manual);
		return 0;
	}
	if (options_flag(&o, "man")) {
		manual_write(stdout, &manual);
		return 0;
	}
	if (options_flag(&o, "version")) {
		puts("additive-train " ADDITIVE_VERSION);
		return 0;
	}
	if (options_text(&o, "plan") ? o.n_arguments != 0 : o.n_arguments != 1 || !options_text(&o, "out"))
		return usage("it takes RECIPE and --out FOLDER");
	umask(0077);
	signal(SIGPIPE, SIG_IGN);
	rank_run_hold_signals();
	if (mpi_ranks_open(&r, &err) != STATUS_OK) {
		log_line(LOG_ERROR, "%s", error_message(&err));
		return 1;
	}
	log_init("additive-train", r->rank == 0 ? LOG_INFO : LOG_WARN);
	const int exit_status = rank_main_run(&o, r);
	mpi_ranks_close(r);
	options_free(&o);
	return exit_status;
}
