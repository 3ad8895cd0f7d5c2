/* additive-eval: run a model once over given token ids and write down everything it
 * computed, for tests, comparisons and bug reports. It needs the compute core only.
 *
 * Both forms of the model are driven by one loop over chunks of the sequence: the parallel
 * form is a single chunk of all N tokens, the recurrent form chunks of a few tokens read
 * into B slots of a state pool. Columns of the inputs are cut out before each chunk (the last one is filled
 * up with tokens that are not read) and rows of the outputs are put in their place after it. With
 * --loss-only nothing is kept of a chunk but its part of the loss. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/threads.h"
#include "engine/model/feed.h"
#include "engine/model/safetensors.h"

enum { EXIT_ERROR = 1, EXIT_USAGE = 2, MAX_THREADS = 4096, MAX_CHUNK = 1 << 24, NAME_BYTES = 160 };
#define IGNORED_LABEL (-100) /* in files, as the reference ecosystem has it */

static const char usage[] =
    "usage: additive-eval --model DIR --inputs FILE --outputs FILE [options]\n"
    "  --model DIR            a folder with config.json and model.safetensors\n"
    "  --inputs FILE          safetensors with input_ids [B,N] and, optionally, attention_mask [B,N]\n"
    "                         and labels [B,N] (not shifted; -100 is ignored; default: input_ids\n"
    "                         where they are not masked); other tensors are ignored\n"
    "  --outputs FILE         safetensors with logits [B,N,V], loss, the count of tokens it is the mean of, and\n"
    "                         of every layer L and round R (if the architecture has rounds)\n"
    "                         layers.L.R.score and .log_normalizer [B,N,H] and .pooled [B,N,D]\n"
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

typedef struct options {
	const char *model, *inputs, *outputs, *backend;
	bool gradients, recurrent, loss_only, bf16;
	double smoothing;
	long threads, chunk;
	position_policy policy;
	dtype weights;
} options;

/* The inputs, [B,N] each. */
typedef struct batch {
	int64_t sequences, length;
	int32_t *ids;
	int32_t *mask;   /* NULL: nothing is masked */
	int32_t *labels; /* shifted: of position i the token at i + 1; negative: ignored */
} batch;

/* Tensors to be written; names and data are owned. */
typedef struct results {
	safetensors_item *items;
	int count;
} results;

typedef struct evaluation {
	options options;
	backend *backend;
	model *model;
	plan *plan;
	float *pool;   /* device memory; NULL in the parallel form */
	int64_t chunk; /* tokens per run */
	batch batch;
	results results;
	double loss_sum, loss_count;
} evaluation;

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

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
	case 'o':
		o->outputs = text;
		break;
	case 'b':
		o->backend = text;
		break;
	case 'g':
		o->gradients = true;
		break;
	case 'r':
		o->recurrent = true;
		break;
	case 'l':
		o->loss_only = true;
		break;
	case 's':
		good = parse_number(text, 0, 1, &o->smoothing);
		break;
	case 't':
		good = parse_long(text, 0, MAX_THREADS, &o->threads);
		break;
	case 'c':
		good = parse_long(text, 1, MAX_CHUNK, &o->chunk);
		break;
	case 'p':
		good = parse_word(text, policies, 3, &choice);
		o->policy = (position_policy)choice;
		break;
	case 'd':
		good = parse_word(text, types, 3, &choice);
		o->weights = (dtype)choice;
		break;
	case 'x':
		good = parse_word(text, precisions, 2, &choice);
		o->bf16 = choice;
		break;
	}
	return good;
}

static int wrong_usage(const char *why)
{
	fprintf(stderr, "additive-eval: %s\n", why);
	return EXIT_USAGE;
}

