/* Data parallel training: the ranks of a run are trainers of this process, which take turns. */
#include "engine/base/file.h"
#include "engine/tensor/ops.h"
#include "engine/train/objective.h"
#include "engine/train/gradient_sum.h"
#include "engine/train/optimizer.h"
#include "engine/train/optimizer_kind.h"
#include "engine/text/corpus_tokens.h"
#include "engine/train/ranks.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"

enum { MAX_RANKS = 12, MAX_SUMS = 4096 };

typedef struct party party;

/* One rank: the sums and gathers that it has started, in order. */
typedef struct member {
	ranks ranks;
	party *all;
	float *numbers[MAX_SUMS];
	int64_t n[MAX_SUMS];
	int64_t at[MAX_SUMS][MAX_RANKS + 1]; /* bounds of a gather, whose n is 0 */
	int n_started;
} member;

struct party {
	int count, n_summed;
	float losses[MAX_RANKS]; /* losses of the last step */
	member members[MAX_RANKS];
};

static status begin_sum(ranks *r, float *numbers, int64_t n)
{
	member *m = (member *)r;
	assert_true(m->n_started < MAX_SUMS);
	m->numbers[m->n_started] = numbers;
	m->n[m->n_started++] = n;
	return STATUS_OK;
}

static status begin_gather(ranks *r, float *numbers, const int64_t *at)
{
	member *m = (member *)r;
	memcpy(m->at[m->n_started], at, ((size_t)r->count + 1) * sizeof *at);
	return begin_sum(r, numbers, 0);
}

static void gather(party *p, int k)
{
	const member *all = p->members;
	for (int to = 0; to < p->count; to++)
		for (int from = 0; from < p->count; from++) {
			const int64_t first = all[from].at[k][from], end = all[from].at[k][from + 1];
			assert_memory_equal(all[from].at[k], all[to].at[k], sizeof all[to].at[k]);
			for (int64_t i = first; i < end; i++)
				all[to].numbers[k][i] = all[from].numbers[k][i];
		}
}

static void sum(party *p, int k)
{
	const member *all = p->members;
	for (int r = 0; r < p->count && all[0].n[k] == 3; r++)
		p->losses[r] = *all[r].numbers[k];
	for (int64_t i = 0; i < all[0].n[k]; i++) {
		float total = 0;
		for (int r = 0; r < p->count; r++) {
			assert_int_equal(all[r].n[k], all[0].n[k]);
			total += all[r].numbers[k][i];
		}
		for (int r = 0; r < p->count; r++)
			all[r].numbers[k][i] = total;
	}
}

static status poll(ranks *r, bool *complete)
{
	party *p = ((member *)r)->all;
	for (;; p->n_summed++) {
		for (int i = 0; i < p->count; i++)
			if (p->members[i].n_started <= p->n_summed) {
				*complete = ((member *)r)->n_started == p->n_summed;
				return STATUS_OK;
			}
		(p->members[0].n[p->n_summed] ? sum : gather)(p, p->n_summed);
	}
}

static party *party_new(int count)
{
	party *p = calloc(1, sizeof *p);
	p->count = count;
	for (int i = 0; i < count; i++)
		p->members[i] = (member){.ranks = {.rank = i,
		                                   .count = count,
		                                   .begin_sum = begin_sum,
		                                   .begin_gather = begin_gather,
		                                   .poll = poll},
		                         .all = p};
	return p;
}

/* The trainers of a run, or a single trainer without ranks. */
typedef struct run {
	party *party; /* NULL: single */
	trainer *trainers[MAX_RANKS];
	int count;
} run;

/* valid: NULL for no validation. */
static run run_new_with(const fixture *f, const train_options *o, const dataset *train, const dataset *valid, int count)
{
	run r = {.party = count ? party_new(count) : NULL, .count = count ? count : 1};
	for (int i = 0; i < r.count; i++) {
		train_options own = *o;
		error err = ERROR_INIT;
		own.ranks = r.party ? &r.party->members[i].ranks : NULL;
		status s = trainer_new(&r.trainers[i], fixture_model(f, 0.1), &own, train, valid, &err);
		assert_string_equal(err.message, "");
		assert_int_equal(s, STATUS_OK);
	}
	return r;
}

