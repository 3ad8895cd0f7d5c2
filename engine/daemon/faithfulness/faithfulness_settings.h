/* faithfulness_settings.h - the settings of an evaluation of explanations (ExplainEvaluateRequest). */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_SETTINGS_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_SETTINGS_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/explain/faithfulness.h"
#include "engine/serve/scheduler.h"

typedef enum faithfulness_method {
	FAITHFULNESS_CONTRIBUTIONS,
	FAITHFULNESS_ALPHA,
	FAITHFULNESS_ROLLOUT,
	FAITHFULNESS_GRADIENT,
	FAITHFULNESS_ATTENTION_GRADIENT,
	FAITHFULNESS_INTEGRATED,
	FAITHFULNESS_LEAVE_ONE_OUT,
	FAITHFULNESS_METHODS,
	FAITHFULNESS_RANDOM = FAITHFULNESS_METHODS,
	FAITHFULNESS_RECENCY,
	FAITHFULNESS_MAX_ORDERS
} faithfulness_method;

enum { FAITHFULNESS_MAX_POSITIONS = 256 };

/* The tokens of a text, and of its source if the model reads one. */
typedef struct faithfulness_tokens {
	int32_t *ids, *source; /* NULL: only the counts are known */
	int64_t count, n_source;
} faithfulness_tokens;

typedef struct faithfulness_settings {
	int n_orders; /* the requested methods, followed by two baselines */
	faithfulness_method orders[FAITHFULNESS_MAX_ORDERS];
	faithfulness_options measure;
	int64_t n_positions; /* 0: equally spaced, or the first mask */
	int64_t positions[FAITHFULNESS_MAX_POSITIONS];
	int64_t spread;
	bool both_sides; /* a prediction also reads the tokens after its position */
	int32_t mask;    /* the model's mask token; TOKEN_NONE: it fills no masks */
	explain_target target;
	float share;
	int steps;
	int32_t replacement; /* -1: removed tokens are masked */
	int64_t bootstrap;
	double confidence;
	bool rows, begins; /* begins: texts start with the tokens that the tokenizer puts before one */
	int64_t max_tokens, texts;
} faithfulness_settings;

/* Read checked params for a model. STATUS_INVALID names the field. */
status faithfulness_settings_read(faithfulness_settings *out, const json_t *params, const model_entry *m, error *err);
/* Return the settings with every default. New reference; NULL: out of memory. Any thread. */
json_t *faithfulness_settings_write(const faithfulness_settings *s, const json_t *params);
bool faithfulness_settings_want(const faithfulness_settings *s, faithfulness_method method);
const char *faithfulness_settings_name(faithfulness_method method);

/* Write the positions of a text, rising, to out [FAITHFULNESS_MAX_POSITIONS] and return their number, 0 if it has none.
 * *missing: the first requested position that the text lacks; -2: none. If the tokens are unknown, return the maximum
 * number. */
int faithfulness_settings_positions(const faithfulness_settings *s, const faithfulness_tokens *t, int64_t *out,
                                    int64_t *missing);
/* Return the tokens that the prediction at a position reads, without those of a source. */
int64_t faithfulness_settings_count(const faithfulness_settings *s, const faithfulness_tokens *t, int64_t position);
/* Return the maximum tokens that an evaluation of a text reads. */
double faithfulness_settings_work(const faithfulness_settings *s, const model_entry *m, const faithfulness_tokens *t);

#endif
