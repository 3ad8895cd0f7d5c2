/* Precedence, where OpenAI's fields and ours say the same: additive.batch_size, additive.learning_rate and
 * additive.max_steps go before hyperparameters.batch_size, learning_rate_multiplier (times the
 * default rate) and n_epochs; top-level hyperparameters before those of the method. additive.beta goes before the
 * method's beta. */
#include "engine/recipe/job_request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/json_read.h"
#include "engine/base/host_memory.h"
#include "engine/base/memory.h"
#include "engine/recipe/job_check.h"
#include "engine/recipe/job_config.h"
#include "engine/recipe/job_tokenizer.h"
#include "engine/model/adapter.h"
#include "engine/model/class_names.h"
#include "engine/model/lora.h"
#include "engine/model/model_trial.h"
#include "engine/train/objective.h"
#include "engine/train/optimizer_kind.h"
#include "engine/train/pass.h"
#include "gen/limits.h"

/* --- small readers -------------------------------------------------------------------- */

/* OpenAI's hyperparameter of that name; NULL when absent or "auto". */
static const json_t *hyperparameter(const json_t *params, const char *key)
{
	const json_t *method = job_config_member(params, "method");
	const char *type = json_string_value(job_config_member(method, "type"));
	const json_t *own = type ? job_config_member(job_config_member(method, type), "hyperparameters") : NULL;
	const json_t *found = job_config_member(job_config_member(params, "hyperparameters"), key);
	found = json_is_number(found) ? found : job_config_member(own, key);
	return json_is_number(found) ? found : NULL;
}

/* key: the field, for messages; id NULL: "". */
static status read_file_id(char out[STORE_ID_BYTES], const job_sources *from, const char *id, const char *key,
                           error *err)
{
	out[0] = 0;
	if (!id)
		return STATUS_OK;
	error cause = ERROR_INIT;
	status s = from->find_file(from->context, id, out, &cause);
	if (s == STATUS_NOT_FOUND)
		return error_set(err, s, key, "there is no file \"%.64s\"", id);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "%s", error_message(&cause));
}

void job_request_unused(const json_t *params, char *out, size_t size)
{
	static const char *const pairs[][2] = {
	    {"max_steps", "n_epochs"}, {"batch_size", "batch_size"}, {"learning_rate", "learning_rate_multiplier"}};
	const json_t *ours = job_config_member(params, "additive");
	size_t used = 0;
	*out = 0;
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs && used < size; i++)
		if (job_config_member(ours, pairs[i][0]) && hyperparameter(params, pairs[i][1]))
			used += (size_t)snprintf(out + used, size - used,
			                         "%shyperparameters.%s is not used: additive.%s decides",
			                         used ? "; " : "", pairs[i][1], pairs[i][0]);
}

static job_given read_given(const json_t *params, const json_t *ours)
{
	return (job_given){.objective = job_config_member(ours, "objective"),
	                   .length = job_config_member(ours, "sequence_length"),
	                   .source = job_config_member(ours, "source_length"),
	                   .batch = job_config_member(ours, "batch_size") || hyperparameter(params, "batch_size"),
	                   .steps = job_config_member(ours, "max_steps"),
	                   .eval = job_config_member(ours, "eval_every"),
	                   .warmup = job_config_member(ours, "warmup_steps"),
	                   .keep_best = job_config_member(ours, "keep_best"),
	                   .loss_on = job_config_member(ours, "loss_on")};
}

/* training_file alone, or the files of additive.training_files, of which it has to be one. */
static status read_training(job_request *r, const job_sources *from, const json_t *params, error *err)
{
	const char *first = json_string_value(job_config_member(params, "training_file"));
	const json_t *files = job_config_member(job_config_member(params, "additive"), "training_files"), *file;
	size_t i, found = 0;
	r->training[0].weight = 1;
	r->n_training = first ? 1 : 0;
	TRY(read_file_id(r->training[0].id, from, first, "training_file", err));
	if (!files || !first)
		return STATUS_OK;
	r->n_training = json_array_size(files);
	json_array_foreach(files, i, file)
	{
		const char *id = json_string_value(json_object_get(file, "file"));
		const json_t *weight = job_config_member(file, "weight");
		found += id && strcmp(id, first) == 0;
		r->training[i].weight = weight ? json_number_value(weight) : 1;
		TRY(read_file_id(r->training[i].id, from, id, "additive.training_files", err));
	}
	if (found == 0)
		return error_set(err, STATUS_INVALID, "additive.training_files", "must have training_file among them");
	return STATUS_OK;
}

