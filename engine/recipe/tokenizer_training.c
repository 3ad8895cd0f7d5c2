#include "engine/recipe/tokenizer_training.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/text/text_reader.h"

#define NAME "train-tokenizer"
enum { NICE = 10 /* serving has priority */ };

typedef struct asked {
	const char *spec, *out;
	bool json;
	char **files;
	int n_files;
} asked;

bool tokenizer_training_is_asked(int argc, char **argv)
{
	return argc > 1 && strcmp(argv[1], NAME) == 0;
}

static bool parse(asked *a, int argc, char **argv)
{
	static const struct option options[] = {{"spec", required_argument, NULL, 's'},
	                                        {"out", required_argument, NULL, 'o'},
	                                        {"json", no_argument, NULL, 'j'},
	                                        {NULL, 0, NULL, 0}};
	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		if (c == 's')
			a->spec = optarg;
		else if (c == 'o')
			a->out = optarg;
		else if (c == 'j')
			a->json = true;
		else
			return false;
	}
	a->files = argv + optind;
	a->n_files = argc - optind;
	return a->spec && a->out && a->n_files > 0;
}

static status tokenizer_training_train(tokenizer **out, const asked *a, error *err)
{
	json_error_t where;
	text_reader *reader;
	json_t *spec;
	status s = json_read(&spec, a->spec, strlen(a->spec), 0, &where);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "the spec: %s", where.text);
	s = text_reader_new(&reader, (const char *const *)a->files, (size_t)a->n_files);
	if (s == STATUS_OK) {
		text_source source = text_reader_source(reader);
		s = tokenizer_train(out, spec, &source, err);
	}
	text_reader_free(reader);
	json_decref(spec);
	return s;
}

static status run(const asked *a, error *err)
{
	tokenizer *t = NULL;
	TRY(tokenizer_training_train(&t, a, err));
	status s = file_make_folders(a->out, err);
	if (s == STATUS_OK)
		s = tokenizer_save(t, a->out, err);
	tokenizer_free(t);
	return s;
}

static int report(const asked *a, status s, error *err)
{
	error_settle(err, s);
	if (!a->json) {
		fprintf(stderr, "additived " NAME ": %s%s%s\n", err->param, err->param[0] ? ": " : "",
		        error_message(err));
		return 1;
	}
	json_t *problem =
	    json_pack("{s:i, s:s, s:s}", "status", (int)s, "param", err->param, "message", error_message(err));
	if (problem)
		json_dumpf(problem, stdout, JSON_COMPACT);
	json_decref(problem);
	fflush(stdout);
	return 1;
}

int tokenizer_training_run(int argc, char **argv)
{
	asked a = {0};
	error err = ERROR_INIT;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpriority(PRIO_PROCESS, 0, NICE);
	if (!parse(&a, argc, argv)) {
		fputs("usage: additived " NAME " --spec JSON --out FOLDER [--json] FILE...\n", stderr);
		return 2;
	}
	status s = run(&a, &err);
	return s == STATUS_OK ? 0 : report(&a, s, &err);
}
