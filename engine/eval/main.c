/* additive-eval: run a model once over given inputs and write down everything it
 * computed, for tests, comparisons and bug reports. It needs the compute core only. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/threads.h"
#include "engine/eval/folder.h"
#include "engine/eval/golden.h"

enum { EXIT_ERROR = 1, EXIT_USAGE = 2, MAX_THREADS = 4096, MAX_CHUNK = 1 << 24 };

static const char usage[] =
    "usage: additive-eval --model DIR --inputs FILE --outputs FILE [options]\n"
    "       additive-eval --golden FILE [--golden FILE ...] --outputs FILE [options]\n"
    "  --model DIR            a folder with config.json and model.safetensors\n"
    "  --inputs FILE          safetensors with input_ids [B,N] and, optionally, attention_mask [B,N]\n"
    "                         and labels [B,N] (of position i the token at i, which a causal model predicts at i - 1\n"
    "                         and any other at i; -100 is ignored; default: input_ids where they are not masked);\n"
    "                         other tensors are ignored\n"
    "  --outputs FILE         safetensors with logits [B,N,V], loss, the count of tokens it is the mean of, and\n"
    "                         of every layer L and round R (if the architecture has rounds)\n"
    "                         layers.L.R.score and .log_normalizer [B,N,H] and .pooled [B,N,D]\n"
    "  --golden FILE          a set of golden numbers, which may lie in several files: config, weights and inputs are\n"
    "                         read from it, and every value that can be computed is written under the set's own name\n"
    "                         and shape; the other values of the set are listed on standard error. Takes --gradients,\n"
    "                         --recurrent (where the set has a recurrent form) and --chunk of the options below,\n"
    "                         --position-policy, --backend and --threads\n"
    "  --loss-only            only loss and count\n"
    "  --gradients            also d loss / d NAME as grad.NAME for every parameter\n"
    "  --recurrent            read token by token into recurrent state instead of all at once\n"
    "  --chunk N              tokens read at a time (with --recurrent; default 1)\n"
    "  --position-policy P    of tokens beyond the model's positions: error (default), clamp or wrap\n"
    "  --dtype TYPE           of packed weights, as they are served: fp32, bf16 or int8 (default: not packed)\n"
    "  --precision P          of the computation: fp32 (default) or bf16, as trained with (not with --recurrent or\n"
    "                         --dtype, nor on the CPU)\n"
    "  --label-smoothing E    of the loss, from 0 to below 1 (default 0)\n"
    "  --backend NAME         cpu (default), cuda, auto, or reference (slow, plain double-precision sums)\n"
    "  --threads N            CPU threads (default 0: all cores)\n"
    "  --help\n";

/* --- options -------------------------------------------------------------------------- */

static bool parse_number(const char *text, double min, double below, double *out)
{
	char *end;
	*out = strtod(text, &end);
	return end != text && !*end && *out >= min && *out < below;
}

static bool parse_long(const char *text, long min, long below, long *out)
{
	double number;
	bool good = parse_number(text, (double)min, (double)below, &number);
	*out = good ? (long)number : min;
	return good && number == (double)*out;
}

typedef struct word {
	const char *text;
	int value;
} word;

static bool parse_word(const char *text, const word *words, int count, int *out)
{
	for (int i = 0; i < count; i++) {
		*out = words[i].value;
		if (strcmp(text, words[i].text) == 0)
			return true;
	}
	return false;
}

/* One more golden file; false when there are too many. */
static bool add_golden(options *o, const char *path)
{
	char *names;
	if (o->n_golden == OPTIONS_MAX_GOLDEN ||
	    asprintf(&names, "%s%s%s", o->n_golden ? o->golden_names : "", o->n_golden ? ", " : "", path) < 0)
		return false;
	free(o->golden_names);
	o->golden_names = names;
	o->golden[o->n_golden++] = path;
	return true;
}

/* One option; false when its argument is not valid. */
static bool parse_option(options *o, int option, const char *text)
{
	static const word types[] = {{"fp32", DTYPE_PANEL_F32}, {"bf16", DTYPE_PANEL_BF16}, {"int8", DTYPE_PANEL_INT8}};
	static const word precisions[] = {{"fp32", false}, {"bf16", true}};
	static const word policies[] = {{"error", POSITION_ERROR}, {"clamp", POSITION_CLAMP}, {"wrap", POSITION_WRAP}};
	int choice = 0;
	bool good = true;
	switch (option) {
	case 'm':
		o->model = text;
		break;
	case 'i':
		o->inputs = text;
		break;
	case 'G':
		good = add_golden(o, text);
		break;
	case 'o':
		o->outputs = text;
		break;
	case 'b':
		o->backend = text;
		break;
	case 'g':
		o->spec.gradients = true;
		break;
	case 'r':
		o->spec.recurrent = true;
		break;
	case 'l':
		o->spec.loss_only = true;
		break;
	case 's':
		good = parse_number(text, 0, 1, &o->spec.smoothing);
		break;
	case 't':
		good = parse_long(text, 0, MAX_THREADS, &o->threads);
		break;
	case 'c':
		good = parse_long(text, 1, MAX_CHUNK, &o->spec.chunk);
		break;
	case 'p':
		good = parse_word(text, policies, 3, &choice);
		o->spec.policy = (position_policy)choice;
		break;
	case 'd':
		good = parse_word(text, types, 3, &choice);
		o->weights = (dtype)choice;
		break;
	case 'x':
		good = parse_word(text, precisions, 2, &choice);
		o->spec.bf16 = choice;
		break;
	}
	return good;
}

