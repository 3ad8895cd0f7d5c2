/* The look back of test_look_back with many chains that wait for each other, beside a training run. The run's products
 * and rounds occupy processors for a long time and at varying moments.
 * On a GPU: 128 chains (32 sequences of 4 heads of 32 channels) of 262,144 tokens, about 14 GB; 500 runs, or as many as
 * fit into SECONDS. The training run has width 768. */
#include <pthread.h>
#include <time.h>

#include "tests/unit/support/datasets.h"
#include "tests/unit/train/fixture.h"

#include "tests/unit/cuda/device.h"
#include "tests/unit/cuda/rounds.h"

enum { RUNS = 500, SECONDS = 35 };

typedef struct training {
	backend *b;
	bool emulated, stop;
	int status; /* status of the run; a failure ends the thread */
	int64_t steps;
	pthread_t thread;
	tokenizer *tokenizer;
	dataset *blocks;
	trainer *trainer;
} training;

static backend *device;

static int open_one(void **state)
{
	(void)state;
	find_plain_plugin(); /* test_look_back checks every access */
	device = open_device();
	return 0;
}

static int close_one(void **state)
{
	(void)state;
	backend_close(device);
	return 0;
}

static model *model_beside(const training *t)
{
	model *m;
	error err = ERROR_INIT;
	const int width = t->emulated ? 32 : 768, heads = t->emulated ? 2 : 12, length = t->emulated ? 16 : 2048;
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i, s:[i, i, i, i], s:f}", "hidden_size", width, "vocab_size",
	                           259, "n_heads", heads, "n_positions", length, "n_layer", 4, "window_sizes", 4, 16,
	                           256, length, "hidden_dropout_prob", 0.1);
	if (model_create(&m, architecture_find("additive"), config, 7, t->b, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	json_decref(config);
	return m;
}

static void *train_beside(void *context)
{
	training *t = context;
	error err = ERROR_INIT;
	unsigned events;
	status s = STATUS_OK;
	while (s == STATUS_OK && !__atomic_load_n(&t->stop, __ATOMIC_ACQUIRE)) {
		s = trainer_advance(t->trainer, 0, &events, &err);
		__atomic_store_n(&t->steps, trainer_progress(t->trainer)->step, __ATOMIC_RELEASE);
	}
	if (s != STATUS_OK)
		print_message("the run beside failed: %s\n", error_message(&err));
	__atomic_store_n(&t->status, (int)s, __ATOMIC_RELEASE);
	return NULL;
}

static void training_start(training *t)
{
	const backend_options background = {.background = true};
	error err = ERROR_INIT;
	train_options o;
	dataset *none;
	*t = (training){.b = open_device_as(&background), .emulated = device_is_emulated(device)};
	train_options_default(&o);
	o.sequence_length = t->emulated ? 16 : 2048;
	o.batch_size = t->emulated ? 2 : 8;
	o.max_steps = 1 << 20;
	o.precision = PRECISION_BF16;
	const size_t bytes = (size_t)(20 * o.batch_size * o.sequence_length);
	char *text = malloc(bytes);
	assert_non_null(text);
	fixture_text(text, bytes);
	assert_int_equal(tokenizer_new(&t->tokenizer, NULL, NULL), STATUS_OK);
	assert_int_equal(dataset_split(&t->blocks, &none, t->tokenizer, text, bytes, o.sequence_length, 0.1, &err),
	                 STATUS_OK);
	dataset_free(none);
	free(text);
	if (trainer_new(&t->trainer, model_beside(t), &o, t->blocks, NULL, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(pthread_create(&t->thread, NULL, train_beside, t), 0);
	/* By then its plans are recorded. */
	while (__atomic_load_n(&t->steps, __ATOMIC_ACQUIRE) < 3 && !__atomic_load_n(&t->status, __ATOMIC_ACQUIRE))
		nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void training_end(training *t)
{
	__atomic_store_n(&t->stop, true, __ATOMIC_RELEASE);
	pthread_join(t->thread, NULL);
	trainer_free(t->trainer);
	dataset_free(t->blocks);
	tokenizer_free(t->tokenizer);
	backend_close(t->b);
}

static void chains_beside_a_training_run_have_the_same_bits(void **state)
{
	(void)state;
	const bool emulated = device_is_emulated(device);
	const round_sizes s =
	    emulated ? (round_sizes){4, 300, 32, 2, 0, 50} : (round_sizes){32, 262144, 128, 4, 0, 4096};
	training t;
	round_run r;
	int made;
	training_start(&t);
	const int64_t before = __atomic_load_n(&t.steps, __ATOMIC_ACQUIRE);
	round_open(&r, device, &s);
	const int differing = rounds_differing(&r, device, emulated ? 10 : RUNS, SECONDS, &made);
	round_close(&r, device);
	training_end(&t);
	print_message("note: %d runs of %lld chains of %lld tokens, %lld training steps beside them\n", made,
	              (long long)(s.batch * s.heads), (long long)s.length, (long long)(t.steps - before));
	assert_int_equal(t.status, STATUS_OK);
	assert_int_equal(differing, 0);
	assert_true(made > 1 && (emulated || t.steps > before));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(chains_beside_a_training_run_have_the_same_bits),
	};
	return cmocka_run_group_tests(tests, open_one, close_one);
}