static run run_new(const fixture *f, const train_options *o, const dataset *train, int count)
{
	return run_new_with(f, o, train, f->valid, count);
}

static void run_free(run *r)
{
	for (int i = 0; i < r->count; i++)
		trainer_free(r->trainers[i]);
	free(r->party);
}

/* Run a slice of each rank in turn until all have done `step` steps. */
static void run_to(run *r, int64_t step)
{
	for (bool behind = true; behind;) {
		behind = false;
		for (int i = 0; i < r->count; i++) {
			unsigned events;
			error err = ERROR_INIT;
			if (trainer_progress(r->trainers[i])->step == step)
				continue;
			assert_int_equal(trainer_advance(r->trainers[i], 1, &events, &err), STATUS_OK);
			behind = true;
		}
	}
}

static double farthest(const fixture *f, const trainer *a, const trainer *b)
{
	float *x = fixture_weights(f, trainer_model(a)), *y = fixture_weights(f, trainer_model(b));
	double apart = 0;
	for (int64_t i = 0; i < model_arena_floats(trainer_model(a)); i++)
		apart = fmax(apart, fabs((double)x[i] - (double)y[i]));
	free(x);
	free(y);
	return apart;
}

/* The loss of a step without labels is NaN. */
static bool is_near(double got, double want, double distance)
{
	return isnan(want) ? isnan(got) : fabs(got - want) <= distance;
}

/* With the same global batches, losses equal those of one process except for the order of sums. Ranks have equal
 * bits. */
static void check_equals_one_process(const fixture *f, const train_options *o, const dataset *train, int count)
{
	const dataset *valid = dataset_kind(train) == RECORD_BLOCK ? f->valid : NULL;
	run alone = run_new_with(f, o, train, valid, 0), together = run_new_with(f, o, train, valid, count);
	for (int64_t step = 1; step <= o->max_steps; step++) {
		run_to(&alone, step);
		run_to(&together, step);
		const train_progress *want = trainer_progress(alone.trainers[0]);
		for (int i = 0; i < count; i++) {
			const train_progress *got = trainer_progress(together.trainers[i]);
			assert_int_equal(got->empty_steps, want->empty_steps);
			assert_true(is_near(got->train_loss, want->train_loss, 1e-5));
			assert_true(is_near(got->gradient_norm, want->gradient_norm, 1e-4 * want->gradient_norm));
			assert_int_equal(got->tokens, want->tokens);
		}
	}
	for (int i = 1; i < count; i++)
		assert_same_weights(f, together.trainers[0], together.trainers[i]);
	assert_true(farthest(f, alone.trainers[0], together.trainers[0]) <= 1e-3);
	run_free(&alone);
	run_free(&together);
}

static void ranks_train_as_one_process_does(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	o.batch_size = 6;
	o.learning_rate = 1e-3;
	check_equals_one_process(f, &o, f->train, 2);
	check_equals_one_process(f, &o, f->train, 3);
	o.gradient_accumulation = 2;
	check_equals_one_process(f, &o, f->train, 2);
}