static int wrong_usage(const char *why)
{
	fprintf(stderr, "additive-eval: %s\n", why);
	return EXIT_USAGE;
}

/* 0, or the exit status after a message: options that exclude each other. */
static int check_options(const options *o)
{
	const evaluation_spec *s = &o->spec;
	bool folder = o->model || o->inputs;
	if (!o->outputs || (folder ? !o->model || !o->inputs || o->n_golden : !o->n_golden))
		return wrong_usage("needs --outputs, and either --model and --inputs or --golden");
	if (o->n_golden && (s->loss_only || s->bf16 || s->smoothing > 0 || o->weights != DTYPE_F32))
		return wrong_usage("golden files are evaluated whole, in fp32 and with their own label smoothing");
	if (s->gradients && s->recurrent)
		return wrong_usage("--gradients needs the parallel form");
	if (s->gradients && o->weights != DTYPE_F32)
		return wrong_usage("packed weights have no gradients");
	if (s->bf16 && (s->recurrent || o->weights != DTYPE_F32))
		return wrong_usage("--precision bf16 needs the parallel form and weights that are not packed");
	if (s->chunk && !s->recurrent)
		return wrong_usage("--chunk needs --recurrent");
	return 0;
}

/* 0, or the exit status after a message (-1: help was asked for). */
static int parse_options(options *o, int argc, char **argv)
{
	static const struct option longs[] = {
	    {"model", required_argument, NULL, 'm'},
	    {"inputs", required_argument, NULL, 'i'},
	    {"golden", required_argument, NULL, 'G'},
	    {"outputs", required_argument, NULL, 'o'},
	    {"backend", required_argument, NULL, 'b'},
	    {"threads", required_argument, NULL, 't'},
	    {"label-smoothing", required_argument, NULL, 's'},
	    {"chunk", required_argument, NULL, 'c'},
	    {"position-policy", required_argument, NULL, 'p'},
	    {"dtype", required_argument, NULL, 'd'},
	    {"gradients", no_argument, NULL, 'g'},
	    {"recurrent", no_argument, NULL, 'r'},
	    {"loss-only", no_argument, NULL, 'l'},
	    {"precision", required_argument, NULL, 'x'},
	    {"help", no_argument, NULL, 'h'},
	    {NULL, 0, NULL, 0},
	};
	*o = (options){.backend = "cpu", .weights = DTYPE_F32};
	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		if (c == 'h')
			return -1;
		if (c == '?')
			return EXIT_USAGE;
		if (!parse_option(o, c, optarg)) {
			fprintf(stderr, "additive-eval: \"%s\" is not a valid choice\n", optarg);
			return EXIT_USAGE;
		}
	}
	if (optind < argc)
		return wrong_usage("takes options only");
	return check_options(o);
}

/* --- main -------------------------------------------------------------------------------------- */

static status run(const options *o, backend *b, results *r, const char **blame, error *err)
{
	*blame = o->backend;
	if (o->spec.bf16 && !b->bf16)
		return error_set(err, STATUS_UNSUPPORTED, "precision",
		                 "--precision bf16: this backend computes in fp32 only");
	TRY(o->n_golden ? golden_evaluate(r, o, b, blame, err) : folder_evaluate(r, o, b, blame, err));
	*blame = o->outputs;
	return safetensors_write(o->outputs, r->items, r->count, NULL, err);
}

/* *blame is the argument that a failure is about. */
static status evaluate(const options *o, const char **blame, error *err)
{
	backend *b;
	results r = {0};
	bool reference = strcmp(o->backend, "reference") == 0;
	*blame = o->backend;
	TRY(backend_open(&b, reference ? "cpu" : o->backend, NULL, reference ? cpu_reference_open : cpu_open,
	                 (int)o->threads, err));
	status s = run(o, b, &r, blame, err);
	results_free(&r);
	backend_close(b);
	return s;
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	options o;
	error err = ERROR_INIT;
	const char *blame;
	int wrong = parse_options(&o, argc, argv);
	if (wrong) {
		free(o.golden_names);
		fputs(usage, wrong < 0 ? stdout : stderr);
		return wrong < 0 ? 0 : wrong;
	}
	status s = evaluate(&o, &blame, &err);
	if (s != STATUS_OK)
		fprintf(stderr, "additive-eval: %s: %s\n", blame, err.message[0] ? err.message : status_text(s));
	free(o.golden_names);
	return s == STATUS_OK ? 0 : EXIT_ERROR;
}
