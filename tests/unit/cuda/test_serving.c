/* Sessions on the CUDA backend: the CPU's tokens for any batch, and moving a session from one device to the other. */
#include "tests/unit/serve/fixture.h"

#include <math.h>

#include "tests/unit/cuda/device.h"

typedef struct kind {
	const char *architecture;
	dtype weights;
	double allowed; /* allowed difference of logits, which are about ±30 */
} kind;

static const kind kinds[] = {
    {"additive", DTYPE_PANEL_F32, 1e-3}, {"additive", DTYPE_PANEL_BF16, 1e-2}, {"additive", DTYPE_PANEL_INT8, 0.5},
    {"gpt2", DTYPE_PANEL_F32, 1e-3},     {"gpt2", DTYPE_PANEL_BF16, 1e-2},     {"gpt2", DTYPE_PANEL_INT8, 0.5},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* One model folder, served by the CPU and by the device. */
typedef struct pair {
	fixture cpu, device;
} pair;

static void open_pair(pair *p, const kind *k)
{
	memset(p, 0, sizeof *p);
	fixture_folder(&p->cpu);
	backend_close(p->cpu.backend);
	assert_int_equal(cpu_open(&p->cpu.backend, 2, NULL), STATUS_OK);
	if (strcmp(k->architecture, "gpt2") == 0)
		write_gpt2(p->cpu.folder, p->cpu.backend, 1);
	p->device = p->cpu;
	p->device.backend = open_device();
	fixture_serve_as(&p->cpu, &roomy, k->weights);
	fixture_serve_as(&p->device, &roomy, k->weights);
}

static void close_pair(pair *p)
{
	scheduler_free(p->device.scheduler);
	backend_close(p->device.backend);
	fixture_close(&p->cpu);
}

static void assert_close_logits(const session *a, const session *b, double allowed)
{
	for (int i = 0; i < VOCAB; i++)
		if (!(fabs((double)a->logits[i] - (double)b->logits[i]) <= allowed))
			fail_msg("logit %d: %.9g on the CPU, %.9g here", i, (double)a->logits[i], (double)b->logits[i]);
}

static void logits_agree_with_those_of_the_cpu(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k++) {
		pair p;
		int32_t ids[40];
		open_pair(&p, &kinds[k]);
		random_tokens(ids, 40, 1);
		session *a = open_session(&p.cpu, "x", POSITION_CLAMP, false),
		        *b = open_session(&p.device, "x", POSITION_CLAMP, false);
		for (int from = 0; from < 40; from += 20) { /* a chunk, then another */
			append(&p.cpu, a, ids + from, 20);
			append(&p.device, b, ids + from, 20);
			assert_close_logits(a, b, kinds[k].allowed);
		}
		close_pair(&p);
	}
}

/* Five sessions at once give the tokens that each gives alone, greedily and sampled. */
static void the_batch_changes_no_token(void **state)
{
	(void)state;
	enum { N = 5, SAID = 12 };
	for (int k = 0; k < KINDS; k++) {
		pair p;
		client alone[N], together[N];
		int32_t ids[N][9];
		generation_request r;
		open_pair(&p, &kinds[k]);
		if (is_left_out(p.device.backend, k, 5)) {
			close_pair(&p);
			continue;
		}
		for (int i = 0; i < N; i++) {
			random_tokens(ids[i], 9, (uint64_t)i);
			r = request(&alone[i], ids[i], 3 + i, SAID);
			r.sampling.temperature = (float)(i % 2);
			r.sampling.seed = (uint64_t)i;
			run(&p.device, NULL, &alone[i], &r);
		}
		for (int i = 0; i < N; i++) {
			r = request(&together[i], ids[i], 3 + i, SAID);
			r.sampling.temperature = (float)(i % 2);
			r.sampling.seed = (uint64_t)i;
			start(&p.device, NULL, &together[i], &r);
		}
		drain(&p.device);
		for (int i = 0; i < N; i++) {
			assert_int_equal(together[i].n_tokens, SAID);
			assert_memory_equal(together[i].tokens, alone[i].tokens, SAID * sizeof(int32_t));
		}
		close_pair(&p);
	}
}

/* Export on one device, import on the other, and continue as if nothing had happened. */
static void a_session_moves_between_the_devices(void **state)
{
	(void)state;
	for (int to_cpu = 0; to_cpu < 2; to_cpu++) {
		pair p;
		void *blob;
		size_t bytes;
		int32_t ids[30];
		session *moved;
		open_pair(&p, &kinds[0]);
		fixture *from = to_cpu ? &p.device : &p.cpu, *to = to_cpu ? &p.cpu : &p.device;
		random_tokens(ids, 30, 3);
		session *stays = open_session(from, "x", POSITION_CLAMP, false);
		append(from, stays, ids, 17);
		assert_int_equal(scheduler_session_export(from->scheduler, stays, &blob, &bytes, NULL), STATUS_OK);
		assert_int_equal(scheduler_session_import(to->scheduler, to->model, "x", blob, bytes, &moved, NULL),
		                 STATUS_OK);
		append(from, stays, ids + 17, 13);
		append(to, moved, ids + 17, 13);
		assert_close_logits(stays, moved, kinds[0].allowed);
		free(blob);
		close_pair(&p);
	}
}