/* A step is the mean over its labels, and ranks have different numbers of labels. */
static void ranks_weigh_their_labels(void **state)
{
	static const char text[] = "{\"prompt\": \"ab\", \"completion\": \"cdefghijk\"}\n"
	                           "{\"prompt\": \"ijklmnopqrstuvwx\", \"completion\": \"y\"}\n"
	                           "{\"prompt\": \"0123\", \"completion\": \"456789\"}\n"
	                           "{\"prompt\": \"9\", \"completion\": \"87\"}\n";
	const fixture *f = *state;
	train_options o = fixture_options();
	dataset *train;
	o.batch_size = 2;
	o.learning_rate = 1e-3;
	o.loss_on = LOSS_ON_COMPLETION;
	o.reset_at_document = true;
	byte_source *source;
	token_cache *cache;
	const dataset_options cut = {.length = FIXTURE_LENGTH, .reset_at_document = true, .completions = true};
	assert_int_equal(byte_source_memory(&source, text, sizeof text - 1, NULL), STATUS_OK);
	assert_int_equal(corpus_tokens_build(&cache, source, f->tokenizer, &(corpus_tokens_options){0}, NULL),
	                 STATUS_OK);
	assert_int_equal(dataset_make(&train, NULL, f->tokenizer, &(dataset_text){cache, 1}, 1, &cut, NULL), STATUS_OK);
	token_cache_free(cache);
	check_equals_one_process(f, &o, train, 2);
	o.gradient_accumulation = 2;
	check_equals_one_process(f, &o, train, 2);
	dataset_free(train);
}

/* Each rank computes the reference of all records, and the loss of its own. */
static void ranks_learn_preferences(void **state)
{
	static const char text[] = "{\"prompt\": \"ab\", \"chosen\": \"cdefghijk\", \"rejected\": \"c\"}\n"
	                           "{\"prompt\": \"ij\", \"chosen\": \"y\", \"rejected\": \"xxxxxxx\"}\n"
	                           "{\"prompt\": \"0123\", \"chosen\": \"4567\", \"rejected\": \"7654\"}\n"
	                           "{\"prompt\": \"9\", \"chosen\": \"87\", \"rejected\": \"\"}\n";
	const fixture *f = *state;
	train_options o = fixture_options();
	dataset *train;
	o.objective = &objective_preference;
	o.batch_size = 2;
	o.learning_rate = 1e-3;
	assert_int_equal(preferences_new(&train, NULL, f->tokenizer, text, sizeof text - 1, FIXTURE_LENGTH, 0, NULL),
	                 STATUS_OK);
	check_equals_one_process(f, &o, train, 2);
	o.gradient_accumulation = 2;
	check_equals_one_process(f, &o, train, 2);
	dataset_free(train);
}

static void all_ranks_stop_after_the_same_step(void **state)
{
	const fixture *f = *state;
	train_options o = fixture_options();
	o.batch_size = 6;
	run r = run_new(f, &o, f->train, 3);
	run_to(&r, 4);
	for (int i = 0; i < 3; i++)
		assert_false(r.party->members[i].ranks.stop);
	r.party->members[1].ranks.wants_stop = true;
	run_to(&r, 5);
	for (int i = 0; i < 3; i++)
		assert_true(r.party->members[i].ranks.stop);
	run_free(&r);
}

/* Rows are equal, so only dropout makes losses differ. */
static void each_rank_draws_its_own_random_numbers(void **state)
{
	const fixture *f = *state;
	char text[FIXTURE_TEXT];
	dataset *train, *valid;
	train_options o = fixture_options();
	party *p = party_new(2);
	trainer *t[2];
	for (size_t i = 0; i < sizeof text; i++)
		text[i] = (char)('a' + i % FIXTURE_LENGTH);
	assert_int_equal(dataset_split(&train, &valid, f->tokenizer, text, sizeof text, FIXTURE_LENGTH, 0.1, NULL),
	                 STATUS_OK);
	o.batch_size = 2;
	for (int dropout = 0; dropout < 2; dropout++) {
		for (int i = 0; i < 2; i++) {
			o.ranks = &p->members[i].ranks;
			assert_int_equal(trainer_new(&t[i], fixture_model(f, 0.5 * dropout), &o, train, NULL, NULL),
			                 STATUS_OK);
		}
		run r = {.trainers = {t[0], t[1]}, .count = 2};
		run_to(&r, 1);
		assert_int_equal(p->losses[0] == p->losses[1], !dropout);
		run_free(&r);
	}
	free(p);
	dataset_free(train);
	dataset_free(valid);
}

