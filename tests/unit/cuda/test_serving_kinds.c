/* Sessions of every kind of model on the CUDA backend, compared with the CPU: logits of texts and of single tokens. For
 * models that read a source, also the text generated after it, sampled and by beam search. */
#include "tests/unit/serve/fixture.h"
#include "tests/unit/serve/joined.h"

#include <math.h>

#include "engine/serve/read_pass.h"
#include "tests/unit/cuda/device.h"

#define TRANSFORMER "{\"dim\": 32, \"depth\": 2, \"heads\": 4, \"attn_dim_head\": 8, \"num_tokens\": 259, "
#define SIZES "\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 2, \"n_layer\": 2"

/* `allowed`: difference between the logits of both devices, which are about ±8. */
static const struct {
	const char *what, *architecture, *config;
	dtype weights;
	double allowed;
} kinds[] = {
    {"rotary, RMSNorm, SwiGLU", "transformer",
     TRANSFORMER "\"max_seq_len\": 48, \"rotary_pos_emb\": true, \"use_rmsnorm\": true, \"ff_glu\": true,"
                 " \"ff_swish\": true}",
     DTYPE_PANEL_BF16, 1e-2},
    {"talking heads", "transformer", TRANSFORMER "\"max_seq_len\": 48, \"attn_talking_heads\": true}", DTYPE_PANEL_F32,
     1e-3},
    {"memories", "transformer",
     TRANSFORMER "\"max_seq_len\": 12, \"max_mem_len\": 18, \"rel_pos_bias\": true, \"raw_memory\": true,"
                 " \"shift_tokens\": 1, \"num_memory_tokens\": 2}",
     DTYPE_PANEL_F32, 1e-3},
    {"forgetting, shift and window", "additive2",
     "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 4, \"n_layer\": 3, \"intermediate_size\": 48,"
     " \"window_layers\": [1], \"window\": 6, \"window_heads\": 4}",
     DTYPE_PANEL_F32, 1e-3},
    {"windows of additive attention, shift and gate", "additive2",
     "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 4, \"n_layer\": 2, \"intermediate_size\": 48,"
     " \"window_sizes\": [6, 0]}",
     DTYPE_PANEL_F32, 1e-3},
    {"linear, shift and gate", "additive2",
     "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 4, \"n_layer\": 2, \"intermediate_size\": 48,"
     " \"linear_layers\": [0]}",
     DTYPE_PANEL_F32, 1e-3},
    {"forgetting and shift", "additive2",
     "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 4, \"n_layer\": 2, \"intermediate_size\": 48}",
     DTYPE_PANEL_INT8, 0.1},
    {"one rate a head, heads of one channel", "additive2",
     "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 32, \"n_layer\": 2, \"intermediate_size\": 48,"
     " \"forget\": \"const\", \"shift\": false, \"group_norm\": false}",
     DTYPE_PANEL_BF16, 1e-2},
    {"RWKV-4", "rwkv",
     "{\"hidden_size\": 32, \"attention_hidden_size\": 40, \"vocab_size\": 259, \"num_hidden_layers\": 3,"
     " \"intermediate_size\": 48, \"rescale_every\": 2}",
     DTYPE_PANEL_F32, 1e-3},
    {"linear", "linear", "{" SIZES ", \"n_positions\": 48}", DTYPE_PANEL_INT8, 0.1},
    {"dilated", "dilated", "{" SIZES ", \"n_positions\": 48, \"segment_length\": [4, 16], \"dilated_ratio\": [1, 2]}",
     DTYPE_PANEL_F32, 1e-3},
    {"trilinear, codes", "trilinear",
     "{" SIZES ", \"window_size\": 5, \"wide_window_size\": 12, \"weight_bits\": 8, \"vector_bits\": 32}",
     DTYPE_PANEL_F32, 1e-3},
    {"trilinear, codes of vectors", "trilinear",
     "{" SIZES ", \"window_size\": 5, \"wide_window_size\": 12, \"weight_bits\": 8, \"vector_bits\": 8}",
     DTYPE_PANEL_INT8, 0.1},
};
enum { KINDS = sizeof kinds / sizeof *kinds, TOKENS = 32 };

