/* Sessions with low-rank adapters on the CUDA backend: logits as on the CPU, and batches with others. */
#include "tests/unit/serve/adapters.h"

#include "tests/unit/cuda/device.h"

enum { ADAPTERS = 2, TOKENS = 24 };

static const struct {
	const char *architecture, *config;
	dtype weights;
	double allowed; /* logits are about ±8 */
} kinds[] = {
    {"additive2", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 4, \"n_layer\": 2}", DTYPE_PANEL_F32, 1e-3},
    {"gpt2", "{\"n_embd\": 32, \"vocab_size\": 259, \"n_head\": 4, \"n_positions\": 64, \"n_layer\": 2}",
     DTYPE_PANEL_INT8, 0.1},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* One model folder, served by the CPU and by the device; adapters of each. */
typedef struct pair {
	fixture at[2];
	served_adapter *adapters[2][ADAPTERS];
} pair;

static void open_pair(pair *p, int k)
{
	memset(p, 0, sizeof *p);
	fixture *cpu = &p->at[0], *device = &p->at[1];
	make_folder(cpu->folder);
	assert_int_equal(cpu_open(&cpu->backend, 1, NULL), STATUS_OK);
	write_configured(cpu->folder, cpu->backend, kinds[k].architecture, kinds[k].config);
	*device = *cpu;
	find_plain_plugin();
	device->backend = open_device();
	fixture_serve_as(cpu, &roomy, kinds[k].weights);
	fixture_serve_as(device, &roomy, kinds[k].weights);
	for (int i = 0; i < ADAPTERS; i++) {
		write_lora(cpu, &(lora_options){.rank = 3 + 4 * i, .alpha = 6}, 60 + (uint64_t)i);
		for (int d = 0; d < 2; d++)
			assert_int_equal(served_adapter_open_lora(&p->adapters[d][i], p->at[d].model, i ? "b" : "a",
			                                          cpu->folder, NULL, NULL),
			                 STATUS_OK);
	}
}

static void close_pair(pair *p)
{
	for (int i = 0; i < 2 * ADAPTERS; i++)
		served_adapter_free(p->adapters[i % 2][i / 2]);
	scheduler_free(p->at[1].scheduler);
	backend_close(p->at[1].backend);
	fixture_close(&p->at[0]);
}

static void logits_agree_with_those_of_the_cpu(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k++) {
		pair p;
		int32_t ids[TOKENS];
		session *x[2], *plain;
		double off = 0, apart = 0;
		open_pair(&p, k);
		random_tokens(ids, TOKENS, 3);
		for (int d = 0; d < 2; d++) {
			const session_options o = {.policy = POSITION_ERROR, .adapter = p.adapters[d][1]};
			assert_int_equal(scheduler_session_new(p.at[d].scheduler, p.at[d].model, "x", &o, &x[d], NULL),
			                 STATUS_OK);
			append(&p.at[d], x[d], ids, TOKENS - 1);
			append(&p.at[d], x[d], ids + TOKENS - 1, 1);
		}
		const session_options none = {.policy = POSITION_ERROR};
		assert_int_equal(scheduler_session_new(p.at[1].scheduler, p.at[1].model, "y", &none, &plain, NULL),
		                 STATUS_OK);
		append(&p.at[1], plain, ids, TOKENS);
		for (int i = 0; i < VOCAB; i++) {
			off = fmax(off, fabs((double)x[0]->logits[i] - (double)x[1]->logits[i]));
			apart = fmax(apart, fabs((double)plain->logits[i] - (double)x[1]->logits[i]));
		}
		assert_true(off < kinds[k].allowed && apart > 2 * kinds[k].allowed);
		close_pair(&p);
	}
}

static void a_batch_has_rows_of_several_adapters_that_predict_as_alone(void **state)
{
	(void)state;
	enum { ROWS = 5 };
	pair p;
	int32_t ids[TOKENS];
	client alone[ROWS], together[ROWS];
	open_pair(&p, 0);
	fixture *f = &p.at[1];
	random_tokens(ids, TOKENS, 4);
	for (int i = 0; i < ROWS; i++) {
		generation_request q = request(&alone[i], ids, TOKENS, NEW_TOKENS);
		q.adapter = i % 3 ? p.adapters[1][i % 3 - 1] : NULL;
		run(f, NULL, &alone[i], &q);
	}
	for (int i = 0; i < ROWS; i++) {
		generation_request q = request(&together[i], ids, TOKENS, NEW_TOKENS);
		q.adapter = i % 3 ? p.adapters[1][i % 3 - 1] : NULL;
		start(f, NULL, &together[i], &q);
	}
	drain(f);
	for (int i = 0; i < ROWS; i++)
		assert_memory_equal(together[i].tokens, alone[i].tokens, NEW_TOKENS * sizeof(int32_t));
	assert_memory_not_equal(alone[0].tokens, alone[1].tokens, NEW_TOKENS * sizeof(int32_t));
	assert_memory_not_equal(alone[1].tokens, alone[2].tokens, NEW_TOKENS * sizeof(int32_t));
	close_pair(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(logits_agree_with_those_of_the_cpu),
	    cmocka_unit_test(a_batch_has_rows_of_several_adapters_that_predict_as_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