static void a_run_continues_with_another_number_of_ranks(void **state)
{
	const fixture *f = *state;
	char folder[128];
	train_options o = fixture_options();
	o.batch_size = 6;
	o.learning_rate = 1e-3;
	run alone = run_new(f, &o, f->train, 0), two = run_new(f, &o, f->train, 2), three = run_new(f, &o, f->train, 3);
	snprintf(folder, sizeof folder, "%s/checkpoint", f->folder);
	run_to(&alone, o.max_steps);
	run_to(&two, 7);
	assert_int_equal(trainer_save(two.trainers[0], f->tokenizer, folder, "c", NULL, NULL), STATUS_OK);
	for (int i = 0; i < 3; i++)
		assert_int_equal(trainer_resume(three.trainers[i], folder, NULL), STATUS_OK);
	run_to(&three, o.max_steps);
	assert_true(farthest(f, alone.trainers[0], three.trainers[2]) <= 1e-3);
	assert_true(fabs(trainer_progress(alone.trainers[0])->train_loss -
	                 trainer_progress(three.trainers[0])->train_loss) <= 1e-5);
	run_free(&alone);
	run_free(&two);
	run_free(&three);
}

/* A model with several buckets. */
static model *several_buckets(const fixture *f)
{
	json_t *config =
	    json_pack("{s:i, s:i, s:i, s:i, s:i, s:[i, i], s:f}", "hidden_size", 256, "vocab_size", 259, "n_heads", 2,
	              "n_positions", 24, "n_layer", 2, "window_sizes", 4, 24, "hidden_dropout_prob", 0.0);
	model *m;
	assert_int_equal(model_create(&m, architecture_find("additive"), config, 7, f->backend, NULL), STATUS_OK);
	json_decref(config);
	return m;
}

/* --- a sharded optimiser ------------------------------------------------------------------------- */

static void gather_states(run *r)
{
	for (int n = 0; n < r->count;) {
		n = 0;
		for (int i = 0; i < r->count; i++) {
			bool complete;
			assert_int_equal(trainer_gather(r->trainers[i], &complete, NULL), STATUS_OK);
			n += complete;
		}
	}
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
	char path[2][256], *text[2];
	size_t bytes[2];
	for (int i = 0; i < 2; i++) {
		snprintf(path[i], sizeof path[i], "%s/%s", i ? b : a, name);
		assert_int_equal(file_read(path[i], 1 << 30, &text[i], &bytes[i], NULL), STATUS_OK);
	}
	assert_int_equal(bytes[0], bytes[1]);
	assert_memory_equal(text[0], text[1], bytes[0]);
	free(text[0]);
	free(text[1]);
}

/* Weights and checkpoints have the bits of a run without shares; the run continues with other numbers of ranks. */
static void check_shares(const fixture *f, train_options *o, int count)
{
	char whole[128], shared[128];
	error err = ERROR_INIT;
	run without = run_new(f, o, f->train, count);
	o->shard_optimizer = true;
	run with = run_new(f, o, f->train, count), again = run_new(f, o, f->train, count),
	    one = run_new(f, o, f->train, 0);
	snprintf(whole, sizeof whole, "%s/whole", f->folder);
	snprintf(shared, sizeof shared, "%s/shared", f->folder);
	run_to(&without, 5);
	run_to(&with, 5);
	assert_int_equal(trainer_save(with.trainers[0], f->tokenizer, shared, "c", NULL, &err), STATUS_UNAVAILABLE);
	gather_states(&with);
	assert_int_equal(trainer_save(without.trainers[0], f->tokenizer, whole, "c", NULL, NULL), STATUS_OK);
	assert_int_equal(trainer_save(with.trainers[0], f->tokenizer, shared, "c", NULL, NULL), STATUS_OK);
	assert_same_file(whole, shared, "model.safetensors");
	assert_same_file(whole, shared, "optimizer.safetensors");
	for (int i = 0; i < count; i++)
		assert_int_equal(trainer_resume(again.trainers[i], shared, NULL), STATUS_OK);
	assert_int_equal(trainer_resume(one.trainers[0], shared, NULL), STATUS_OK);
	run *all[] = {&without, &with, &again, &one};
	for (int i = 0; i < 4; i++)
		run_to(all[i], o->max_steps);
	for (int i = 0; i < count; i++) {
		assert_same_weights(f, without.trainers[0], with.trainers[i]);
		assert_same_weights(f, without.trainers[0], again.trainers[i]);
	}
	assert_true(farthest(f, without.trainers[0], one.trainers[0]) <= 1e-3);
	for (int i = 0; i < 4; i++)
		run_free(all[i]);
	o->shard_optimizer = false;
}

