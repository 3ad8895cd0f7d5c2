/* job_defaults.h - the values of a recipe that its request leaves open.
 *
 * They follow from the objective, the width of the model, whether it is new, and the data. A value that a request gives
 * is kept. The measurements are in tests/bench/RESULTS.md. */
#ifndef ENGINE_RECIPE_JOB_DEFAULTS_H
#define ENGINE_RECIPE_JOB_DEFAULTS_H

#include "engine/train/objective.h"

enum {
	JOB_DEFAULTS_FEW_BLOCKS = 16,  /* a text of fewer blocks is cut into shorter ones */
	JOB_DEFAULTS_SHORTEST = 32,    /* tokens of a block that was made shorter */
	JOB_DEFAULTS_STEPS = 1000,     /* epochs "auto": at least this many steps, */
	JOB_DEFAULTS_EPOCHS = 20,      /* in at most this many epochs */
	JOB_DEFAULTS_FEW_SHARE = 4,    /* epochs are few below the usual number divided by this */
	JOB_DEFAULTS_LEAST_STEPS = 100 /* a smaller batch makes at least this many steps from the epochs, if it can */
};

/* Values that the request gives. */
typedef struct job_given {
	bool objective, length, source, batch, steps, eval, warmup, keep_best, loss_on;
} job_given;

/* The tokenizer of a new model: bytes, or for labelled texts, of which there are `bytes` bytes, one that is trained on
 * them. o NULL: not known. New reference; NULL: out of memory. */
json_t *job_defaults_tokenizer(const objective *o, int64_t bytes);
/* Complete the size of a new model, of which the request gives a part or nothing. */
void job_defaults_size(const objective *o, model_size *s);
/* The highest rate of a state adapter: its numbers are the scores and means of heads, much larger than weights. */
#define JOB_DEFAULTS_ADAPTER_RATE 0.5
/* That of a low-rank adapter, and its rank. */
#define JOB_DEFAULTS_LORA_RATE 1e-2
enum { JOB_DEFAULTS_LORA_RANK = 8 };
/* The highest rate of a new model. Wider models need smaller steps. */
double job_defaults_rate(const objective *o, const model_dims *d);

/* Most tokens of a record, before the data is known. */
int64_t job_defaults_bound(const objective *o);
/* Tokens of a row for records whose lengths have this 99th percentile and maximum. */
int64_t job_defaults_row(int64_t usual, int64_t longest, int64_t bound);
/* Tokens of a block of a text of `tokens` tokens; epochs 0: auto. */
int64_t job_defaults_block(int64_t tokens, int64_t epochs, int64_t bound);

/* Values that follow from the number of training records. */
typedef struct job_data {
	int64_t records, ranks;
	bool validates, scratch; /* there is validation data; the model is new */
} job_data;
/* Choose batch_size, max_steps, warmup_steps, eval_every and keep_best, and *epochs where it is 0. */
void job_defaults_settle(train_options *o, int64_t *epochs, const job_given *given, const job_data *d);
/* The epochs that a job takes whose request leaves them and the steps open. */
int64_t job_defaults_epochs(const train_options *o, const job_given *given, const job_data *d);
/* True if the epochs of a request are too few steps to learn from, also with the smallest batch. */
bool job_defaults_few(const train_options *o, const job_given *given);

#endif
