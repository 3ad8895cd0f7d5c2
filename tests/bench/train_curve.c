/* train_curve - train on a text and print the curve, one JSON object per line.
 *
 *   train_curve TEXT CONFIG OPTIONS SEED [VALID [FOLDER [TOKENIZER]]]
 *
 * TEXT is a file; CONFIG (keys of config.json; "model_type" chooses the architecture) and OPTIONS (keys of
 * train_options_read; "objective": "classification" wants labelled JSON lines) are files or JSON text. SEED chooses the
 * initial weights, the order of the blocks and the dropout. VALID is a file of held-out text; without it, or when it is
 * "-", the last tenth of TEXT is held out. The model is saved into FOLDER, if that is not "-". TOKENIZER is a
 * specification such as {"type": "sentencepiece", "vocab_size": 8000}, which is trained on TEXT; without it tokens are
 * bytes. On the backend that ADDITIVE_BENCH_BACKEND
 * names; OMP_NUM_THREADS limits the CPU's threads. tests/reference/train.py is its counterpart in PyTorch.
 *
 *   {"step": 1, "train_loss": 5.561, "gradient_norm": 1.2}
 *   {"step": 600, "valid_loss": 2.4, "bits_per_byte": 3.46}
 *   {"seconds": 123, "tokens_per_second": 20000, "device": "…"} */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/cpu/threads.h"
#include "engine/text/labelled.h"
#include "engine/text/text_reader.h"
#include "engine/train/objective.h"
#include "tests/bench/support/bench.h"
#include "tests/unit/support/datasets.h"

static const double held_out = 0.1;

typedef struct arguments {
	const char *text, *config, *options, *seed, *valid, *folder, *tokenizer; /* the last three: NULL when absent */
} arguments;

/* The data of a run; freed in reverse. */
typedef struct run {
	json_t *config, *options_json, *tokenizer_json;
	train_options options;
	file_map text, valid_text;
	backend *backend;
	tokenizer *tokenizer;
	dataset *train, *valid;
	trainer *trainer;
} run;