/* 0, or the exit status after a message (-1: help was asked for). */
static int parse_options(options *o, int argc, char **argv)
{
	static const struct option longs[] = {
	    {"model", required_argument, NULL, 'm'},
	    {"inputs", required_argument, NULL, 'i'},
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
	if (!o->model || !o->inputs || !o->outputs || optind < argc)
		return wrong_usage("needs --model, --inputs and --outputs and nothing else");
	if (o->gradients && o->recurrent)
		return wrong_usage("--gradients needs the parallel form");
	if (o->gradients && o->weights != DTYPE_F32)
		return wrong_usage("packed weights have no gradients");
	if (o->bf16 && (o->recurrent || o->weights != DTYPE_F32))
		return wrong_usage("--precision bf16 needs the parallel form and weights that are not packed");
	if (o->chunk && !o->recurrent)
		return wrong_usage("--chunk needs --recurrent");
	return 0;
}

/* --- inputs --------------------------------------------------------------------------- */

/* A tensor of the batch's shape with every value in 0 … limit-1 (or `exception`), as
 * int32; *out stays NULL when it is absent. */
static status read_tokens(const batch *in, const safetensors *st, const char *name, int64_t limit, int32_t exception,
                          int32_t **out, error *err)
{
	*out = NULL;
	const safetensors_entry *e = safetensors_find(st, name);
	if (!e)
		return STATUS_OK;
	if (e->rank != 2 || e->dim[0] != in->sequences || e->dim[1] != in->length)
		return error_set(err, STATUS_INVALID, name,
		                 "%s must have the shape of input_ids, [%" PRId64 ", %" PRId64 "]", name, in->sequences,
		                 in->length);
	*out = memory_new((size_t)e->count, sizeof **out);
	if (!*out)
		return no_memory(err);
	TRY(safetensors_read_i32(e, *out, err));
	for (int64_t i = 0; i < e->count; i++)
		if (((*out)[i] < 0 || (*out)[i] >= limit) && (*out)[i] != exception)
			return error_set(err, STATUS_INVALID, name,
			                 "%s[%" PRId64 ", %" PRId64 "] is %" PRId32 ", which is not from 0 to %" PRId64,
			                 name, i / in->length, i % in->length, (*out)[i], limit - 1);
	return STATUS_OK;
}

/* Turn labels as files have them (of position i the token at i) into labels of the next
 * token. Without labels the unmasked tokens are their own. */
static void shift_labels(batch *in, const int32_t *given)
{
	for (int64_t i = 0; i < in->sequences * in->length; i++) {
		int32_t next = IGNORED_LABEL;
		if ((i + 1) % in->length != 0)
			next = given ? given[i + 1] : in->mask && !in->mask[i + 1] ? IGNORED_LABEL : in->ids[i + 1];
		in->labels[i] = next;
	}
}

static status fill_batch(batch *in, const safetensors *st, const model_dims *dims, position_policy policy, error *err)
{
	const safetensors_entry *ids = safetensors_find(st, "input_ids");
	if (!ids)
		return error_set(err, STATUS_INVALID, "input_ids", "the inputs hold no tensor input_ids");
	if (ids->rank != 2 || ids->count < 1)
		return error_set(err, STATUS_INVALID, "input_ids",
		                 "input_ids must be [sequences, tokens] and not empty");
	in->sequences = ids->dim[0];
	in->length = ids->dim[1];
	if (policy == POSITION_ERROR && in->length > dims->positions)
		return error_set(err, STATUS_INVALID, "input_ids",
		                 "input_ids has %" PRId64 " tokens per sequence, the model has %" PRId64 " positions",
		                 in->length, dims->positions);
	int32_t *given = NULL;
	status s = read_tokens(in, st, "input_ids", dims->inputs, 0, &in->ids, err);
	if (s == STATUS_OK)
		s = read_tokens(in, st, "attention_mask", 2, 0, &in->mask, err);
	if (s == STATUS_OK)
		s = read_tokens(in, st, "labels", dims->outputs, IGNORED_LABEL, &given, err);
	if (s == STATUS_OK) {
		in->labels = memory_new((size_t)ids->count, sizeof *in->labels);
		if (!in->labels)
			s = no_memory(err);
	}
	if (s == STATUS_OK)
		shift_labels(in, given);
	free(given);
	return s;
}

static status read_inputs(evaluation *e, error *err)
{
	safetensors *st;
	TRY(safetensors_open(&st, e->options.inputs, err));
	status s = fill_batch(&e->batch, st, model_dimensions(e->model), e->options.policy, err);
	safetensors_close(st);
	return s;
}

/* --- results --------------------------------------------------------------------------- */

/* A zeroed f32 tensor of that shape; NULL when out of memory. */
static float *results_add(results *r, shape s, const char *name)
{
	safetensors_item *item = &r->items[r->count];
	char *copy = strdup(name);
	float *data = memory_new((size_t)shape_count(s), sizeof *data);
	if (!copy || !data) {
		free(copy);
		free(data);
		return NULL;
	}
	*item = (safetensors_item){.name = copy, .type = ST_F32, .rank = s.rank, .data = data};
	memcpy(item->dim, s.dim, (size_t)s.rank * sizeof *s.dim);
	r->count++;
	return data;
}

static void results_free(results *r)
{
	for (int i = 0; i < r->count; i++) {
		free((void *)(uintptr_t)r->items[i].name);
		free((void *)(uintptr_t)r->items[i].data);
	}
	free(r->items);
}

static int rounds_of(const model *m)
{
	return model_explainer(m) ? model_explainer(m)->n_rounds : 0;
}

/* The outputs that have a row per token: logits, then three per layer and round. */
static int token_output_count(const evaluation *e)
{
	if (e->options.loss_only)
		return 0;
	return 1 + (int)model_dimensions(e->model)->layers * rounds_of(e->model) * 3;
}

static void token_output_name(const model *m, int index, char name[NAME_BYTES])
{
	static const char *const kinds[] = {"score", "log_normalizer", "pooled"};
	const explainer *x = model_explainer(m);
	int i = index - 1;
	if (index == 0)
		snprintf(name, NAME_BYTES, "logits");
	else
		snprintf(name, NAME_BYTES, "layers.%d.%s.%s", i / 3 / x->n_rounds, x->rounds[i / 3 % x->n_rounds],
		         kinds[i % 3]);
}

/* Room for all results, and the per-token ones themselves in the order of their index. */
static status make_results(evaluation *e, error *err)
{
	int tokens = token_output_count(e);
	e->results.items = memory_new((size_t)(tokens + 2 + model_parameter_total(e->model)), sizeof(safetensors_item));
	if (!e->results.items)
		return no_memory(err);
	for (int i = 0; i < tokens; i++) {
		char name[NAME_BYTES];
		token_output_name(e->model, i, name);
		const graph *g = plan_graph(e->plan);
		int64_t width = shape_last(graph_value(g, graph_find(g, name))->shape);
		shape s = SHAPE3(e->batch.sequences, e->batch.length, width);
		if (shape_check(s) != STATUS_OK || !results_add(&e->results, s, name))
			return no_memory(err);
	}
	return STATUS_OK;
}

/* --- the run ------------------------------------------------------------------------------ */

static status make_plan(evaluation *e, error *err)
{
	const batch *in = &e->batch;
	bool rounds = !e->options.loss_only && rounds_of(e->model) > 0;
	forward_spec spec = {
	    .phase = e->options.recurrent ? PHASE_STEP : PHASE_SCORE,
	    .batch = in->sequences,
	    .length = e->chunk,
	    .slots = in->sequences,
	    .masked = in->mask != NULL,
	    .loss = true,
	    .backward = e->options.gradients,
	    .explain = rounds,
	    .activations = rounds,
	    .bf16 = e->options.bf16,
	    .logits = e->options.loss_only ? LOGITS_NONE : LOGITS_ALL,
	    .smoothing = (float)e->options.smoothing,
	};
	size_t bytes = (size_t)model_state_floats(e->model) * sizeof(float), all;
	if (forward_recurrent(&spec)) {
		if (__builtin_mul_overflow(bytes, (size_t)spec.slots, &all))
			return no_memory(err);
		status s = e->backend->allocate(e->backend, all, (void **)&e->pool);
		if (s != STATUS_OK)
			return error_set(err, s, NULL, "cannot allocate %zu bytes of recurrent state", all);
	}
	if (spec.bf16)
		TRY(model_narrow(e->model, err));
	return model_plan(&e->plan, e->model, &spec, NULL, e->pool, err);
}

/* Tokens of the chunk that begins there. */
static int64_t chunk_length(const evaluation *e, int64_t begin)
{
	int64_t left = e->batch.length - begin;
	return left < e->chunk ? left : e->chunk;
}

/* The chunk's columns of a [B,N] input, and `filling` after them; scratch holds [B,chunk]. */
static status write_columns(const evaluation *e, port_role role, const int32_t *from, int64_t begin, int32_t filling,
                            int32_t *scratch)
{
	int64_t n = chunk_length(e, begin);
	if (!from)
		return STATUS_OK;
	for (int64_t b = 0; b < e->batch.sequences; b++)
		for (int64_t i = 0; i < e->chunk; i++)
			scratch[b * e->chunk + i] = i < n ? from[b * e->batch.length + begin + i] : filling;
	return feed_write(e->plan, role, scratch);
}

static status write_chunk(const evaluation *e, int64_t begin, int32_t *scratch)
{
	TRY(write_columns(e, PORT_TOKENS, e->batch.ids, begin, 0, scratch));
	TRY(write_columns(e, PORT_MASK, e->batch.mask, begin, 0, scratch));
	TRY(write_columns(e, PORT_LABELS, e->batch.labels, begin, IGNORED_LABEL, scratch));
	TRY(feed_positions(e->plan, model_dimensions(e->model), e->options.policy, begin));
	return e->options.recurrent ? feed_step(e->plan, begin, chunk_length(e, begin)) : STATUS_OK;
}

/* Put the chunk's rows of every per-token output in their place; scratch holds the largest. */
static status read_chunk(evaluation *e, int64_t begin, float *scratch)
{
	const graph *g = plan_graph(e->plan);
	float loss, count;
	for (int i = 0; i < token_output_count(e); i++) {
		const safetensors_item *item = &e->results.items[i];
		int64_t width = item->dim[2];
		TRY(plan_read(e->plan, graph_find(g, item->name), scratch));
		for (int64_t b = 0; b < e->batch.sequences; b++)
			memcpy((float *)(uintptr_t)item->data + (b * e->batch.length + begin) * width,
			       scratch + b * e->chunk * width,
			       (size_t)(chunk_length(e, begin) * width) * sizeof *scratch);
	}
	TRY(plan_read(e->plan, port_find(g, PORT_LOSS), &loss));
	TRY(plan_read(e->plan, port_find(g, PORT_COUNT), &count));
	e->loss_sum += (double)loss * (double)count;
	e->loss_count += (double)count;
	return STATUS_OK;
}

static status run_chunks(evaluation *e, error *err)
{
	int64_t rows = e->batch.sequences * e->chunk, widest = 0;
	for (int i = 0; i < token_output_count(e); i++)
		widest = e->results.items[i].dim[2] > widest ? e->results.items[i].dim[2] : widest;
	float *scratch = memory_new((size_t)(rows * widest), sizeof *scratch);
	int32_t *columns = memory_new((size_t)rows, sizeof *columns);
	status s = scratch && columns ? STATUS_OK : no_memory(err);
	for (int64_t begin = 0; begin < e->batch.length && s == STATUS_OK; begin += e->chunk) {
		s = write_chunk(e, begin, columns);
		if (s == STATUS_OK)
			s = plan_run(e->plan);
		if (s == STATUS_OK)
			s = read_chunk(e, begin, scratch);
	}
	free(scratch);
	free(columns);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "the run failed on %s", e->backend->name);
}

