/* additive-eval: run a model once over given inputs and write down everything it
 * computed, for tests, comparisons and bug reports. It needs the compute core only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/threads.h"
#include "tests/golden/folder.h"
#include "tests/golden/golden.h"
#include "proto/manual.h"
#include "proto/options.h"

enum { EXIT_ERROR = 1, EXIT_USAGE = 2 };

static const option_row rows[] = {
    {"model", OPTION_TEXT, "DIR", "a folder with config.json and model.safetensors", NULL},
    {"inputs", OPTION_TEXT, "FILE", "safetensors with what the model reads", NULL},
    {"golden", OPTION_TEXTS, "FILE", "a set of golden numbers, which may lie in several files", NULL},
    {"outputs", OPTION_TEXT, "FILE", "safetensors to write", NULL},
    {"loss-only", OPTION_FLAG, NULL, "only loss and count", NULL},
    {"gradients", OPTION_FLAG, NULL, "also d loss / d NAME as grad.NAME for every parameter", NULL},
    {"recurrent", OPTION_FLAG, NULL, "read token by token into recurrent state instead of all at once", NULL},
    {"chunk", OPTION_COUNT, "N", "tokens read at a time, with --recurrent (1)", "1 to 16777215"},
    {"position-policy", OPTION_TEXT, "NAME:error|clamp|wrap", "of tokens beyond the model's positions (error)", NULL},
    {"dtype", OPTION_TEXT, "TYPE:fp32|bf16|int8", "pack the weights, as they are served; not packed unless given",
     NULL},
    {"precision", OPTION_TEXT, "NAME:fp32|bf16",
     "of the computation, as trained with; bf16 not with --recurrent or --dtype, nor on the CPU (fp32)", NULL},
    {"label-smoothing", OPTION_NUMBER, "E", "of the loss, from 0 to below 1 (0)", NULL},
    {"backend", OPTION_TEXT, "NAME:cpu|cuda|auto|reference",
     "where it computes; reference is slow, with plain double-precision sums (cpu)", NULL},
    {"threads", OPTION_COUNT, "N", "CPU threads; 0: all cores (0)", "0 to 4095"},
    {"version", OPTION_FLAG, NULL, "the version (-v)", NULL},
    {"help", OPTION_FLAG, NULL, "this text (-h)", NULL},
    {"man", OPTION_FLAG, NULL, "this text as a page of the manual, in roff", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const manual_page manual = {
    .name = "additive-eval",
    .section = 1,
    .summary = "run a model once over given inputs and write down everything it computes",
    .usage = "additive-eval --model DIR --inputs FILE --outputs FILE [OPTIONS]\n"
             "additive-eval --golden FILE... --outputs FILE [OPTIONS]",
    .text = "Inputs are input_ids [B,N] and, optionally, attention_mask [B,N] and labels [B,N]: of position i the\n"
            "token at i, which a causal model predicts at i - 1 and any other at i; -100 is ignored. Without\n"
            "labels they are input_ids where these are not masked. Other tensors are ignored.\n"
            "\n"
            "Outputs are logits [B,N,V], loss, the count of tokens it is the mean of, and of every layer L and\n"
            "round R (if the architecture has rounds) layers.L.R.score and .log_normalizer [B,N,H] and .pooled\n"
            "[B,N,D].\n"
            "\n"
            "From --golden files config, weights and inputs are read, and every value that can be computed is\n"
            "written under the set's own name and shape; the other values of the set are listed on standard\n"
            "error. With them go --gradients, --recurrent (where the set has a recurrent form) and --chunk,\n"
            "--position-policy, --backend and --threads.",
    .rows = rows,
    .see = "additive-evaluate(1), additived(8)"};

/* --- options -------------------------------------------------------------------------- */

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

/* The value of an option that is given, which is one of the words. */
static bool read_word(const options *given, const char *name, const word *words, int count, int *out)
{
	const char *text = options_text(given, name);
	return !text || parse_word(text, words, count, out);
}