/* With 12 ranks some shares of the kinds that are divided between parameters are empty. */
static void shares_of_an_optimizer_give_the_bits_of_the_whole(void **state)
{
	static const int counts[] = {2, 3, MAX_RANKS};
	const fixture *f = *state;
	const optimizer_kind *kind;
	for (int k = 0; (kind = optimizer_kind_at(k)); k++)
		for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
			const int count = counts[i];
			train_options o = fixture_options();
			o.batch_size = 12;
			o.learning_rate = 1e-3;
			o.optimizer = kind;
			o.weight_decay = 0.1;
			o.decayed = DECAYED_MATRICES;
			o.layer_rate_decay = 0.7;
			o.clip = 0.05; /* every step is clipped */
			check_shares(f, &o, count);
			o.gradient_accumulation = 2;
			o.ema_decay = 0.9;
			check_shares(f, &o, count);
		}
}

/* Each state is allocated for a share only. */
static void shares_divide_the_states(void **state)
{
	const fixture *f = *state;
	const optimizer_kind *kind;
	model *m = several_buckets(f);
	for (int k = 0; (kind = optimizer_kind_at(k)); k++) {
		train_options o = fixture_options();
		party *p = party_new(3);
		int64_t end = 0;
		o.optimizer = kind;
		o.shard_optimizer = true;
		for (int i = 0; i < 3; i++) {
			optimizer *x;
			o.ranks = &p->members[i].ranks;
			assert_int_equal(optimizer_new(&x, m, &o, NULL), STATUS_OK);
			const int64_t *at = optimizer_shares(x);
			assert_int_equal(at[0], 0);
			assert_int_equal(at[3], model_trained_floats(m));
			assert_int_equal(at[i], end);
			end = at[i + 1];
			assert_true(end % ROW_SPAN_UNIT == 0 && at[i + 1] - at[i] > at[3] / 6);
			assert_true(at[i + 1] - at[i] < at[3] / 2);
			optimizer_free(x);
		}
		free(p);
	}
	model_free(m);
}

static void options_that_ranks_cannot_share_are_refused(void **state)
{
	const fixture *f = *state;
	party *p = party_new(2);
	const struct {
		const char *param;
		train_options o;
	} wrong[] = {{"batch_size", {.batch_size = 3}},
	             {"carry_state", {.batch_size = 4, .carry_state = true}},
	             {"gradient_noise", {.batch_size = 4, .gradient_noise = true}}};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		train_options o = fixture_options();
		trainer *t;
		error err = ERROR_INIT;
		o.batch_size = wrong[i].o.batch_size;
		o.carry_state = wrong[i].o.carry_state;
		o.gradient_noise = wrong[i].o.gradient_noise;
		o.gradient_accumulation = 2;
		o.ranks = &p->members[0].ranks;
		assert_int_equal(trainer_new(&t, fixture_model(f, 0), &o, f->train, f->valid, &err), STATUS_INVALID);
		assert_string_equal(err.param, wrong[i].param);
	}
	free(p);
}

/* --- buckets ------------------------------------------------------------------------------------- */