static status add_loss(evaluation *e, error *err)
{
	float *loss = results_add(&e->results, SHAPE0(), "loss"), *count = results_add(&e->results, SHAPE0(), "count");
	if (!loss || !count)
		return no_memory(err);
	*loss = e->loss_count > 0 ? (float)(e->loss_sum / e->loss_count) : 0;
	*count = (float)e->loss_count;
	return STATUS_OK;
}

/* In the layout that the parameter has in a checkpoint. */
static status add_gradient(evaluation *e, const parameter_spec *p, error *err)
{
	char name[NAME_BYTES];
	snprintf(name, sizeof name, "grad.%s", p->name);
	value v = graph_find(plan_graph(e->plan), name);
	float *data = results_add(&e->results, parameter_stored_shape(p), name);
	if (!data)
		return no_memory(err);
	if (v == VALUE_NONE)
		return STATUS_OK; /* the loss does not depend on it: zero */
	float *gradient = memory_new((size_t)shape_count(p->shape), sizeof *gradient);
	if (!gradient)
		return no_memory(err);
	status s = plan_read(e->plan, v, gradient);
	if (s == STATUS_OK)
		parameter_store(p, gradient, data);
	else
		error_set(err, s, NULL, "cannot read a gradient");
	free(gradient);
	return s;
}