/* The golden files, and their names; false when there are too many. */
static bool read_golden(eval_options *o, const options *given)
{
	for (int i = 0; i < given->n_given; i++) {
		char *names;
		const char *path = given->given[i].value;
		if (strcmp(given->given[i].row->name, "golden") != 0)
			continue;
		if (o->n_golden == OPTIONS_MAX_GOLDEN ||
		    asprintf(&names, "%s%s%s", o->n_golden ? o->golden_names : "", o->n_golden ? ", " : "", path) < 0)
			return false;
		free(o->golden_names);
		o->golden_names = names;
		o->golden[o->n_golden++] = path;
	}
	return true;
}

/* False: a value is none of its words, or out of its range. */
static bool read_options(eval_options *o, const options *given)
{
	static const word types[] = {{"fp32", DTYPE_PANEL_F32}, {"bf16", DTYPE_PANEL_BF16}, {"int8", DTYPE_PANEL_INT8}};
	static const word precisions[] = {{"fp32", false}, {"bf16", true}};
	static const word policies[] = {{"error", POSITION_ERROR}, {"clamp", POSITION_CLAMP}, {"wrap", POSITION_WRAP}};
	const char *name = options_text(given, "backend");
	int weights = DTYPE_F32, bf16 = false, policy = POSITION_ERROR;
	bool good = read_word(given, "dtype", types, 3, &weights) &&
	            read_word(given, "precision", precisions, 2, &bf16) &&
	            read_word(given, "position-policy", policies, 3, &policy);
	*o = (eval_options){.model = options_text(given, "model"),
	                    .inputs = options_text(given, "inputs"),
	                    .outputs = options_text(given, "outputs"),
	                    .backend = name ? name : "cpu",
	                    .threads = (long)options_integer(given, "threads", 0),
	                    .weights = (dtype)weights,
	                    .spec = {.gradients = options_flag(given, "gradients"),
	                             .recurrent = options_flag(given, "recurrent"),
	                             .loss_only = options_flag(given, "loss-only"),
	                             .smoothing = options_number(given, "label-smoothing", 0),
	                             .chunk = (long)options_integer(given, "chunk", 0),
	                             .policy = (position_policy)policy,
	                             .bf16 = bf16}};
	return read_golden(o, given) && good && o->spec.smoothing >= 0 && o->spec.smoothing < 1;
}

static int wrong_usage(const char *message)
{
	fprintf(stderr, "additive-eval: %s\n", message);
	manual_help(stderr, &manual);
	return EXIT_USAGE;
}

/* 0, or the exit status after a message: options that exclude each other. */
static int check_options(const eval_options *o)
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

/* --- main -------------------------------------------------------------------------------------- */

static status run(const eval_options *o, backend *b, results *r, const char **blame, error *err)
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
static status evaluate(const eval_options *o, const char **blame, error *err)
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

static int start(const options *given)
{
	eval_options o = {0};
	error err = ERROR_INIT;
	const char *blame;
	int wrong = !read_options(&o, given) ? wrong_usage("a value is not a valid choice")
	            : given->n_arguments > 0 ? wrong_usage("takes options only")
	                                     : check_options(&o);
	if (wrong) {
		free(o.golden_names);
		return wrong;
	}
	status s = evaluate(&o, &blame, &err);
	if (s != STATUS_OK)
		fprintf(stderr, "additive-eval: %s: %s\n", blame, err.message[0] ? err.message : status_text(s));
	free(o.golden_names);
	return s == STATUS_OK ? 0 : EXIT_ERROR;
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	options given;
	int ended = 0;
	if (!options_parse(&given, argc - 1, argv + 1, NULL, rows))
		ended = wrong_usage(given.problem);
	else if (options_flag(&given, "help"))
		manual_help(stdout, &manual);
	else if (options_flag(&given, "man"))
		manual_write(stdout, &manual);
	else if (options_flag(&given, "version"))
		puts("additive-eval " ADDITIVE_VERSION);
	else
		ended = start(&given);
	options_free(&given);
	return ended;
}