/* One model folder, served by the CPU and by the device. */
typedef struct pair {
	fixture cpu, device;
} pair;

static void open_pair(pair *p, const char *kind, const char *config, dtype weights)
{
	memset(p, 0, sizeof *p);
	make_folder(p->cpu.folder);
	assert_int_equal(cpu_open(&p->cpu.backend, 2, NULL), STATUS_OK);
	write_configured(p->cpu.folder, p->cpu.backend, kind, config);
	p->device = p->cpu;
	find_plain_plugin();
	p->device.backend = open_device();
	fixture_serve_as(&p->cpu, &roomy, weights);
	fixture_serve_as(&p->device, &roomy, weights);
}

static void close_pair(pair *p)
{
	scheduler_free(p->device.scheduler);
	backend_close(p->device.backend);
	fixture_close(&p->cpu);
}

/* Packed weights are codes of the matrices: all must be equal. */
static void assert_same_weights(const pair *p)
{
	const model *a = p->cpu.model->model, *b = p->device.model->model;
	const size_t bytes = (size_t)model_arena_floats(a) * sizeof(float);
	assert_int_equal(model_arena_floats(a), model_arena_floats(b));
	void *weights = malloc(bytes);
	assert_non_null(weights);
	assert_int_equal(p->device.backend->download(p->device.backend, weights, model_arena(b), bytes), STATUS_OK);
	assert_memory_equal(weights, model_arena(a), bytes);
	free(weights);
}

/* A text in pieces, and then single tokens, across the ends of windows and segments. */
static void logits_of_every_kind_agree_with_those_of_the_cpu(void **state)
{
	static const int pieces[] = {17, 10, 1, 1, 1, 2};
	(void)state;
	for (int k = 0; k < KINDS; k++) {
		pair p;
		int32_t ids[TOKENS];
		open_pair(&p, kinds[k].architecture, kinds[k].config, kinds[k].weights);
		assert_same_weights(&p);
		random_tokens(ids, TOKENS, 1);
		session *a = open_session(&p.cpu, "x", POSITION_CLAMP, false),
		        *b = open_session(&p.device, "x", POSITION_CLAMP, false);
		for (int i = 0, at = 0; at < TOKENS; at += pieces[i++]) {
			append(&p.cpu, a, ids + at, pieces[i]);
			append(&p.device, b, ids + at, pieces[i]);
			for (int v = 0; v < VOCAB; v++) {
				const double off = fabs((double)a->logits[v] - (double)b->logits[v]);
				if (!(off <= kinds[k].allowed))
					fail_msg("%s, token %d, logit %d: %.9g on the CPU, %.9g here", kinds[k].what,
					         at + pieces[i], v, (double)a->logits[v], (double)b->logits[v]);
			}
		}
		close_pair(&p);
	}
}

/* A step of a device holds a long prompt, which leaves the bits that short pieces leave. */
static void a_long_prompt_leaves_the_bits_of_its_pieces(void **state)
{
	enum { LONG = 700 };
	static const int pieces[] = {1, 300, 2, 256, 3, 130, 8};
	static int32_t ids[LONG];
	(void)state;
	random_tokens(ids, LONG, 3);
	for (int k = 0, tried = 0; k < KINDS; k++) {
		pair p;
		open_pair(&p, kinds[k].architecture, kinds[k].config, kinds[k].weights);
		if (p.device.model->any_pieces) {
			tried++;
			assert_true(p.device.model->chunk > LONG);
			session *a = open_session(&p.device, "a", POSITION_CLAMP, false),
			        *b = open_session(&p.device, "b", POSITION_CLAMP, false);
			append(&p.device, a, ids, LONG);
			for (int i = 0, at = 0; at < LONG; at += pieces[i++])
				append(&p.device, b, ids + at, pieces[i]);
			assert_same_logits(a, b);
		}
		close_pair(&p);
		assert_true(k < KINDS - 1 || tried >= 3);
	}
}

/* A step has prompts and the tokens of streams. */
static void streams_beside_prompts_have_the_bits_of_each_alone(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k++) {
		pair p;
		open_pair(&p, kinds[k].architecture, kinds[k].config, kinds[k].weights);
		check_joined(&p.device, 40, 20);
		close_pair(&p);
	}
}