static status add_gradients(evaluation *e, error *err)
{
	for (int i = 0; i < model_parameter_total(e->model); i++)
		TRY(add_gradient(e, model_parameter(e->model, i), err));
	return STATUS_OK;
}

/* --- main -------------------------------------------------------------------------------------- */

/* *blame is the argument that a failure is about. */
static status evaluate(evaluation *e, const char **blame, error *err)
{
	bool reference = strcmp(e->options.backend, "reference") == 0;
	*blame = e->options.backend;
	TRY(backend_open(&e->backend, reference ? "cpu" : e->options.backend, NULL,
	                 reference ? cpu_reference_open : cpu_open, (int)e->options.threads, err));
	if (e->options.bf16 && !e->backend->bf16)
		return error_set(err, STATUS_UNSUPPORTED, "precision",
		                 "--precision bf16: this backend computes in fp32 only");
	*blame = e->options.model;
	TRY(model_open(&e->model, e->options.model, e->options.weights, e->backend, err));
	*blame = e->options.inputs;
	TRY(read_inputs(e, err));
	e->chunk = e->options.chunk ? e->options.chunk : 1;
	if (!e->options.recurrent || e->chunk > e->batch.length)
		e->chunk = e->batch.length;
	TRY(make_plan(e, err));
	TRY(make_results(e, err));
	TRY(run_chunks(e, err));
	TRY(add_loss(e, err));
	if (e->options.gradients)
		TRY(add_gradients(e, err));
	*blame = e->options.outputs;
	return safetensors_write(e->options.outputs, e->results.items, e->results.count, NULL, err);
}

static void evaluation_free(evaluation *e)
{
	results_free(&e->results);
	plan_free(e->plan);
	model_free(e->model);
	if (e->backend)
		e->backend->release(e->backend, e->pool);
	backend_close(e->backend);
	free(e->batch.ids);
	free(e->batch.mask);
	free(e->batch.labels);
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	evaluation e = {0};
	error err = ERROR_INIT;
	const char *blame;
	int wrong = parse_options(&e.options, argc, argv);
	if (wrong) {
		fputs(usage, wrong < 0 ? stdout : stderr);
		return wrong < 0 ? 0 : wrong;
	}
	status s = evaluate(&e, &blame, &err);
	if (s != STATUS_OK)
		fprintf(stderr, "additive-eval: %s: %s\n", blame, err.message[0] ? err.message : status_text(s));
	evaluation_free(&e);
	return s == STATUS_OK ? 0 : EXIT_ERROR;
}
