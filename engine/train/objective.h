/* objective.h - training objectives.
 *
 * An objective is one source in objectives/ that defines the constant `objective_NAME`; the build makes the list of
 * them. It states which records of a dataset it learns from, how a record becomes the values of a forward's ports, and
 * what an evaluation reports. The loss is the cross entropy of the model's head, with label smoothing in training, or a
 * function of whole sequences that the objective computes itself (`weigh`).
 * Everything here is immutable; any thread may call the functions. */
#ifndef ENGINE_TRAIN_OBJECTIVE_H
#define ENGINE_TRAIN_OBJECTIVE_H

#include "engine/model/model.h"
#include "engine/text/dataset.h"
#include "engine/train/trainer.h"

enum { OBJECTIVE_MAX_PORTS = 4 };

/* State of an evaluation. */
typedef struct evaluation {
	const dataset *data;
	int64_t records;     /* evaluated, in the order of the data */
	int64_t stride;      /* difference between the records of consecutive rows */
	double nats, labels; /* sum of the losses of all labels; number of labels */
	void *tally;         /* private to the objective; zero before the first record */
	text_record record;  /* for the tally: memory for one record */
	float *hits;         /* for the tally: memory for PORT_HITS; NULL unless the objective needs it */
} evaluation;

/* A record and its place in the data. */
typedef struct example {
	const dataset *data;
	const model_dims *dims;
	const train_options *options;
	const text_record *record; /* NULL: a row that is not counted */
	int64_t length;            /* for the row */
	uint64_t seed;             /* seed of the shuffled order; 0: not shuffled, as in an evaluation */
	int64_t epoch, place;      /* for the record in that order */
	int64_t source_length;     /* for the source's row; 0: no source */
} example;

/* The rows of a batch, as an objective sees them that computes the loss itself. R = records · objective.rows. */
typedef struct sequence_batch {
	const train_options *options;
	int64_t records;        /* at least 1 */
	const float *sums;      /* [R]: sum of the log-probabilities of the row's labels */
	const float *reference; /* [R]: the same before the first step */
	const int64_t *labels;  /* [R]: number of them */
	double *slopes;         /* [R], out: derivative of the loss with respect to sums */
	double loss;            /* out: mean over the records */
	void *tally;            /* in an evaluation: the objective's; else NULL */
} sequence_batch;

typedef struct objective {
	const char *name;           /* name in recipes */
	const char *model;          /* usual architecture of a new model */
	const char *const *options; /* train_options that only objectives read, NULL-terminated; may be NULL */
	const model_form *form;     /* form that the model must have */
	bool uneven;                /* records of one length may have different numbers of labels */
	bool masks;                 /* the model reads mask tokens; a new one reserves an id (example_mask) */
	record_kind records;        /* kind of records it learns from */
	bool continues;             /* it changes a model, and learns none from scratch */
	bool skips_excluded;        /* with RECORD_BLOCK: tokens that a record excludes (text_record) are never
	                             * labels */
	/* Return the maximum tokens of a record. NULL: sequence_length. */
	int64_t (*record_length)(const train_options *o);
	port_role ports[OBJECTIVE_MAX_PORTS];
	int n_ports;
	/* STATUS_INVALID (with a param) if a model of these dimensions cannot learn from the data. NULL: it always
	 * can. */
	status (*check)(const dataset *d, const model_dims *dims, const train_options *o, error *err);
	int64_t rows; /* rows of the model's batch for a record; 0: one */
	/* Convert a record to the values of the ports. values[i] is the record's rows of ports[i], each with x->length
	 * numbers, x->source_length for a source, or 1. The result depends on *x alone, so a resumed run computes the
	 * same. */
	void (*example)(const example *x, void *const *values);
	/* Compute the loss of a batch from its sequences. NULL: it is the model's own. */
	void (*weigh)(sequence_batch *b);
	/* Numbers that an evaluation reports besides the mean loss. */
	const char *metrics[TRAIN_MAX_METRICS + 1]; /* names, NULL-terminated */
	void (*measure)(const evaluation *e, double *metrics);
	/* True if the last evaluation is no better than a guess without the text. NULL: no such guess exists. */
	bool (*at_chance)(const train_progress *p);
	/* Further outputs of an evaluation, and how they are counted: row b < rows of p has record first + b ·
	 * e->stride. tally NULL: none, or `weigh` counts. */
	logits_rows logits;
	bool hits; /* PORT_HITS */
	size_t (*tally_bytes)(const dataset *d);
	status (*tally)(evaluation *e, plan *p, int64_t first, int64_t rows);
} objective;

/* Return the rows of the model's batch for a record. */
int64_t objective_rows(const objective *o);
/* STATUS_INVALID "objective": a model with these dimensions cannot be trained for it. */
status objective_check_model(const objective *o, const model_dims *dims, error *err);
/* STATUS_INVALID names the option that forbids carry_state. */
status objective_check_carry(const train_options *o, const model_dims *dims, error *err);
/* Return the default objective of such a model: the first that fits, or NULL. */
const objective *objective_usual(const model_dims *dims);
/* For `tally` of an objective with `hits`: read how many labels of the batch evaluated by p had the largest logit.
 * Unused rows have no label and so no hit. */
status objective_count_hits(const evaluation *e, plan *p, int64_t *hits);
/* For `example`: write a row's tokens, padded after the record. mask (unless NULL) marks the record's tokens, and the
 * first one, because no sequence is empty. [x->length] */
void example_tokens(const example *x, int32_t *ids, int32_t *mask);
/* Pad and mask a source of `count` tokens likewise [x->source_length]. */
void example_fill_source(const example *x, int64_t count, int32_t *source, int32_t *mask);
/* Set a decoder's inputs for `count` labels: the tokens before each label; after the last one the labels are -1.
 * [x->length] */
void example_shift_labels(const example *x, int64_t count, int32_t *ids, int32_t *labels);
status example_check_start(const dataset *d, const model_dims *dims, error *err);
/* Return the mask token: the model's, otherwise the tokenizer's. example_check_mask verifies that it exists. */
int64_t example_mask(const dataset *d, const model_dims *dims);
status example_check_mask(const dataset *d, const model_dims *dims, error *err);
/* Verify that the tokenizer has a token that ends a text, which targets need. */
status example_check_end(const dataset *d, error *err);
/* For objectives that report only "perplexity" and "accuracy" of labels: tally_bytes, tally and measure. */
size_t objective_hits_bytes(const dataset *d);
status objective_tally_hits(evaluation *e, plan *p, int64_t first, int64_t rows);
void objective_measure_hits(const evaluation *e, double *metrics);
/* True if the objective reads an option; NULL: if any objective does. */
bool objective_reads(const objective *o, const char *option);

/* NULL if unknown. */
const objective *objective_find(const char *name);
/* Return the i-th objective in order of names; NULL past the end. */
const objective *objective_at(int index);

#define OBJECTIVE(name) extern const objective objective_##name;
#include "gen/objectives.def"
#undef OBJECTIVE

#endif