/* Set the counts of tokens in the training text, without the held-out part, for architectures that need them. */
static status set_counts(const run *r, model *m, error *err)
{
	if (!model_architecture(m)->counts_tokens)
		return STATUS_OK;
	int64_t *counts = memory_new((size_t)model_dimensions(m)->outputs, sizeof *counts);
	status s = counts ? dataset_count(r->train, counts, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = model_set_counts(m, counts, err);
	free(counts);
	return s;
}

/* A JSON object from a file, or from the argument itself when it begins with a brace. */
static json_t *read_json(const char *argument)
{
	json_error_t where;
	json_t *json = *argument == '{' ? json_loads(argument, 0, &where) : json_load_file(argument, 0, &where);
	if (!json)
		fprintf(stderr, "%s: line %d: %s\n", argument, where.line, where.text);
	return json;
}

static status read_labelled(run *r, int64_t length, error *err)
{
	const char *text = (const char *)r->text.data, *valid = (const char *)r->valid_text.data;
	if (!valid)
		return labelled_split(&r->train, &r->valid, r->tokenizer, text, r->text.bytes, length, held_out, err);
	TRY(labelled_new(&r->train, r->tokenizer, text, r->text.bytes, length, NULL, err));
	return labelled_new(&r->valid, r->tokenizer, valid, r->valid_text.bytes, length, labelled_classes(r->train),
	                    err);
}

static status make_tokenizer(run *r, const char *path, error *err)
{
	text_reader *reader;
	TRY(text_reader_new(&reader, &path, 1));
	text_source source = text_reader_source(reader);
	status s = tokenizer_train(&r->tokenizer, r->tokenizer_json, &source, err);
	text_reader_free(reader);
	return s;
}

static status read_texts(run *r, const arguments *a, error *err)
{
	int64_t length = r->options.sequence_length;
	TRY(make_tokenizer(r, a->text, err));
	TRY(file_map_open(&r->text, a->text, err));
	if (a->valid)
		TRY(file_map_open(&r->valid_text, a->valid, err));
	if (r->options.objective->records == RECORD_LABELLED)
		return read_labelled(r, length, err);
	const char *text = (const char *)r->text.data;
	if (!a->valid)
		return dataset_split(&r->train, &r->valid, r->tokenizer, text, r->text.bytes, length, held_out, err);
	TRY(dataset_new(&r->train, r->tokenizer, text, r->text.bytes, length, err));
	return dataset_new(&r->valid, r->tokenizer, (const char *)r->valid_text.data, r->valid_text.bytes, length, err);
}

static status prepare(run *r, const arguments *a, error *err)
{
	model *m;
	r->config = read_json(a->config);
	r->options_json = read_json(a->options);
	r->tokenizer_json = a->tokenizer ? read_json(a->tokenizer) : NULL;
	if (!r->config || !r->options_json || (a->tokenizer && !r->tokenizer_json))
		return error_set(err, STATUS_INVALID, NULL, "CONFIG, OPTIONS and TOKENIZER must be JSON");
	const architecture *kind = architecture_of(r->config);
	if (!kind)
		return error_set(err, STATUS_INVALID, "model_type", "unknown");
	train_options_default(&r->options);
	TRY(train_options_read(&r->options, r->options_json, NULL, err));
	r->options.seed = strtoull(a->seed, NULL, 10);
	TRY(read_texts(r, a, err));
	r->backend = bench_backend();
	TRY(model_create(&m, kind, r->config, r->options.seed, r->backend, err));
	status s = set_counts(r, m, err);
	if (s != STATUS_OK) {
		model_free(m);
		return s;
	}
	return trainer_new(&r->trainer, m, &r->options, r->train, r->valid, err);
}

static void print_evaluation(const train_progress *p)
{
	printf("{\"step\": %lld, \"valid_loss\": %.9g", (long long)p->step, p->valid_loss);
	for (int i = 0; p->objective->metrics[i]; i++)
		printf(", \"%s\": %.9g", p->objective->metrics[i], p->metrics[i]);
	printf("}\n");
}

static status train(run *r, error *err)
{
	uint64_t began = clock_ns();
	const train_progress *p = trainer_progress(r->trainer);
	for (unsigned events = 0; !(events & TRAIN_FINISHED);) {
		TRY(trainer_advance(r->trainer, 0, &events, err));
		if (events & TRAIN_STEP)
			printf("{\"step\": %lld, \"train_loss\": %.9g, \"gradient_norm\": %.9g}\n", (long long)p->step,
			       p->train_loss, p->gradient_norm);
		if (events & TRAIN_EVAL)
			print_evaluation(p);
		fflush(stdout);
	}
	double seconds = (double)(clock_ns() - began) * 1e-9;
	printf("{\"seconds\": %.1f, \"tokens_per_second\": %.0f, \"tokens\": %lld, \"vocabulary\": %d, \"device\": "
	       "\"%s\"}\n",
	       seconds, p->tokens_per_second, (long long)dataset_tokens(r->train), (int)tokenizer_size(r->tokenizer),
	       r->backend->device);
	return STATUS_OK;
}

static void release(run *r)
{
	trainer_free(r->trainer);
	dataset_free(r->valid);
	dataset_free(r->train);
	tokenizer_free(r->tokenizer);
	backend_close(r->backend);
	file_map_close(&r->valid_text);
	file_map_close(&r->text);
	json_decref(r->tokenizer_json);
	json_decref(r->options_json);
	json_decref(r->config);
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	if (argc < 5 || argc > 8) {
		fprintf(stderr, "usage: train_curve TEXT CONFIG OPTIONS SEED [VALID [FOLDER [TOKENIZER]]]\n");
		return 2;
	}
	arguments a = {argv[1], argv[2], argv[3], argv[4], NULL, NULL, NULL};
	if (argc > 5 && strcmp(argv[5], "-") != 0)
		a.valid = argv[5];
	if (argc > 6 && strcmp(argv[6], "-") != 0)
		a.folder = argv[6];
	if (argc > 7)
		a.tokenizer = argv[7];
	run r = {0};
	error err = ERROR_INIT;
	status s = prepare(&r, &a, &err);
	if (s == STATUS_OK)
		s = train(&r, &err);
	if (s == STATUS_OK && a.folder)
		s = trainer_save(r.trainer, r.tokenizer, a.folder, "step", NULL, &err);
	if (s != STATUS_OK)
		fprintf(stderr, "train_curve: %s%s%s\n", err.param, err.param[0] ? ": " : "", error_message(&err));
	release(&r);
	return s == STATUS_OK ? 0 : 1;
}