static void pieces_of_a_text_give_the_same_bits(void **state)
{
	(void)state;
	enum { LONG = 700 };
	pair p;
	static int32_t ids[LONG];
	open_pair(&p, &kinds[1]);
	random_tokens(ids, LONG, 5);
	session *whole = open_session(&p.device, "whole", POSITION_CLAMP, false),
	        *pieces = open_session(&p.device, "pieces", POSITION_CLAMP, false);
	append(&p.device, whole, ids, LONG);
	for (int at = 0, n = 1; at < LONG; at += n, n = n % 70 + 3)
		append(&p.device, pieces, ids + at, at + n < LONG ? n : LONG - at);
	assert_same_logits(whole, pieces);
	close_pair(&p);
}

/* Decode with and without fusing neighbouring calls. */
static void neighbours_as_one_kernel_change_no_bit(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k++) {
		pair p;
		int32_t ids[15];
		open_pair(&p, &kinds[k]);
		fixture single = p.cpu;
		single.backend = open_device();
		assert_non_null(single.backend->fuse);
		single.backend->fuse = NULL;
		fixture_serve_as(&single, &roomy, kinds[k].weights);
		random_tokens(ids, 15, 7);
		session *a = open_session(&p.device, "x", POSITION_CLAMP, false),
		        *b = open_session(&single, "x", POSITION_CLAMP, false);
		for (int at = 0; at < 15; at += at ? 1 : 9) {
			append(&p.device, a, ids + at, at ? 1 : 9);
			append(&single, b, ids + at, at ? 1 : 9);
			assert_same_logits(a, b);
		}
		scheduler_free(single.scheduler);
		backend_close(single.backend);
		close_pair(&p);
	}
}

/* Early launches, recordings, fused kernels and programs change when and how work runs, but no bit. */
static void the_switches_of_the_backend_change_no_bit(void **state)
{
	(void)state;
	static const char *const switches[] = {"ADDITIVE_CUDA_EARLY", "ADDITIVE_CUDA_RECORD", "ADDITIVE_CUDA_FUSE",
	                                       "ADDITIVE_CUDA_PERSISTENT"};
	enum { SWITCHES = 4, SETTINGS = 1 << SWITCHES, SAID = 500 };
	static int32_t said[4 * SAID], again[4 * SAID];
	for (int off = 0; off < SETTINGS; off++) {
		pair p;
		client c;
		for (int i = 0; i < SWITCHES; i++)
			setenv(switches[i], off >> i & 1 ? "0" : "1", 1);
		open_pair(&p, &kinds[1]);
		if (is_left_out(p.device.backend, off, SETTINGS - 1)) {
			close_pair(&p);
			continue;
		}
		const bool emulated = device_is_emulated(p.device.backend);
		const int rounds = emulated ? 1 : 4, each = emulated ? 16 : SAID;
		session *x = open_session(&p.device, "x", POSITION_CLAMP, false);
		for (int i = 0; i < rounds; i++) {
			generation_request r = request(&c, (const int32_t[]){5, 6, 7}, i == 0 ? 3 : 0, each);
			r.sampling.temperature = 1;
			r.sampling.seed = 11;
			run(&p.device, x, &c, &r);
			assert_int_equal(c.n_tokens, each);
			memcpy((off ? again : said) + i * each, c.tokens, (size_t)each * sizeof *c.tokens);
		}
		if (off)
			assert_memory_equal(again, said, (size_t)(rounds * each) * sizeof *said);
		close_pair(&p);
	}
	for (int i = 0; i < SWITCHES; i++)
		unsetenv(switches[i]);
}

/* Generate from n sessions at once, each with its own prompt. */
static void generate(fixture *f, int n, int tokens, client *clients)
{
	for (int i = 0; i < n; i++) {
		int32_t ids[9];
		random_tokens(ids, 9, (uint64_t)i);
		generation_request r = request(&clients[i], ids, 1 + i, tokens);
		r.sampling.temperature = (float)(i % 2);
		r.sampling.seed = (uint64_t)i;
		start(f, NULL, &clients[i], &r);
	}
	drain(f);
}

/* Phases of a step as one launch (cuda/program.cuh), for every number of sessions that a program allows, and one
 * more. */
static void programs_change_no_token_of_any_batch(void **state)
{
	(void)state;
	enum { MOST = 9, SAID = 12, STRIDE = 4 };
	for (int k = 0; k < KINDS; k++) {
		pair p;
		open_pair(&p, &kinds[k]);
		fixture single = p.cpu;
		setenv("ADDITIVE_CUDA_PERSISTENT", "1", 1);
		single.backend = open_device();
		unsetenv("ADDITIVE_CUDA_PERSISTENT");
		fixture_serve_as(&single, &roomy, kinds[k].weights);
		for (int n = 1; n <= MOST; n++) {
			client apart[MOST], whole[MOST];
			if (is_left_out(single.backend, n + k, STRIDE))
				continue;
			generate(&p.device, n, SAID, apart);
			generate(&single, n, SAID, whole);
			for (int i = 0; i < n; i++) {
				assert_int_equal(whole[i].n_tokens, SAID);
				assert_memory_equal(whole[i].tokens, apart[i].tokens, SAID * sizeof(int32_t));
			}
		}
		scheduler_free(single.scheduler);
		backend_close(single.backend);
		close_pair(&p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_switches_of_the_backend_change_no_bit),
	    cmocka_unit_test(logits_agree_with_those_of_the_cpu),
	    cmocka_unit_test(the_batch_changes_no_token),
	    cmocka_unit_test(a_session_moves_between_the_devices),
	    cmocka_unit_test(pieces_of_a_text_give_the_same_bits),
	    cmocka_unit_test(neighbours_as_one_kernel_change_no_bit),
	    cmocka_unit_test(programs_change_no_token_of_any_batch),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