/* Sums of the first layers start last, and all have started before the backward ends. */
static void sums_start_while_the_backward_runs(void **state)
{
	const fixture *f = *state;
	model *m = several_buckets(f);
	plan *backward;
	gradient_sum *s;
	float *gradients, loss;
	bool complete;
	party *p = party_new(1);
	const forward_spec spec = {.batch = 2, .length = FIXTURE_LENGTH, .train.loss = true, .train.backward = true};
	const int64_t floats = model_trained_floats(m);
	assert_int_equal(f->backend->allocate(f->backend, (size_t)floats * sizeof(float), (void **)&gradients),
	                 STATUS_OK);
	assert_int_equal(model_plan(&backward, m, &spec, gradients, NULL, NULL), STATUS_OK);
	assert_int_equal(gradient_sum_new(&s, &p->members[0].ranks, m, backward, gradients, NULL), STATUS_OK);
	const int nodes = plan_node_count(backward);
	const member *me = &p->members[0];
	for (int64_t i = 0; i < floats; i++)
		gradients[i] = 1;
	gradient_sum_begin(s, 0.5f);
	int halfway = 0;
	for (int node = 0; node <= nodes; node++) {
		assert_int_equal(gradient_sum_passed(s, node), STATUS_OK);
		halfway += me->n_started > 0 && node < nodes;
	}
	assert_true(halfway > nodes / 10 && me->n_started > 2);
	const int64_t first = me->numbers[0] - gradients, last = me->numbers[me->n_started - 1] - gradients;
	assert_true(first > last);
	assert_int_equal(gradient_sum_rest(s, 3), STATUS_OK);
	assert_int_equal(gradient_sum_poll(s, &complete, &loss), STATUS_OK);
	assert_true(complete && loss == 3);
	for (int64_t i = 0; i < floats; i++)
		assert_true(gradients[i] == 0.5f);
	gradient_sum_free(s);
	plan_free(backward);
	f->backend->release(f->backend, gradients);
	model_free(m);
	free(p);
}

/* --- devices that sum ------------------------------------------------------------------------------ */

/* A group of one rank, in the table of the fixture's backend. */
static struct {
	int started, running; /* sums of this step; sums since the last poll */
	float share;
	int64_t floats;
	status fails; /* result of a poll */
} group;

static status group_sum(backend *b, float *numbers, int64_t n, float share)
{
	(void)b, (void)numbers;
	group.started++;
	group.running++;
	group.share = share;
	group.floats += n;
	return STATUS_OK;
}

static status group_poll(backend *b, bool *complete)
{
	(void)b;
	*complete = group.running == 0;
	group.running = 0;
	return group.fails;
}

/* The nodes are issued in parts; between parts, the sums of the finished gradients start. */
static void a_device_gets_its_backward_in_parts_between_sums(void **state)
{
	const fixture *f = *state;
	model *m = several_buckets(f);
	plan *backward;
	gradient_sum *s;
	float *gradients, loss;
	bool complete;
	party *p = party_new(1);
	backend *b = f->backend;
	const forward_spec spec = {.batch = 2, .length = FIXTURE_LENGTH, .train.loss = true, .train.backward = true};
	const int64_t floats = model_trained_floats(m);
	assert_int_equal(b->allocate(b, (size_t)floats * sizeof(float), (void **)&gradients), STATUS_OK);
	assert_int_equal(model_plan(&backward, m, &spec, gradients, NULL, NULL), STATUS_OK);
	memset(&group, 0, sizeof group);
	b->collective_sum = group_sum;
	b->collective_poll = group_poll;
	p->members[0].ranks.devices = true;
	assert_int_equal(gradient_sum_new(&s, &p->members[0].ranks, m, backward, gradients, NULL), STATUS_OK);
	const int nodes = plan_node_count(backward);
	int parts = 0;
	gradient_sum_begin(s, 0.5f);
	for (int node = 0, next; node < nodes; node = next, parts++) {
		next = gradient_sum_next(s, node, nodes);
		assert_in_range(next, node + 1, nodes);
		const int before = group.started;
		assert_int_equal(gradient_sum_passed(s, next - 1), STATUS_OK);
		assert_int_equal(group.started, before); /* the part could not have ended earlier */
		assert_int_equal(gradient_sum_passed(s, next), STATUS_OK);
		assert_true(group.started > before || next == nodes);
	}
	assert_true(parts > 3 && group.started > 3 && group.floats == floats && group.share == 0.5f);
	assert_int_equal(p->members[0].n_started, 0); /* none by the host, */
	assert_int_equal(gradient_sum_rest(s, 3), STATUS_OK);
	assert_int_equal(p->members[0].n_started, 1); /* except the loss */
	group.running = 1;
	assert_int_equal(gradient_sum_poll(s, &complete, &loss), STATUS_OK);
	assert_false(complete);
	assert_int_equal(gradient_sum_poll(s, &complete, &loss), STATUS_OK);
	assert_true(complete && loss == 3);
	b->collective_sum = NULL;
	b->collective_poll = NULL;
	gradient_sum_free(s);
	plan_free(backward);
	b->release(b, gradients);
	model_free(m);
	free(p);
}