/* --- options ------------------------------------------------------------------------------ */

static uint64_t random_seed(void)
{
	uint32_t seed = 0;
	while (getrandom(&seed, sizeof seed, 0) != sizeof seed)
		;
	return seed & 0x7fffffff;
}

static status read_options(job_request *r, const json_t *params, const json_t *ours, error *err)
{
	static const char *const others[] = {
	    "config",   "size", "tokenizer", "keep_checkpoints", "training_files", "validation_fraction",
	    "parallel", NULL};
	const json_t *batch = hyperparameter(params, "batch_size"),
	             *factor = hyperparameter(params, "learning_rate_multiplier");
	const json_t *epochs = hyperparameter(params, "n_epochs"), *seed = job_config_member(params, "seed");
	const json_t *keep = job_config_member(ours, "keep_checkpoints"),
	             *warmup = job_config_member(ours, "warmup_steps");
	const json_t *parallel = job_config_member(ours, "parallel");
	train_options *o = &r->options;
	train_options_default(o);
	if (job_config_objective(r, ours)) /* another word is refused below */
		o->objective = job_config_objective(r, ours);
	o->sequence_length = job_defaults_bound(o->objective);
	o->sequence_length = r->dims.trained < o->sequence_length ? r->dims.trained : o->sequence_length;
	o->batch_size = json_is_integer(batch) ? json_integer_value(batch) : o->batch_size;
	r->base_rate = r->lora      ? JOB_DEFAULTS_LORA_RATE
	               : r->adapter ? JOB_DEFAULTS_ADAPTER_RATE
	               : r->base    ? o->learning_rate
	                            : job_defaults_rate(o->objective, &r->dims);
	o->learning_rate = r->base_rate;
	o->learning_rate *= factor ? json_number_value(factor) : 1;
	o->seed = seed ? (uint64_t)json_integer_value(seed) : random_seed();
	r->epochs = json_is_integer(epochs) && !r->given.steps ? json_integer_value(epochs) : 0;
	r->ranks = parallel ? json_integer_value(json_object_get(parallel, "ranks")) : 1;
	o->shard_optimizer = json_is_true(json_object_get(parallel, "shard_optimizer"));
	r->keep = keep ? json_integer_value(keep) : TRAINING_OPTIONS_KEEP_CHECKPOINTS_DEFAULT;
	r->save_seconds = job_config_member(ours, "checkpoint_every") ? 0 : JOB_REQUEST_SAVE_SECONDS;
	if (!r->given.steps) /* settled later; here only not fewer than there are warm-up steps */
		o->max_steps =
		    json_is_integer(warmup) && json_integer_value(warmup) > 1 ? json_integer_value(warmup) : 1;
	status s = ours ? train_options_read(o, ours, others, err) : train_options_check(o, err);
	error_prefix(err, "additive");
	TRY(s);
	if (o->sequence_length > model_dims_length(&r->dims))
		return error_set(err, STATUS_INVALID, "additive.sequence_length",
		                 "must be at most the model's %lld positions", (long long)model_dims_length(&r->dims));
	if (o->objective->form->source && o->source_length == 0)
		o->source_length = o->sequence_length < r->dims.source ? o->sequence_length : r->dims.source;
	if (r->dims.source > 0 && train_options_source(o) > r->dims.source)
		return error_set(err, STATUS_INVALID, "additive.source_length",
		                 "must be at most the encoder's %lld positions", (long long)r->dims.source);
	return STATUS_OK;
}

/* --- adapters ------------------------------------------------------------------------------ */

/* Refuse what has no meaning for an adapter. */
static status check_adapter_options(const json_t *params, const json_t *ours, error *err)
{
	const char *optimizer = json_string_value(job_config_member(ours, "optimizer"));
	if (job_config_member(params, "suffix"))
		return error_set(err, STATUS_INVALID, "suffix", "is part of a model's id, which an adapter has not");
	if (json_is_true(job_config_member(ours, "carry_state")))
		return error_set(err, STATUS_INVALID, "additive.carry_state",
		                 "an adapter is trained on rows that each begin a text");
	if (job_config_member(ours, "parallel"))
		return error_set(err, STATUS_INVALID, "additive.parallel", "an adapter is trained by one process");
	if (optimizer && strcmp(optimizer, "adamw") != 0)
		return error_set(err, STATUS_INVALID, "additive.optimizer", "an adapter is trained by adamw");
	return STATUS_OK;
}

