/* objective.h - what a model is trained for.
 *
 * An objective is one source in objectives/ that defines the const objective `objective_NAME`; the list of them is made
 * by the build. It says which records of a dataset it learns from, how one becomes the values of a forward's ports, and
 * what an evaluation reports. The loss is the cross entropy of the model's head, with label smoothing in training.
 * Everything here is immutable; the functions may be called from any thread. */
#ifndef ENGINE_TRAIN_OBJECTIVE_H
#define ENGINE_TRAIN_OBJECTIVE_H

#include "engine/model/model.h"
#include "engine/text/dataset.h"
#include "engine/train/trainer.h"

enum { OBJECTIVE_MAX_PORTS = 4 };

/* What is known of an evaluation. */
typedef struct evaluation {
	const dataset *data;
	int64_t records;     /* evaluated, of the data in its order */
	int64_t stride;      /* from the record of a row to that of the next one */
	double nats, labels; /* the losses of all labels together, and how many labels that are */
	void *tally;         /* the objective's own, zero before the first record */
	text_record record;  /* for the tally, with room for one of the data */
	float *hits;         /* likewise, with room for PORT_HITS; NULL where the objective asks for none */
} evaluation;

/* A record, and where it comes from. */
typedef struct example {
	const dataset *data;
	const model_dims *dims;
	const train_options *options;
	const text_record *record; /* NULL: a row that counts for nothing */
	int64_t length;            /* of a row */
	uint64_t seed;             /* with which the records are shuffled; 0: they are not, as in an evaluation */
	int64_t epoch, place;      /* of the record in that order */
	int64_t source_length;     /* of a source's row; 0: there are none */
} example;

typedef struct objective {
	const char *name;           /* the word of the recipe */
	const char *const *options; /* of train_options, NULL-terminated: those that only objectives read; or NULL */
	head_kind head;             /* that the model must have */
	bool causal;                /* of HEAD_VOCABULARY: that it must be; else that it must not */
	bool source;                /* the model reads a source that it encodes; else it must read none */
	bool uneven;                /* records of one length have different numbers of labels */
	bool masks;                 /* the model reads mask tokens: a new one has an id for them (example_mask) */
	record_kind records;        /* that it learns from */
	bool not_predicted;         /* of RECORD_BLOCK: no label is a token that a record marks so (text_record) */
	/* Tokens of a record, at most. NULL: sequence_length. */
	int64_t (*record_length)(const train_options *o);
	port_role ports[OBJECTIVE_MAX_PORTS];
	int n_ports;
	/* STATUS_INVALID (with a param) unless a model of these dimensions can learn from the data. NULL: it always
	 * can. */
	status (*check)(const dataset *d, const model_dims *dims, const train_options *o, error *err);
	/* A record as values of the ports: values[i] is one row of ports[i]: x->length numbers, of a source
	 * x->source_length, or 1. It is a function of *x alone, so that a resumed run sees the same. */
	void (*example)(const example *x, void *const *values);
	/* What an evaluation reports beside the mean loss. */
	const char *metrics[TRAIN_MAX_METRICS + 1]; /* names, NULL-terminated */
	void (*measure)(const evaluation *e, double *metrics);
	/* True if the last evaluation is no better than a guess without the text. NULL: there is no such guess. */
	bool (*at_chance)(const train_progress *p);
	/* Further outputs that an evaluation computes, and what becomes of them: row b < rows of p was record
	 * first + b · e->stride. tally NULL: nothing. */
	logits_rows logits;
	bool hits; /* PORT_HITS */
	size_t (*tally_bytes)(const dataset *d);
	status (*tally)(evaluation *e, plan *p, int64_t first, int64_t rows);
} objective;

/* Can a model of these dimensions, by its head, be trained for it? STATUS_INVALID "objective". */
status objective_check_model(const objective *o, const model_dims *dims, error *err);
/* Can it be trained by these options, with carry_state? STATUS_INVALID names what forbids it. */
status objective_check_carry(const train_options *o, const model_dims *dims, error *err);
/* What such a model is trained for unless that is said: the first for which it can be, or NULL. */
const objective *objective_usual(const model_dims *dims);
/* For `tally` of an objective with `hits`: read how many labels of the batch that p has evaluated had the largest
 * logit. Rows that are left over have no label and so no hit. */
status objective_count_hits(const evaluation *e, plan *p, int64_t *hits);
/* For `example`: the tokens of a row, filled up behind the record, and where these are, if mask is not NULL: the first,
 * for no sequence is empty, and all of the record. [x->length] */
void example_tokens(const example *x, int32_t *ids, int32_t *mask);
/* The same of what is asked for where that is not the record: fill up a source of `count` tokens, and mask it
 * [x->source_length]. */
void example_fill_source(const example *x, int64_t count, int32_t *source, int32_t *mask);
/* Of `count` labels: the tokens that a decoder has read before each, and -1 behind them. [x->length] */
void example_shift_labels(const example *x, int64_t count, int32_t *ids, int32_t *labels);
/* What a decoder's sequence begins with: the model's token, or else the tokenizer's; and `check` that there is one. */
int64_t example_start(const dataset *d, const model_dims *dims);
status example_check_start(const dataset *d, const model_dims *dims, error *err);
/* The token that stands for one to be guessed: the model's, or else the tokenizer's; and `check` that there is one. */
int64_t example_mask(const dataset *d, const model_dims *dims);
status example_check_mask(const dataset *d, const model_dims *dims, error *err);
/* `check` that the tokenizer has a token that ends a text, as a target must. */
status example_check_end(const dataset *d, error *err);
/* For objectives that report "perplexity" and "accuracy" of labels alone: tally_bytes, tally and measure. */
size_t objective_hits_bytes(const dataset *d);
status objective_tally_hits(evaluation *e, plan *p, int64_t first, int64_t rows);
void objective_measure_hits(const evaluation *e, double *metrics);
/* Does it read an option, or, with NULL, does any objective? */
bool objective_reads(const objective *o, const char *option);

/* NULL when unknown. */
const objective *objective_find(const char *name);
/* The i-th in the order of their names; NULL past the end. */
const objective *objective_at(int index);

#define OBJECTIVE(name) extern const objective objective_##name;
#include "gen/objectives.def"
#undef OBJECTIVE

#endif
