#include "engine/recipe/job_defaults.h"

#include <math.h>

#include "gen/limits.h"

enum {
	RECORD_BOUND = 2048,
	ROUND = 16,         /* rows are multiples of this many tokens */
	BATCH_TOKENS = 4096 /* rows of a batch hold at most this many, at least one row */
};

/* Defaults by what an objective learns from. Records with a label or a target are short and say much per token: they
 * need more, smaller steps than blocks of text do. Shallow classifiers learn at rates at which those of 6 layers stay
 * at chance. */
typedef struct kind_defaults {
	int64_t layers;
	double rate, most; /* a new model's at width 128, and at any width */
	int64_t least_steps;
} kind_defaults;

static kind_defaults job_defaults_kind_of(const objective *o)
{
	static const kind_defaults kinds[] = {
	    [RECORD_BLOCK] = {6, 4e-3, 4e-3, JOB_DEFAULTS_LEAST_STEPS},
	    [RECORD_LABELLED] = {2, 1e-3, 2e-3, 4 * JOB_DEFAULTS_LEAST_STEPS},
	    [RECORD_PAIR] = {2, 2e-3, 4e-3, 4 * JOB_DEFAULTS_LEAST_STEPS},
	    [RECORD_PREFERENCE] = {6, 4e-3, 4e-3, JOB_DEFAULTS_LEAST_STEPS},
	};
	return kinds[o ? o->records : RECORD_BLOCK];
}

static int64_t clamp(int64_t x, int64_t least, int64_t most)
{
	return x < least ? least : x > most ? most : x;
}

/* A classifier of bytes learns single letters before it learns words, and then depends on them. */
json_t *job_defaults_tokenizer(const objective *o, int64_t bytes)
{
	enum { BYTES_FOR_A_TOKEN = 64, FEWEST = 512, MOST = 8192 };
	if (!o || o->records != RECORD_LABELLED)
		return json_pack("{s:s}", "type", "bytes");
	return json_pack("{s:s, s:I, s:b}", "type", "bpe", "vocab_size",
	                 (json_int_t)clamp(bytes / BYTES_FOR_A_TOKEN, FEWEST, MOST), "at_most", 1);
}

void job_defaults_size(const objective *o, model_size *s)
{
	if (!s->parameters && !s->layers)
		s->layers = job_defaults_kind_of(o).layers;
	model_size_complete(s);
}

double job_defaults_rate(const objective *o, const model_dims *d)
{
	const kind_defaults k = job_defaults_kind_of(o);
	return fmin(k.most, k.rate * 128 / (double)d->hidden);
}

int64_t job_defaults_bound(const objective *o)
{
	return o->records == RECORD_BLOCK ? TRAINING_OPTIONS_SEQUENCE_LENGTH_DEFAULT : RECORD_BOUND;
}

int64_t job_defaults_row(int64_t usual, int64_t longest, int64_t bound)
{
	/* Room for all costs little where none is much longer than the rest. */
	const int64_t n = longest <= 2 * usual ? longest : usual, row = (n + ROUND - 1) / ROUND * ROUND;
	return row < ROUND ? ROUND : row < bound ? row : bound;
}

int64_t job_defaults_block(int64_t tokens, int64_t epochs, int64_t bound)
{
	int64_t least = epochs > 0 ? JOB_DEFAULTS_LEAST_STEPS / epochs : 0, length = bound;
	least = least > JOB_DEFAULTS_FEW_BLOCKS ? least : JOB_DEFAULTS_FEW_BLOCKS;
	while (length / 2 >= JOB_DEFAULTS_SHORTEST && tokens / length < least)
		length /= 2;
	return length;
}

static int64_t ceil_div(int64_t n, int64_t by)
{
	return (n + by - 1) / by;
}

/* The largest usual batch with which the epochs are steps enough; ranks share it evenly. */
static int64_t choose_batch(const train_options *o, int64_t epochs, const job_data *d)
{
	const int64_t row = o->sequence_length * objective_rows(o->objective) + train_options_source(o),
	              least = job_defaults_kind_of(o->objective).least_steps;
	const int64_t shown = (epochs ? epochs : JOB_DEFAULTS_EPOCHS) * d->records / o->gradient_accumulation;
	int64_t batch = clamp(BATCH_TOKENS / row, 1, TRAINING_OPTIONS_BATCH_SIZE_DEFAULT);
	batch = clamp(batch, 1, d->records);
	batch = clamp(shown / least, 1, batch);
	return batch < d->ranks ? d->ranks : batch - batch % d->ranks;
}

static void settle_steps(train_options *o, int64_t *epochs, const job_given *given, int64_t records)
{
	const int64_t per_step = o->batch_size * o->gradient_accumulation;
	if (given->steps) {
		*epochs = *epochs ? *epochs : ceil_div(o->max_steps * per_step, records);
		return;
	}
	if (!*epochs)
		*epochs = clamp(ceil_div(JOB_DEFAULTS_STEPS * per_step, records), 1, JOB_DEFAULTS_EPOCHS);
	o->max_steps = ceil_div(*epochs * records, per_step);
}

int64_t job_defaults_epochs(const train_options *o, const job_given *given, const job_data *d)
{
	train_options usual = *o;
	int64_t epochs = 0;
	if (!given->batch)
		usual.batch_size = choose_batch(o, 0, d);
	settle_steps(&usual, &epochs, &(job_given){.steps = false}, d->records);
	return epochs;
}

void job_defaults_settle(train_options *o, int64_t *epochs, const job_given *given, const job_data *d)
{
	enum { EVALUATIONS = 10, WARMUP_SHARE = 4, WARMUP = 200 };
	if (!given->batch && !given->steps)
		o->batch_size = choose_batch(o, *epochs, d);
	else if (!given->batch)
		o->batch_size = clamp(o->batch_size, 1, d->records);
	settle_steps(o, epochs, given, d->records);
	if (!given->warmup && d->scratch && o->schedule != SCHEDULE_RANGE_TEST)
		o->warmup_steps = clamp(o->max_steps / WARMUP_SHARE, 0, WARMUP);
	if (!given->eval && d->validates)
		o->eval_every = ceil_div(o->max_steps, EVALUATIONS);
	if (!given->keep_best && d->validates && o->objective->records == RECORD_LABELLED)
		o->keep_best = true;
}

bool job_defaults_few(const train_options *o, const job_given *given)
{
	return !given->steps && o->max_steps < JOB_DEFAULTS_LEAST_STEPS;
}