/* Read the options of a low-rank adapter, and check them. */
static status read_lora(job_request *r, const json_t *given, error *err)
{
	const int64_t rank = json_read_integer(given, "rank", JOB_DEFAULTS_LORA_RANK);
	r->lora =
	    json_pack("{s:I, s:f, s:O*}", "rank", (json_int_t)rank, "alpha",
	              json_read_real(given, "alpha", (double)rank), "targets", job_config_member(given, "targets"));
	if (!r->lora)
		return STATUS_NOMEM;
	const lora_options o = lora_options_of(r->lora);
	const status s = lora_check(r->architecture, r->config, &o, err);
	if (strcmp(err->param, "model") != 0)
		error_prefix(err, "method.adapter");
	return s;
}

/* Read the kind of adapter, and check that the model can have one. */
static status read_kind(job_request *r, const json_t *given, error *err)
{
	static const char *const options[] = {"rank", "alpha", "targets"};
	const char *kind = json_string_value(job_config_member(given, "kind"));
	if (kind && strcmp(kind, "lora") == 0)
		return read_lora(r, given, err);
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		if (job_config_member(given, options[i])) {
			char field[32];
			snprintf(field, sizeof field, "method.adapter.%s", options[i]);
			return error_set(err, STATUS_INVALID, field, "has no effect: the kind is \"state\"");
		}
	return adapter_check_architecture(r->architecture, r->parsed, err);
}

/* Read the method, and check that the model can have an adapter. */
static status read_method(job_request *r, const job_sources *from, const json_t *params, const json_t *ours, error *err)
{
	const json_t *method = job_config_member(params, "method");
	const char *type = json_string_value(job_config_member(method, "type"));
	r->adapter = type && strcmp(type, "adapter") == 0;
	static const char *const types[] = {"supervised", "dpo", "adapter"};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		char field[32];
		if (!type || strcmp(type, types[i]) == 0 || !job_config_member(method, types[i]))
			continue;
		snprintf(field, sizeof field, "method.%s", types[i]);
		return error_set(err, STATUS_INVALID, field, "has no effect: the method is \"%s\"", type);
	}
	if (!r->adapter)
		return STATUS_OK;
	if (!job_config_member(method, "adapter"))
		return error_set(err, STATUS_INVALID, "method.adapter", "must name the kind of adapter");
	if (!from->adapters)
		return error_set(err, STATUS_UNSUPPORTED, "method.type", "adapters are trained by the service alone");
	if (!r->base)
		return error_set(err, STATUS_INVALID, "model", "must be a model: an architecture has no adapter");
	if (!r->dims.form->stepwise || r->dims.parallel_only)
		return error_set(err, STATUS_UNSUPPORTED, "model", "the model has no sessions, which adapters are for");
	TRY(read_kind(r, job_config_member(method, "adapter"), err));
	return check_adapter_options(params, ours, err);
}

/* --- the objective -------------------------------------------------------------------------- */

static status check_objective(job_request *r, error *err)
{
	const json_t *names = r->dims.form->head == HEAD_CLASSES ? json_object_get(r->config, "id2label") : NULL;
	status s = objective_check_model(r->options.objective, &r->dims, err);
	if (s == STATUS_OK && r->options.carry_state)
		s = objective_check_carry(&r->options, &r->dims, err);
	error_prefix(err, "additive");
	TRY(s);
	if (r->options.objective->continues && !r->base)
		return error_set(err, STATUS_INVALID, "model",
		                 "must be a model, not an architecture: %s changes what a model has learned",
		                 r->options.objective->name);
	if (r->options.objective->records != RECORD_BLOCK) {
		/* Refuse options that need running text. */
		const train_options *o = &r->options;
		const char *wrong = r->n_training > 1           ? "additive.training_files"
		                    : o->loss_on != LOSS_ON_ALL ? "additive.loss_on"
		                    : o->reset_at_document      ? "additive.reset_at_document"
		                                                : NULL;
		if (wrong)
			return error_set(err, STATUS_INVALID, wrong, "is for running text alone");
	}
	if (r->dims.form->head != HEAD_CLASSES || (!names && !r->base))
		return STATUS_OK;
	r->classes = class_names_read(r->config, r->dims.outputs);
	return r->classes ? STATUS_OK : STATUS_NOMEM;
}

