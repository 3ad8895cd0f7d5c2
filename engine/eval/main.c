/* additive-eval: run a model once over given token ids and write down everything it
 * computed, for tests, comparisons and bug reports. It needs the compute core only.
 *
 * Both forms of the model are driven by one loop over chunks of the sequence: the parallel
 * form is a single chunk of all N tokens, the recurrent form N chunks of one token read
 * into B slots of a state pool. Columns of the inputs are cut out before each chunk and
 * rows of the outputs are put in their place after it. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/threads.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"

enum { EXIT_ERROR = 1, EXIT_USAGE = 2, MAX_THREADS = 4096, NAME_BYTES = 160 };
#define IGNORED_LABEL (-100) /* in files, as the reference ecosystem has it */

static const char usage[] =
    "usage: additive-eval --model DIR --inputs FILE --outputs FILE [options]\n"
    "  --model DIR            a folder with config.json and model.safetensors\n"
    "  --inputs FILE          safetensors with input_ids [B,N] and, optionally, attention_mask [B,N]\n"
    "                         and labels [B,N] (not shifted; -100 is ignored; default: input_ids\n"
    "                         where they are not masked); other tensors are ignored\n"
    "  --outputs FILE         safetensors with logits [B,N,V], loss, and of every layer L and round R\n"
    "                         layers.L.R.score and .log_normalizer [B,N,H] and .pooled [B,N,D]\n"
    "  --gradients            also d loss / d NAME as grad.NAME for every parameter\n"
    "  --recurrent            read token by token into recurrent state instead of all at once\n"
    "  --label-smoothing E    of the loss, from 0 to below 1 (default 0)\n"
    "  --backend NAME         cpu (default), cuda, auto, or reference (slow, plain double-precision sums)\n"
    "  --threads N            CPU threads (default 0: all cores)\n"
    "  --help\n";

typedef struct options {
	const char *model, *inputs, *outputs, *backend;
	bool gradients, recurrent;
	double smoothing;
	long threads;
} options;