/* --- with a source ------------------------------------------------------------------------------------ */

enum { START = 1, SOURCE = 90, SHORT = 17, SAID = 8, BEAMS = 3 };

static const char encoder_decoder[] =
    "{\"stack\": \"encoder_decoder\", \"decoder_start_token_id\": 1,"
    " \"encoder\": " TRANSFORMER "\"max_seq_len\": 90},"
    " \"decoder\": " TRANSFORMER "\"max_seq_len\": 48, \"cross_attend\": true, \"rotary_pos_emb\": true}}";

static const int32_t start_token = START;

/* Tokens after source i, sampled if i is odd. */
static generation_request request_from(client *c, int i, const int32_t *source)
{
	generation_request r = request(c, &start_token, 1, SAID);
	r.source = source;
	r.n_source = i ? SHORT : SOURCE;
	r.n_logprobs = 0;
	r.sampling.temperature = (float)(i % 2);
	r.sampling.seed = 5;
	return r;
}

/* The sources are encoded in slices: the first step does not finish the longer one. */
static void run_together(fixture *f, client c[2], const int32_t *source)
{
	for (int i = 0; i < 2; i++) {
		const generation_request r = request_from(&c[i], i, source);
		start(f, NULL, &c[i], &r);
	}
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_true(generation_must_encode(c[0].generation));
	drain(f);
}

static void assert_near_answer(const client *a, const client *b)
{
	assert_int_equal(a->result.status, STATUS_OK);
	assert_int_equal(b->result.status, STATUS_OK);
	assert_int_equal(a->n_tokens, SAID);
	assert_int_equal(b->n_tokens, SAID);
	assert_memory_equal(a->tokens, b->tokens, SAID * sizeof *a->tokens);
	for (int i = 0; i < SAID; i++)
		assert_true(fabs((double)a->logprobs[i].logprob - (double)b->logprobs[i].logprob) <= 1e-3);
}

static void the_text_after_a_source_equals_that_of_the_cpu_in_any_batch(void **state)
{
	static client cpu[2], device[2], alone;
	int32_t source[SOURCE];
	pair p;
	(void)state;
	open_pair(&p, "transformer", encoder_decoder, DTYPE_PANEL_F32);
	random_tokens(source, SOURCE, 9);
	run_together(&p.cpu, cpu, source);
	run_together(&p.device, device, source);
	for (int i = 0; i < 2; i++) {
		const generation_request r = request_from(&alone, i, source);
		run(&p.device, NULL, &alone, &r);
		assert_near_answer(&cpu[i], &device[i]);
		assert_memory_equal(alone.tokens, device[i].tokens, SAID * sizeof *alone.tokens);
		for (int k = 0; k < SAID; k++)
			assert_memory_equal(&alone.logprobs[k].logprob, &device[i].logprobs[k].logprob, sizeof(float));
	}
	close_pair(&p);
}

static void a_beam_search_after_a_source_finds_the_texts_of_the_cpu(void **state)
{
	static client found[2][BEAM_SEARCH_MAX];
	const beam_options o = {BEAMS, 1, false};
	int32_t source[SOURCE];
	pair p;
	(void)state;
	open_pair(&p, "transformer", encoder_decoder, DTYPE_PANEL_F32);
	random_tokens(source, SOURCE, 9);
	for (int i = 0; i < 2; i++) {
		fixture *f = i ? &p.device : &p.cpu;
		generation_request r = search_request(&start_token, 1, SAID);
		r.source = source;
		r.n_source = SHORT;
		start_search(f, &o, &r, found[i], BEAMS);
		drain(f);
	}
	for (int k = 0; k < BEAMS; k++)
		assert_near_answer(&found[0][k], &found[1][k]);
	close_pair(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(logits_of_every_kind_agree_with_those_of_the_cpu),
	    cmocka_unit_test(a_long_prompt_leaves_the_bits_of_its_pieces),
	    cmocka_unit_test(streams_beside_prompts_have_the_bits_of_each_alone),
	    cmocka_unit_test(the_text_after_a_source_equals_that_of_the_cpu_in_any_batch),
	    cmocka_unit_test(a_beam_search_after_a_source_finds_the_texts_of_the_cpu),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
