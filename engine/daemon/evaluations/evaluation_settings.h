/* evaluation_settings.h - what an evaluation of explanations is asked for (ExplainEvaluateRequest). */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_SETTINGS_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_SETTINGS_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/explain/faithfulness.h"
#include "engine/serve/scheduler.h"

typedef enum evaluation_method {
	EVALUATION_CONTRIBUTIONS,
	EVALUATION_ALPHA,
	EVALUATION_ROLLOUT,
	EVALUATION_GRADIENT,
	EVALUATION_ATTENTION_GRADIENT,
	EVALUATION_INTEGRATED,
	EVALUATION_LEAVE_ONE_OUT,
	EVALUATION_METHODS,
	EVALUATION_RANDOM = EVALUATION_METHODS,
	EVALUATION_RECENCY,
	EVALUATION_MAX_ORDERS
} evaluation_method;

enum { EVALUATION_MAX_POSITIONS = 256 };

/* A text with its source, which only some models read. */
typedef struct evaluation_tokens {
	int32_t *ids, *source; /* NULL: only the counts are known */
	int64_t count, n_source;
} evaluation_tokens;

typedef struct evaluation_settings {
	int n_orders; /* the methods asked for, and the two baselines behind them */
	evaluation_method orders[EVALUATION_MAX_ORDERS];
	faithfulness_options measure;
	int64_t n_positions; /* 0: spread, or the first mask */
	int64_t positions[EVALUATION_MAX_POSITIONS];
	int64_t spread;
	bool both_sides; /* a prediction reads the tokens behind its position, too */
	int32_t mask;    /* that the model fills in; TOKEN_NONE */
	explain_target target;
	float share;
	int steps;
	int32_t replacement; /* -1: masked */
	int64_t bootstrap;
	double confidence;
	bool rows, begins; /* begins: texts begin with the tokens that the tokenizer puts before one */
	int64_t max_tokens, texts;
} evaluation_settings;

/* Of checked params, for a model. STATUS_INVALID names the field. */
status evaluation_settings_read(evaluation_settings *out, const json_t *params, const model_entry *m, error *err);
/* With every default. New reference; NULL: out of memory. Any thread. */
json_t *evaluation_settings_write(const evaluation_settings *s, const json_t *params);
bool evaluation_settings_want(const evaluation_settings *s, evaluation_method method);
const char *evaluation_settings_name(evaluation_method method);

/* The positions of a text, rising, into out [EVALUATION_MAX_POSITIONS]; how many there are: 0 when it has none of them.
 * *missing: the first that it does not have, -2 without one. Of a text whose tokens are not known as many as there can
 * be. */
int evaluation_settings_positions(const evaluation_settings *s, const evaluation_tokens *t, int64_t *out,
                                  int64_t *missing);
/* The tokens that the prediction at a position reads, without those of a source. */
int64_t evaluation_settings_count(const evaluation_settings *s, const evaluation_tokens *t, int64_t position);
/* Tokens that an evaluation of a text reads, at most. */
double evaluation_settings_work(const evaluation_settings *s, const model_entry *m, const evaluation_tokens *t);

#endif