/* The inputs, [B,N] each. */
typedef struct batch {
	int64_t sequences, length;
	int32_t *ids, *positions;
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

/* 0, or the exit status after a message (-1: help was asked for). */
static int parse_options(options *o, int argc, char **argv)
{
	static const struct option longs[] = {
	    {"model", required_argument, NULL, 'm'},   {"inputs", required_argument, NULL, 'i'},
	    {"outputs", required_argument, NULL, 'o'}, {"backend", required_argument, NULL, 'b'},
	    {"threads", required_argument, NULL, 't'}, {"label-smoothing", required_argument, NULL, 's'},
	    {"gradients", no_argument, NULL, 'g'},     {"recurrent", no_argument, NULL, 'r'},
	    {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0},
	};
	double number;
	*o = (options){.backend = "cpu"};
	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		const char **text = c == 'm' ? &o->model : c == 'i' ? &o->inputs : c == 'o' ? &o->outputs : &o->backend;
		if (c == 'h')
			return -1;
		if (c == '?')
			return EXIT_USAGE;
		if (c == 'g')
			o->gradients = true;
		else if (c == 'r')
			o->recurrent = true;
		else if (c == 's' && parse_number(optarg, 0, 1, &number))
			o->smoothing = number;
		else if (c == 't' && parse_number(optarg, 0, MAX_THREADS, &number) && number == (double)(long)number)
			o->threads = (long)number;
		else if (c == 's' || c == 't')
			return fprintf(stderr, "additive-eval: \"%s\" is out of range\n", optarg), EXIT_USAGE;
		else
			*text = optarg;
	}
	if (!o->model || !o->inputs || !o->outputs || optind < argc)
		return fprintf(stderr, "additive-eval: needs --model, --inputs and --outputs and nothing else\n"),
		       EXIT_USAGE;
	if (o->gradients && o->recurrent)
		return fprintf(stderr, "additive-eval: --gradients needs the parallel form\n"), EXIT_USAGE;
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

static status fill_batch(batch *in, const safetensors *st, const model_dims *dims, error *err)
{
	const safetensors_entry *ids = safetensors_find(st, "input_ids");
	if (!ids)
		return error_set(err, STATUS_INVALID, "input_ids", "the inputs hold no tensor input_ids");
	if (ids->rank != 2 || ids->count < 1)
		return error_set(err, STATUS_INVALID, "input_ids",
		                 "input_ids must be [sequences, tokens] and not empty");
	in->sequences = ids->dim[0];
	in->length = ids->dim[1];
	if (in->length > dims->positions)
		return error_set(err, STATUS_INVALID, "input_ids",
		                 "input_ids has %" PRId64 " tokens per sequence, the model has %" PRId64 " positions",
		                 in->length, dims->positions);
	int32_t *given = NULL;
	status s = read_tokens(in, st, "input_ids", dims->vocab, 0, &in->ids, err);
	if (s == STATUS_OK)
		s = read_tokens(in, st, "attention_mask", 2, 0, &in->mask, err);
	if (s == STATUS_OK)
		s = read_tokens(in, st, "labels", dims->vocab, IGNORED_LABEL, &given, err);
	if (s == STATUS_OK) {
		in->labels = memory_new((size_t)ids->count, sizeof *in->labels);
		in->positions = memory_new((size_t)ids->count, sizeof *in->positions);
		if (!in->labels || !in->positions)
			s = no_memory(err);
	}
	if (s == STATUS_OK) {
		shift_labels(in, given);
		for (int64_t i = 0; i < ids->count; i++)
			in->positions[i] = (int32_t)(i % in->length);
	}
	free(given);
	return s;
}

static status read_inputs(evaluation *e, error *err)
{
	safetensors *st;
	TRY(safetensors_open(&st, e->options.inputs, err));
	status s = fill_batch(&e->batch, st, model_dimensions(e->model), err);
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

/* The outputs that have a row per token: logits, then three per layer and round. */
static int token_output_count(const model *m)
{
	return 1 + (int)model_dimensions(m)->layers * model_architecture(m)->n_rounds * 3;
}

static void token_output_name(const model *m, int index, char name[NAME_BYTES])
{
	static const char *const kinds[] = {"score", "log_normalizer", "pooled"};
	const architecture *a = model_architecture(m);
	int i = index - 1;
	if (index == 0)
		snprintf(name, NAME_BYTES, "logits");
	else
		snprintf(name, NAME_BYTES, "layers.%d.%s.%s", i / 3 / a->n_rounds, a->rounds[i / 3 % a->n_rounds],
		         kinds[i % 3]);
}

/* Room for all results, and the per-token ones themselves in the order of their index. */
static status make_results(evaluation *e, error *err)
{
	int tokens = token_output_count(e->model);
	e->results.items = memory_new((size_t)(tokens + 1 + model_parameter_total(e->model)), sizeof(safetensors_item));
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
	forward_spec spec = {
	    .batch = in->sequences,
	    .length = e->chunk,
	    .recurrent = e->options.recurrent,
	    .slots = in->sequences,
	    .masked = in->mask != NULL,
	    .loss = true,
	    .backward = e->options.gradients,
	    .explain = true,
	    .pooled = true,
	    .logits = LOGITS_ALL,
	    .smoothing = (float)e->options.smoothing,
	};
	size_t bytes = (size_t)model_state_floats(e->model) * sizeof(float), all;
	if (spec.recurrent) {
		if (__builtin_mul_overflow(bytes, (size_t)spec.slots, &all))
			return no_memory(err);
		status s = e->backend->allocate(e->backend, all, (void **)&e->pool);
		if (s != STATUS_OK)
			return error_set(err, s, NULL, "cannot allocate %zu bytes of recurrent state", all);
	}
	return model_plan(&e->plan, e->model, &spec, NULL, e->pool, err);
}

/* Columns begin … begin + chunk - 1 of a [B,N] input; scratch holds [B,chunk]. */
static status write_columns(const evaluation *e, const char *name, const int32_t *from, int64_t begin, int32_t *scratch)
{
	value input = graph_find(plan_graph(e->plan), name);
	if (!from)
		return STATUS_OK;
	for (int64_t b = 0; b < e->batch.sequences; b++)
		memcpy(scratch + b * e->chunk, from + b * e->batch.length + begin, (size_t)e->chunk * sizeof *scratch);
	return plan_write(e->plan, input, scratch);
}

/* A recurrent input that is a value per sequence: first, first + step, … */
static status write_per_sequence(const evaluation *e, const char *name, int64_t first, int64_t step, int32_t *scratch)
{
	for (int64_t b = 0; b < e->batch.sequences; b++)
		scratch[b] = (int32_t)(first + b * step);
	return plan_write(e->plan, graph_find(plan_graph(e->plan), name), scratch);
}

static status write_chunk(const evaluation *e, int64_t begin, int32_t *scratch)
{
	TRY(write_columns(e, "input_ids", e->batch.ids, begin, scratch));
	TRY(write_columns(e, "position_ids", e->batch.positions, begin, scratch));
	TRY(write_columns(e, "attention_mask", e->batch.mask, begin, scratch));
	TRY(write_columns(e, "labels", e->batch.labels, begin, scratch));
	if (!e->options.recurrent)
		return STATUS_OK;
	TRY(write_per_sequence(e, "slot", 0, 1, scratch));
	TRY(write_per_sequence(e, "position", begin, 0, scratch));
	return write_per_sequence(e, "length", e->chunk, 0, scratch);
}

/* Put the chunk's rows of every per-token output in their place; scratch holds the largest. */
static status read_chunk(evaluation *e, int64_t begin, float *scratch)
{
	const graph *g = plan_graph(e->plan);
	float loss, count;
	for (int i = 0; i < token_output_count(e->model); i++) {
		const safetensors_item *item = &e->results.items[i];
		int64_t width = item->dim[2];
		TRY(plan_read(e->plan, graph_find(g, item->name), scratch));
		for (int64_t b = 0; b < e->batch.sequences; b++)
			memcpy((float *)(uintptr_t)item->data + (b * e->batch.length + begin) * width,
			       scratch + b * e->chunk * width, (size_t)(e->chunk * width) * sizeof *scratch);
	}
	TRY(plan_read(e->plan, graph_find(g, "loss"), &loss));
	TRY(plan_read(e->plan, graph_find(g, "count"), &count));
	e->loss_sum += (double)loss * (double)count;
	e->loss_count += (double)count;
	return STATUS_OK;
}

static status run_chunks(evaluation *e, error *err)
{
	int64_t rows = e->batch.sequences * e->chunk, widest = 0;
	for (int i = 0; i < token_output_count(e->model); i++)
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
	float *loss = results_add(&e->results, SHAPE0(), "loss");
	if (!loss)
		return no_memory(err);
	*loss = e->loss_count > 0 ? (float)(e->loss_sum / e->loss_count) : 0;
	return STATUS_OK;
}

static status add_gradients(evaluation *e, error *err)
{
	const graph *g = plan_graph(e->plan);
	for (int i = 0; i < model_parameter_total(e->model); i++) {
		char name[NAME_BYTES];
		snprintf(name, sizeof name, "grad.%s", model_parameter(e->model, i)->name);
		value v = graph_find(g, name);
		float *data = results_add(&e->results, model_parameter(e->model, i)->shape, name);
		if (!data)
			return no_memory(err);
		if (v == VALUE_NONE)
			continue; /* the loss does not depend on it: zero */
		status s = plan_read(e->plan, v, data);
		if (s != STATUS_OK)
			return error_set(err, s, NULL, "cannot read a gradient");
	}
	return STATUS_OK;
}

/* --- main -------------------------------------------------------------------------------------- */

/* *blame is the argument that a failure is about. */
static status evaluate(evaluation *e, const char **blame, error *err)
{
	bool reference = strcmp(e->options.backend, "reference") == 0;
	*blame = e->options.backend;
	TRY(backend_open(&e->backend, reference ? "cpu" : e->options.backend, reference ? cpu_reference_open : cpu_open,
	                 (int)e->options.threads, err));
	*blame = e->options.model;
	TRY(model_open(&e->model, e->options.model, e->backend, err));
	*blame = e->options.inputs;
	TRY(read_inputs(e, err));
	e->chunk = e->options.recurrent ? 1 : e->batch.length;
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
	free(e->batch.positions);
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