/* The weights are those of the last step that all ranks have done. */
static void a_run_that_has_lost_a_rank_can_be_saved(void **state)
{
	const fixture *f = *state;
	char folder[128];
	train_options o = fixture_options();
	unsigned events;
	error err = ERROR_INIT;
	o.batch_size = 6;
	memset(&group, 0, sizeof group);
	f->backend->collective_sum = group_sum;
	f->backend->collective_poll = group_poll;
	party *p = party_new(1);
	p->members[0].ranks.devices = true;
	o.ranks = &p->members[0].ranks;
	trainer *t, *resumed;
	assert_int_equal(trainer_new(&t, fixture_model(f, 0), &o, f->train, f->valid, NULL), STATUS_OK);
	run r = {.trainers = {t}, .count = 1};
	run_to(&r, 3);
	group.fails = STATUS_UNAVAILABLE;
	while (trainer_advance(t, 1, &events, &err) == STATUS_OK)
		assert_int_equal(trainer_progress(t)->step, 3);
	assert_int_equal(err.status, STATUS_UNAVAILABLE);
	snprintf(folder, sizeof folder, "%s/lost", f->folder);
	assert_int_equal(trainer_save(t, f->tokenizer, folder, "c", NULL, NULL), STATUS_OK);
	assert_int_equal(trainer_advance(t, 1, &events, &err), STATUS_UNAVAILABLE); /* the error is permanent */
	o.ranks = NULL;
	assert_int_equal(trainer_new(&resumed, fixture_model(f, 0), &o, f->train, f->valid, NULL), STATUS_OK);
	assert_int_equal(trainer_resume(resumed, folder, NULL), STATUS_OK);
	assert_int_equal(trainer_progress(resumed)->step, 3);
	assert_same_weights(f, t, resumed);
	f->backend->collective_sum = NULL;
	f->backend->collective_poll = NULL;
	trainer_free(resumed);
	trainer_free(t);
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(ranks_train_as_one_process_does),
	    cmocka_unit_test(ranks_weigh_their_labels),
	    cmocka_unit_test(ranks_learn_preferences),
	    cmocka_unit_test(each_rank_draws_its_own_random_numbers),
	    cmocka_unit_test(all_ranks_stop_after_the_same_step),
	    cmocka_unit_test(a_run_continues_with_another_number_of_ranks),
	    cmocka_unit_test(shares_of_an_optimizer_give_the_bits_of_the_whole),
	    cmocka_unit_test(shares_divide_the_states),
	    cmocka_unit_test(options_that_ranks_cannot_share_are_refused),
	    cmocka_unit_test(sums_start_while_the_backward_runs),
	    cmocka_unit_test(a_device_gets_its_backward_in_parts_between_sums),
	    cmocka_unit_test(a_run_that_has_lost_a_rank_can_be_saved),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