/* A head that reads a text at its end token needs a tokenizer that writes it. */
static status check_end(const job_request *r, const tokenizer *t, error *err)
{
	const char *param = r->base ? "model" : "additive.config.eos_token_id";
	for (int pair = 0; pair < 2 && r->dims.pool == POOL_END; pair++) {
		const tokenizer_frame f = tokenizer_frame_of(t, pair);
		int i = 0;
		while (i < f.n_behind && f.behind[i] != r->dims.end)
			i++;
		if (i == f.n_behind)
			return error_set(
			    err, STATUS_INVALID, param,
			    "the model reads a text at token %lld, with which the tokenizer does not end it",
			    (long long)r->dims.end);
	}
	return STATUS_OK;
}

/* Processes share batches evenly; what only one of them can do is refused. */
static status check_ranks(const job_request *r, const job_sources *from, error *err)
{
	const train_options *o = &r->options;
	if (r->ranks <= 1)
		return STATUS_OK;
	if (from->no_ranks)
		return error_set(err, STATUS_UNSUPPORTED, "additive.parallel", "a job of several processes: %s",
		                 from->no_ranks);
	if (o->carry_state || o->gradient_noise)
		return error_set(err, STATUS_INVALID,
		                 o->carry_state ? "additive.carry_state" : "additive.gradient_noise",
		                 "is for a job of one process");
	return STATUS_OK;
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Numbers that an optimiser keeps for each parameter, in a step or between steps. */
static double moments(const optimizer_kind *kind)
{
	double n = 0;
	for (const optimizer_state *s = kind->states; s->name; s++)
		n += s->layout == STATE_PER_SCALAR;
	return n + (kind->matrix_scale != NULL); /* the directions of the matrices */
}

/* Tokens times vectors of one stack: a dozen per token and layer, or with recompute one, and the dozen of one layer. */
static double count_vectors(const train_options *o, double tokens, int64_t layers)
{
	return tokens * (o->recompute && layers > 0 ? (double)layers + 12 : 12 * (double)layers);
}

/* A request far beyond this machine would end in the kernel killing the engine; refuse it instead. The
 * estimate is a lower bound: weights, gradients and moments, and count_vectors of each stack. */
static status check_memory(const job_request *r, error *err)
{
	const double parameters = (double)architecture_count_parameters(r->architecture, r->parsed);
	if (parameters < 0)
		return STATUS_NOMEM;
	const model_dims *d = &r->dims;
	double tokens =
	    (double)(r->options.batch_size * objective_rows(r->options.objective)) * (double)r->options.sequence_length;
	double source = (double)r->options.batch_size * (double)train_options_source(&r->options);
	double vectors = count_vectors(&r->options, tokens, d->layers) +
	                 count_vectors(&r->options, d->form->source ? source : tokens, d->other_layers);
	double work = 4 * vectors * (double)d->hidden;
	if (r->options.carry_state) /* two copies, and what the batch in place reads and leaves */
		work +=
		    16 * (double)d->carried * (double)r->options.batch_size * (double)r->options.gradient_accumulation;
	/* The base of an adapter has weights alone. */
	const double copies =
	    r->adapter ? 1 : 2 + moments(r->options.optimizer) + r->options.keep_best + (r->options.ema_decay > 0);
	double weights = 4 * copies * parameters, available = host_memory_bytes();
	if (r->on_host && weights + work > available)
		return error_set(err, STATUS_INVALID, weights > work ? "additive.config" : "additive.batch_size",
		                 "training would need at least %.1f GiB, this machine has %.1f",
		                 (weights + work) / 0x1p30, available / 0x1p30);
	return STATUS_OK;
}

/* True if the data decide the lengths of rows. */
static bool leaves_lengths_open(const job_request *r)
{
	const objective *o = r->options.objective;
	return !r->given.length && !o->record_length && !(o->form->source && o->records == RECORD_BLOCK);
}

/* Refuse a model that could not be trained, or not be served once it is. */
static status try_model(const job_request *r, error *err)
{
	const forward_spec spec = pass_training_spec(&r->options, &r->dims, 1);
	error found = ERROR_INIT;
	status s = model_trial_config(r->architecture, r->config, &spec, &found);
	error_settle(&found, s);
	return error_set(err, s, "additive.config", "%s", error_message(&found));
}

/* Read the options of a request; the method dpo adds its own. *out: a new reference, also on error; NULL: there are
 * none. */
static status read_ours(const json_t *params, json_t **out, error *err)
{
	const json_t *ours = job_config_member(params, "additive"), *beta = hyperparameter(params, "beta");
	const json_t *named = job_config_member(ours, "objective");
	const char *type = json_string_value(job_config_member(job_config_member(params, "method"), "type"));
	*out = json_incref((json_t *)(uintptr_t)ours);
	if (!type || strcmp(type, "dpo") != 0)
		return STATUS_OK;
	if (named && strcmp(json_string_value(named), objective_preference.name) != 0)
		return error_set(err, STATUS_INVALID, "additive.objective", "must be preference for the method dpo");
	json_decref(*out);
	*out = ours ? json_copy((json_t *)(uintptr_t)ours) : json_object();
	if (!*out || json_object_set_new(*out, "objective", json_string(objective_preference.name)) != 0 ||
	    (beta && !job_config_member(ours, "beta") && json_object_set(*out, "beta", (json_t *)(uintptr_t)beta) != 0))
		return error_settle(err, STATUS_NOMEM);
	return STATUS_OK;
}

static status read_request(job_request *out, const job_sources *from, const json_t *params, const json_t *ours,
                           const tokenizer *given, error *err)
{
	*out = (job_request){.on_host = strcmp(from->backend_name, "cpu") == 0};
	const json_t *fraction = job_config_member(ours, "validation_fraction");
	out->holdout = fraction ? json_number_value(fraction) : -1;
	out->given = read_given(params, ours);
	TRY(read_training(out, from, params, err));
	TRY(read_file_id(out->validation, from, json_string_value(job_config_member(params, "validation_file")),
	                 "validation_file", err));
	TRY(job_config_read(out, from, params, ours, given, err));
	TRY(read_method(out, from, params, ours, err));
	TRY(read_options(out, params, ours, err));
	TRY(check_objective(out, err));
	if (out->options.precision == PRECISION_BF16 && !from->bf16)
		return error_set(err, STATUS_INVALID, "additive.precision", "the %s backend trains in fp32 only",
		                 from->backend_name);
	TRY(check_ranks(out, from, err));
	const bool known = out->options.objective->records == RECORD_BLOCK || !leaves_lengths_open(out);
	if (known)
		TRY(check_memory(out, err));
	return try_model(out, err);
}

status job_request_read(job_request *out, const job_sources *from, const json_t *params, const tokenizer *given,
                        error *err)
{
	json_t *ours;
	*out = (job_request){0};
	status s = read_ours(params, &ours, err);
	if (s == STATUS_OK)
		s = read_request(out, from, params, ours, given, err);
	json_decref(ours);
	return s;
}

void job_base_fini(job_base *b)
{
	json_decref(b->config);
	free(b->parsed);
	*b = (job_base){0};
}

void job_request_fini(job_request *r)
{
	if (r->base)
		job_base_fini(r->base);
	free(r->base);
	json_decref(r->config);
	free(r->parsed);
	json_decref(r->tokenizer);
	json_decref(r->classes);
	json_decref(r->lora);
	*r = (job_request){0};
}

/* --- the corpus -------------------------------------------------------------------------------- */

/* Set the fields that follow from the sources and the options, for a new job and a stored one. */
static void fill_corpus(corpus *c, const job_sources *from, const train_options *o)
{
	c->paths = from->paths;
	c->cache = from->cache;
	memcpy(c->temporary, from->temporary, sizeof c->temporary);
	c->length = train_options_record(o);
	c->source_length = o->objective->records == RECORD_PAIR ? train_options_source(o) : 0;
	c->records = o->objective->records;
	c->completions = o->loss_on == LOSS_ON_COMPLETION;
	c->reset_at_document = o->reset_at_document;
}

void job_request_corpus(const job_request *r, const job_sources *from, corpus *out)
{
	*out = (corpus){.spec = r->tokenizer,
	                .config = r->config,
	                .vocab = model_dims_ids(&r->dims),
	                .classes = r->classes,
	                .holdout = r->holdout,
	                .split_documents = true,
	                .objective_open = !r->given.objective};
	fill_corpus(out, from, &r->options);
	out->fit =
	    (corpus_fit){.length = leaves_lengths_open(r),
	                 .source = leaves_lengths_open(r) && r->options.objective->form->source && !r->given.source,
	                 .epochs = r->epochs};
	out->completions_open =
	    !r->given.loss_on && r->options.objective->records == RECORD_BLOCK && r->options.objective->skips_excluded;
	out->n_training = r->n_training;
	memcpy(out->training, r->training, sizeof out->training);
	memcpy(out->validation, r->validation, sizeof out->validation);
	if (r->base)
		snprintf(out->folder, sizeof out->folder, "%s", r->base->folder);
}

status job_request_settle(job_request *r, int64_t blocks, bool validates, error *err)
{
	train_options *o = &r->options;
	if (o->batch_size > blocks && r->given.batch)
		return error_set(err, STATUS_INVALID, "additive.batch_size",
		                 "must be at most the training data's %lld %s of %lld tokens", (long long)blocks,
		                 o->objective->records == RECORD_BLOCK ? "blocks" : "records",
		                 (long long)train_options_record(o));
	const job_data data = {.records = blocks, .ranks = r->ranks, .validates = validates, .scratch = !r->base};
	r->usual_epochs = r->epochs > 0 ? job_defaults_epochs(o, &r->given, &data) : 0;
	job_defaults_settle(o, &r->epochs, &r->given, &data);
	if (r->ranks > 1 && o->batch_size % r->ranks)
		return error_set(err, STATUS_INVALID, "additive.batch_size",
		                 "%lld blocks or records of a batch cannot be shared evenly by %lld ranks",
		                 (long long)o->batch_size, (long long)r->ranks);
	status s = train_options_check(o, err);
	if (s == STATUS_OK && !validates)
		s = train_options_check_unvalidated(o, err);
	else if (s == STATUS_OK && o->patience > 0 && o->eval_every == 0)
		s = error_set(err, STATUS_INVALID, "patience",
		              "needs an eval_every of 1 or more: it counts evaluations");
	error_prefix(err, "additive");
	return s;
}

status job_request_take_texts(job_request *r, const json_t *params, const corpus *texts, error *err)
{
	const objective *o = r->options.objective;
	if (texts->completions)
		r->options.loss_on = LOSS_ON_COMPLETION;
	TRY(job_config_take_lengths(r, params, texts, err));
	TRY(job_config_take_start(r, texts->texts.tokenizer, err));
	TRY(check_end(r, texts->texts.tokenizer, err));
	if (o->check) {
		status s = o->check(texts->texts.train, &r->dims, &r->options, err);
		error_prefix(err, (strcmp(err->param, "tokenizer") == 0 || strcmp(err->param, "span_length") == 0)
		                      ? "additive"
		                      : "additive.config");
		TRY(s);
	}
	TRY(job_request_settle(r, dataset_records(texts->texts.train), texts->texts.valid != NULL, err));
	TRY(check_memory(r, err));
	return try_model(r, err);
}

/* --- the document -------------------------------------------------------------------------------- */

/* The files with their weights; NULL: one of weight 1, or out of memory. */
static json_t *write_files(const job_request *r)
{
	bool plain = r->n_training == 1 && r->training[0].weight == 1;
	json_t *files = plain ? NULL : json_array();
	for (size_t i = 0; i < r->n_training && files; i++)
		json_array_append_new(
		    files, json_pack("{s:s, s:f}", "file", r->training[i].id, "weight", r->training[i].weight));
	return files;
}

const char *job_request_kind(const job_request *r)
{
	return r->lora ? "lora" : r->adapter ? "state" : NULL;
}

json_t *job_request_write(const job_request *r, double holdout)
{
	return json_pack("{s:s, s:s?, s:O, s:O?, s:O?, s:o, s:f, s:b, s:I, s:I, s:I, s:b, s:s, s:o*, s:s?, s:s*, s:O*}",
	                 "architecture", r->architecture->name, "base", r->base ? r->base->id : NULL, "config",
	                 r->config, "tokenizer", r->tokenizer, "classes", r->classes, "options",
	                 train_options_write(&r->options), "holdout", holdout, "split_documents", 1, "keep_checkpoints",
	                 (json_int_t)r->keep, "save_seconds", (json_int_t)r->save_seconds, "ranks",
	                 (json_int_t)r->ranks, "shard_optimizer", r->options.shard_optimizer, "training_file",
	                 r->training[0].id, "training_files", write_files(r), "validation_file",
	                 r->validation[0] ? r->validation : NULL, "adapter", job_request_kind(r), "lora", r->lora);
}

bool job_request_names_file(const json_t *stored, const char *id)
{
	static const char *const keys[] = {"training_file", "validation_file"};
	const char *other = job_tokenizer_file(json_object_get(stored, "tokenizer"));
	size_t i;
	json_t *file;
	if (other && strcmp(other, id) == 0)
		return true;
	for (i = 0; i < 2; i++) {
		const char *named = json_string_value(json_object_get(stored, keys[i]));
		if (named && strcmp(named, id) == 0)
			return true;
	}
	json_array_foreach(json_object_get(stored, "training_files"), i, file)
	{
		const char *named = json_string_value(json_object_get(file, "file"));
		if (named && strcmp(named, id) == 0)
			return true;
	}
	return false;
}

/* False: it has none, or more than there may be. */
static bool restore_files(const json_t *stored, corpus *c)
{
	const char *first = json_string_value(json_object_get(stored, "training_file"));
	const char *validation = json_string_value(job_config_member(stored, "validation_file"));
	const json_t *files = job_config_member(stored, "training_files"), *file;
	size_t i;
	c->n_training = files ? json_array_size(files) : 1;
	if (!first || c->n_training < 1 || c->n_training > CORPUS_MAX_FILES)
		return false;
	snprintf(c->training[0].id, STORE_ID_BYTES, "%s", first);
	c->training[0].weight = 1;
	json_array_foreach(files, i, file)
	{
		const char *id = json_string_value(json_object_get(file, "file"));
		snprintf(c->training[i].id, STORE_ID_BYTES, "%s", id ? id : "");
		c->training[i].weight = json_number_value(json_object_get(file, "weight"));
	}
	snprintf(c->validation, STORE_ID_BYTES, "%s", validation ? validation : "");
	return true;
}

/* The token ids that a configuration has room for. */
static status count_inputs(const architecture *a, const json_t *config, int64_t *out, error *err)
{
	void *parsed = memory_new(1, a->config_bytes);
	status s = parsed ? architecture_read(a, parsed, config, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		*out = model_dims_ids(architecture_dims(parsed));
	free(parsed);
	return s;
}

status job_request_restore(const json_t *stored, const job_sources *from, corpus *c, train_options *options,
                           const architecture **a, error *err)
{
	const char *base = json_string_value(job_config_member(stored, "base"));
	const char *name = json_string_value(json_object_get(stored, "architecture"));
	*a = name ? architecture_find(name) : NULL;
	*c = (corpus){.spec = json_object_get(stored, "tokenizer"),
	              .config = json_object_get(stored, "config"),
	              .holdout = json_number_value(json_object_get(stored, "holdout")),
	              .split_documents = json_is_true(json_object_get(stored, "split_documents"))};
	if (!*a || !restore_files(stored, c))
		return error_set(err, STATUS_CORRUPT, NULL, "the job's record is damaged");
	TRY(count_inputs(*a, json_object_get(stored, "config"), &c->vocab, err));
	train_options_default(options);
	TRY(train_options_read(options, json_object_get(stored, "options"), NULL, err));
	fill_corpus(c, from, options);
	c->classes = job_config_member(stored, "classes");
	if (base) {
		job_base found = {0};
		TRY(job_check_blame(err, from->find_model(from->context, base, &found, err), "model", base));
		snprintf(c->folder, sizeof c->folder, "%s", found.folder);
		c->vocab = model_dims_ids(&found.dims);
		job_base_fini(&found);
	}
	return STATUS_OK;
}
