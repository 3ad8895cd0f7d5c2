/* form.h - the form of a model: its inputs and the predictions of its head.
 *
 * An architecture chooses the form of each configuration (model_dims.form). Everything above engine/model asks the form
 * and never the architecture, so a new architecture of a known form needs no change there. A form is one file in
 * forms/:
 *
 *   causal            a token from the tokens before it; sessions read token by token
 *   masked            the tokens hidden by masks, from those on both sides
 *   encoder_decoder   like causal, and from a source that an encoder reads first
 *   classifier        one of a few classes, from the whole sequence
 *
 * Everything here is immutable and thread-safe. */
#ifndef ENGINE_MODEL_FORM_H
#define ENGINE_MODEL_FORM_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

struct model_dims;

/* The output of a model's head. */
typedef enum head_kind {
	HEAD_VOCABULARY, /* logits of tokens, for each row */
	HEAD_CLASSES     /* logits of classes for each sequence: labels and logits [B], [B, V] (port.h) */
} head_kind;

typedef struct model_form {
	const char *name;   /* "causal" */
	const char *does;   /* end of an error that begins "the architecture NAME": "generates text" */
	const char *offers; /* end of an error that begins "it can": "classify and embed"; for forms that do not
	                     * generate text */
	head_kind head;
	bool stepwise;  /* no row depends on later ones, so sessions can read token by token */
	bool source;    /* reads a source beside its tokens (forward_spec.source) */
	bool fills;     /* its rows predict the tokens at mask tokens */
	bool begins;    /* a text begins with the tokens that the tokenizer puts before one */
	bool many_rows; /* a sequence has a prediction for each row */
	/* Return the row that the head reads in a sequence of `count` tokens; -1: the sequence has none. */
	int64_t (*row)(const struct model_dims *d, const int32_t *ids, int64_t count);
	/* Return how many of n tokens the prediction at `row` reads. */
	int64_t (*context)(int64_t n, int64_t row);
	/* Return the number of tokens that leave-one-out reads: a sequence of `tokens`, once without each token. */
	double (*removals)(double tokens);
} model_form;

#define FORM(name) extern const model_form form_##name;
#include "gen/forms.def"
#undef FORM

/* Members that several forms share. */

/* model_form.row: the last row. */
int64_t form_last_row(const struct model_dims *d, const int32_t *ids, int64_t count);
/* model_form.context: all n tokens. */
int64_t form_whole_context(int64_t n, int64_t row);
/* model_form.context: the tokens up to the row. */
int64_t form_earlier_context(int64_t n, int64_t row);
/* model_form.removals: every reading is of a whole sequence. */
double form_whole_removals(double tokens);

/* STATUS_INVALID "source" unless a source of n tokens fits; n is 0 without one. */
status form_check_source(const struct model_dims *d, int64_t n, error *err);

#endif
