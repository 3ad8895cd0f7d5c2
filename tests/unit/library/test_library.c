/* The public library: errors by the name of a field, and the numbers of sessions and runs. */
#include "engine/library/handles.h"
#include "tests/unit/serve/fixture.h"

enum { PROMPT = 7, TOKENS = 20 };
static const int32_t prompt[PROMPT] = {40, 50, 3, 258, 60, 50, 41};

typedef struct opened {
	char folder[FOLDER_BYTES];
	additive_device *device;
	additive_model *model;
	additive_session *session;
} opened;

static void write_folder(char folder[FOLDER_BYTES], uint64_t seed)
{
	backend *b;
	make_folder(folder);
	assert_int_equal(cpu_reference_open(&b, 1, NULL), STATUS_OK);
	write_model(folder, b, seed, POSITIONS, POSITION_ERROR);
	backend_close(b);
}

static int open_all(void **state)
{
	opened *o = calloc(1, sizeof *o);
	write_folder(o->folder, 1);
	assert_int_equal(additive_device_open(&o->device, "cpu", 1, NULL), ADDITIVE_OK);
	assert_int_equal(additive_model_open(&o->model, o->device, o->folder, "fp32", 3, NULL), ADDITIVE_OK);
	assert_int_equal(additive_session_open(&o->session, o->model, ADDITIVE_POSITIONS_ERROR, NULL), ADDITIVE_OK);
	*state = o;
	return 0;
}

static int close_all(void **state)
{
	opened *o = *state;
	additive_session_close(o->session);
	assert_int_equal(additive_model_close(o->model, NULL), ADDITIVE_OK);
	assert_int_equal(additive_device_close(o->device, NULL), ADDITIVE_OK);
	file_remove_tree(o->folder, NULL);
	free(o);
	return 0;
}

/* `failure` is the error of the call, which is evaluated first. */
#define ASSERT_FAILS(call, code_, field_)                                                                              \
	do {                                                                                                           \
		additive_error failure = {.code = ADDITIVE_OK};                                                        \
		assert_int_equal(call, code_);                                                                         \
		assert_int_equal(failure.code, code_);                                                                 \
		assert_string_equal(failure.field, field_);                                                            \
		assert_true(failure.message[0]);                                                                       \
	} while (0)

/* --- errors -------------------------------------------------------------------------- */

static void a_device_names_the_argument_that_is_wrong(void **state)
{
	additive_device *d;
	(void)state;
	ASSERT_FAILS(additive_device_open(&d, "gpu", 0, &failure), ADDITIVE_INVALID, "device");
	assert_null(d);
	ASSERT_FAILS(additive_device_open(&d, "cuda", 0, &failure), ADDITIVE_UNAVAILABLE, "device");
	ASSERT_FAILS(additive_device_open(&d, "cpu", -1, &failure), ADDITIVE_INVALID, "threads");
}

static void a_model_names_the_argument_that_is_wrong(void **state)
{
	opened *o = *state;
	additive_model *m;
	char empty[FOLDER_BYTES];
	ASSERT_FAILS(additive_model_open(&m, o->device, "/nowhere", "fp32", 0, &failure), ADDITIVE_NOT_FOUND, "folder");
	assert_null(m);
	ASSERT_FAILS(additive_model_open(&m, o->device, o->folder, "fp8", 0, &failure), ADDITIVE_INVALID, "weights");
	ASSERT_FAILS(additive_model_open(&m, o->device, o->folder, "fp32", -1, &failure), ADDITIVE_INVALID, "sessions");
	make_folder(empty);
	ASSERT_FAILS(additive_model_open(&m, o->device, empty, "fp32", 0, &failure), ADDITIVE_NOT_FOUND, "folder");
	file_remove_tree(empty, NULL);
}

static void what_others_use_stays_open(void **state)
{
	opened *o = *state;
	ASSERT_FAILS(additive_model_close(o->model, &failure), ADDITIVE_CONFLICT, "model");
	ASSERT_FAILS(additive_device_close(o->device, &failure), ADDITIVE_CONFLICT, "device");
	assert_int_equal(additive_session_read(o->session, prompt, PROMPT, NULL), ADDITIVE_OK);
}

static void sessions_are_limited(void **state)
{
	opened *o = *state;
	additive_session *more[3];
	for (int i = 0; i < 2; i++)
		assert_int_equal(additive_session_open(&more[i], o->model, ADDITIVE_POSITIONS_WRAP, NULL), ADDITIVE_OK);
	ASSERT_FAILS(additive_session_open(&more[2], o->model, ADDITIVE_POSITIONS_WRAP, &failure), ADDITIVE_BUSY, "");
	assert_null(more[2]);
	ASSERT_FAILS(additive_session_open(&more[2], o->model, (additive_positions)9, &failure), ADDITIVE_INVALID,
	             "positions");
	/* These need a state of their own. */
	float numbers[PROMPT];
	additive_explanation explanation = {.output = -1, .other = -1};
	assert_int_equal(additive_explain(o->model, prompt, PROMPT, &explanation, numbers, NULL, NULL), ADDITIVE_OK);
	assert_int_equal(additive_explain_weights(o->model, prompt, PROMPT, -1, -1, 0, numbers, NULL), ADDITIVE_OK);
	for (int i = 0; i < 2; i++)
		additive_session_close(more[i]);
}

static void a_session_names_the_token_that_is_wrong(void **state)
{
	opened *o = *state;
	additive_session *x = o->session;
	const int32_t wrong[2] = {5, VOCAB};
	const int32_t *read;
	ASSERT_FAILS(additive_session_read(x, NULL, 0, &failure), ADDITIVE_INVALID, "prompt");
	ASSERT_FAILS(additive_session_read(x, wrong, 2, &failure), ADDITIVE_INVALID, "prompt");
	ASSERT_FAILS(additive_session_step(x, VOCAB, &failure), ADDITIVE_INVALID, "token");
	ASSERT_FAILS(additive_session_step(x, -1, &failure), ADDITIVE_INVALID, "token");
	assert_int_equal(additive_session_tokens(x, &read), 0);
	for (int i = 0; i < POSITIONS; i++)
		assert_int_equal(additive_session_step(x, i, NULL), ADDITIVE_OK);
	ASSERT_FAILS(additive_session_step(x, 1, &failure), ADDITIVE_INVALID, "token");
	ASSERT_FAILS(additive_session_read(x, prompt, 1, &failure), ADDITIVE_INVALID, "prompt");
	assert_int_equal(additive_session_tokens(x, &read), POSITIONS);
	assert_int_equal(read[POSITIONS - 1], POSITIONS - 1);
}

static void sampling_names_the_setting_that_is_wrong(void **state)
{
	opened *o = *state;
	additive_sampling s;
	const float *logits;
	int32_t token;
	additive_sampling_default(&s);
	ASSERT_FAILS(additive_session_sample(o->session, &s, &token, &failure), ADDITIVE_CONFLICT, "");
	ASSERT_FAILS(additive_session_logits(o->session, &logits, &failure), ADDITIVE_CONFLICT, "");
	s.temperature = 3;
	ASSERT_FAILS(additive_session_sample(o->session, &s, &token, &failure), ADDITIVE_INVALID, "temperature");
}

static void a_tampered_state_is_refused(void **state)
{
	opened *o = *state;
	char folder[FOLDER_BYTES];
	unsigned char *data;
	void *saved;
	size_t bytes;
	additive_model *other;
	additive_session *x;
	assert_int_equal(additive_session_read(o->session, prompt, PROMPT, NULL), ADDITIVE_OK);
	assert_int_equal(additive_session_save(o->session, &saved, &bytes, NULL), ADDITIVE_OK);
	data = saved;
	for (size_t at = 0; at < bytes; at += bytes / 9) {
		data[at] ^= 1;
		ASSERT_FAILS(additive_session_load(&x, o->model, data, bytes, &failure), ADDITIVE_CORRUPT, "state");
		assert_null(x);
		data[at] ^= 1;
	}
	ASSERT_FAILS(additive_session_load(&x, o->model, data, bytes - 1, &failure), ADDITIVE_CORRUPT, "state");
	ASSERT_FAILS(additive_session_load(&x, o->model, data, 3, &failure), ADDITIVE_CORRUPT, "state");
	write_folder(folder, 2);
	assert_int_equal(additive_model_open(&other, o->device, folder, "fp32", 0, NULL), ADDITIVE_OK);
	ASSERT_FAILS(additive_session_load(&x, other, data, bytes, &failure), ADDITIVE_INVALID, "state");
	assert_int_equal(additive_model_close(other, NULL), ADDITIVE_OK);
	file_remove_tree(folder, NULL);
	additive_free(saved);
}

static void an_explanation_names_the_argument_that_is_wrong(void **state)
{
	opened *o = *state;
	float parts[PROMPT];
	const int32_t wrong[1] = {-3};
	additive_explanation x = {.method = ADDITIVE_CONTRIBUTIONS, .output = -1, .other = -1}, y = x;
#define EXPLAIN(tokens, n) additive_explain(o->model, tokens, n, &y, parts, NULL, &failure)
	ASSERT_FAILS(EXPLAIN(prompt, 0), ADDITIVE_INVALID, "input");
	ASSERT_FAILS(EXPLAIN(wrong, 1), ADDITIVE_INVALID, "input");
	y.method = (additive_method)9;
	ASSERT_FAILS(EXPLAIN(prompt, PROMPT), ADDITIVE_INVALID, "method");
	y = x;
	y.kind = (additive_score)9;
	ASSERT_FAILS(EXPLAIN(prompt, PROMPT), ADDITIVE_INVALID, "kind");
	y = x;
	y.output = VOCAB;
	ASSERT_FAILS(EXPLAIN(prompt, PROMPT), ADDITIVE_INVALID, "target");
#undef EXPLAIN
#define WEIGHTS(layer, head) additive_explain_weights(o->model, prompt, PROMPT, layer, head, 0, parts, &failure)
	ASSERT_FAILS(WEIGHTS(LAYERS, -1), ADDITIVE_INVALID, "layer");
	ASSERT_FAILS(WEIGHTS(-1, HEADS), ADDITIVE_INVALID, "head");
#undef WEIGHTS
}

static void a_recipe_names_the_field_that_is_wrong(void **state)
{
	opened *o = *state;
	char run[FOLDER_BYTES], text[FOLDER_BYTES + 16];
	const file_part all = {"some words to train on, again and again, some words to train on", 62};
	make_folder(run);
	snprintf(text, sizeof text, "%s/text.txt", run);
	assert_int_equal(file_write(text, &all, 1, NULL), STATUS_OK);
#define TRAIN(recipe, file) additive_train(o->device, recipe, file, run, NULL, NULL, &failure)
	ASSERT_FAILS(TRAIN("{", text), ADDITIVE_INVALID, "recipe");
	ASSERT_FAILS(TRAIN("[]", text), ADDITIVE_INVALID, "recipe");
	ASSERT_FAILS(TRAIN("{\"model\": \"additive\"}", NULL), ADDITIVE_INVALID, "training_file");
	ASSERT_FAILS(TRAIN("{\"model\": \"additive\"}", "/nowhere"), ADDITIVE_NOT_FOUND, "training_file");
	ASSERT_FAILS(TRAIN("{\"model\": \"additive\", \"additive\": {\"batchsize\": 1}}", text), ADDITIVE_INVALID,
	             "additive.batchsize");
	ASSERT_FAILS(TRAIN("{\"model\": \"additive\", \"additive\": {\"tokenizer\": {\"type\": \"bpe\"}}}", text),
	             ADDITIVE_UNSUPPORTED, "additive.tokenizer.type");
#undef TRAIN
	file_remove_tree(run, NULL);
}

/* --- numbers ------------------------------------------------------------------------- */

/* Generate through the model's own scheduler, as the service does. */
static void generate_by_scheduler(additive_model *m, client *c, const sampling *s)
{
	fixture f = {.scheduler = m->scheduler, .model = m->served};
	generation_request r = request(c, prompt, PROMPT, TOKENS);
	r.sampling = *s;
	start(&f, NULL, c, &r);
	assert_int_equal(handles_run(m, NULL), STATUS_OK);
	assert_int_equal(c->result.status, STATUS_OK);
	assert_int_equal(c->n_tokens, TOKENS);
}

static void generate_by_steps(additive_session *x, const additive_sampling *s, int n, int32_t *tokens)
{
	for (int i = 0; i < n; i++) {
		assert_int_equal(additive_session_sample(x, s, &tokens[i], NULL), ADDITIVE_OK);
		assert_int_equal(additive_session_step(x, tokens[i], NULL), ADDITIVE_OK);
	}
}

/* Compare greedy tokens, sampled ones, and sampled ones with a penalty. */
static void compare_with_generations(additive_model *m)
{
	client c;
	int32_t tokens[TOKENS];
	for (int i = 0; i < 3; i++) {
		additive_session *x;
		additive_sampling s;
		sampling same;
		additive_sampling_default(&s);
		sampling_default(&same);
		s.seed = same.seed = 7;
		if (i == 0)
			s.temperature = same.temperature = 0;
		if (i == 2)
			s.repetition_penalty = same.repetition_penalty = 1.5f;
		generate_by_scheduler(m, &c, &same);
		assert_int_equal(additive_session_open(&x, m, ADDITIVE_POSITIONS_ERROR, NULL), ADDITIVE_OK);
		assert_int_equal(additive_session_read(x, prompt, PROMPT, NULL), ADDITIVE_OK);
		generate_by_steps(x, &s, TOKENS, tokens);
		assert_memory_equal(tokens, c.tokens, sizeof tokens);
		additive_session_close(x);
	}
}

static void steps_choose_the_tokens_of_a_generation(void **state)
{
	opened *o = *state;
	static const char *const weights[] = {"fp32", "bf16", "int8"};
	char gpt2[FOLDER_BYTES];
	make_folder(gpt2);
	write_gpt2(gpt2, o->device->backend, 1);
	for (int i = 0; i < 6; i++) {
		additive_model *m;
		assert_int_equal(additive_model_open(&m, o->device, i < 3 ? o->folder : gpt2, weights[i % 3], 0, NULL),
		                 ADDITIVE_OK);
		compare_with_generations(m);
		assert_int_equal(additive_model_close(m, NULL), ADDITIVE_OK);
	}
	file_remove_tree(gpt2, NULL);
}

static void copies_continue_with_the_same_bits(void **state)
{
	opened *o = *state;
	additive_session *fork, *loaded;
	additive_sampling s;
	int32_t tokens[TOKENS], other[TOKENS];
	const float *logits, *others;
	void *data;
	size_t bytes;
	additive_sampling_default(&s);
	assert_int_equal(additive_session_read(o->session, prompt, PROMPT, NULL), ADDITIVE_OK);
	assert_int_equal(additive_session_fork(o->session, &fork, NULL), ADDITIVE_OK);
	assert_int_equal(additive_session_save(o->session, &data, &bytes, NULL), ADDITIVE_OK);
	assert_int_equal(additive_session_load(&loaded, o->model, data, bytes, NULL), ADDITIVE_OK);
	generate_by_steps(o->session, &s, TOKENS, tokens);
	additive_session *copies[] = {fork, loaded};
	for (int i = 0; i < 2; i++) {
		generate_by_steps(copies[i], &s, TOKENS, other);
		assert_memory_equal(tokens, other, sizeof tokens);
		assert_int_equal(additive_session_logits(o->session, &logits, NULL), ADDITIVE_OK);
		assert_int_equal(additive_session_logits(copies[i], &others, NULL), ADDITIVE_OK);
		assert_memory_equal(logits, others, VOCAB * sizeof *logits);
		additive_session_close(copies[i]);
	}
	additive_free(data);
}

static void parts_sum_to_the_score_and_weights_to_one(void **state)
{
	opened *o = *state;
	float parts[PROMPT], others[PROMPT], weights[PROMPT];
	additive_explanation x = {.kind = ADDITIVE_SCORE_LOGIT, .output = 9, .other = -1};
	for (int method = ADDITIVE_CONTRIBUTIONS; method <= ADDITIVE_LEAVE_ONE_OUT; method++) {
		x.method = (additive_method)method;
		assert_int_equal(additive_explain(o->model, prompt, PROMPT, &x, parts, others, NULL), ADDITIVE_OK);
		double sum = x.head;
		for (int i = 0; i < PROMPT; i++)
			sum += (double)parts[i] + (double)others[i];
		assert_true(x.output == 9 && x.score == x.logit);
		if (method == ADDITIVE_CONTRIBUTIONS)
			assert_true(sum - x.score < 1e-4 && x.score - sum < 1e-4);
	}
	for (int rollout = 0; rollout < 2; rollout++) {
		double sum = 0;
		assert_int_equal(additive_explain_weights(o->model, prompt, PROMPT, 1, -1, rollout, weights, NULL),
		                 ADDITIVE_OK);
		for (int i = 0; i < PROMPT; i++)
			sum += (double)weights[i];
		assert_true(sum > 0.9999 && sum < 1.0001);
	}
}

static void a_text_gives_whole_characters(void **state)
{
	opened *o = *state;
	additive_text *t;
	int32_t *tokens;
	size_t count, bytes;
	assert_int_equal(additive_tokenize(o->model, "a\xC3\xA9", 3, 0, &tokens, &count, NULL), ADDITIVE_OK);
	assert_int_equal(count, 3);
	assert_int_equal(additive_text_open(&t, o->model, 0, NULL), ADDITIVE_OK);
	assert_string_equal(additive_text_append(t, tokens[0], &bytes), "a");
	assert_string_equal(additive_text_append(t, tokens[1], &bytes), "");
	assert_string_equal(additive_text_append(t, tokens[2], &bytes), "\xC3\xA9");
	assert_string_equal(additive_text_append(t, VOCAB, &bytes), "");
	assert_string_equal(additive_text_append(t, tokens[1], &bytes), "");
	assert_string_equal(additive_text_append(t, -1, &bytes), "\xEF\xBF\xBD");
	assert_int_equal(bytes, 3);
	additive_text_close(t);
	additive_free(tokens);
}

static void a_text_that_continues_has_no_token_that_begins_one(void **state)
{
	opened *o = *state;
	static const char json[] =
	    "{\"added_tokens\": [{\"id\": 0, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": false, "
	    "\"rstrip\": false, \"normalized\": false, \"special\": true}], \"normalizer\": null, "
	    "\"pre_tokenizer\": null, \"decoder\": null, \"post_processor\": {\"type\": \"TemplateProcessing\", "
	    "\"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "
	    "\"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": "
	    "{\"id\": \"B\", \"type_id\": 0}}], \"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [0], "
	    "\"tokens\": [\"<s>\"]}}}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"<s>\": 0, \"a\": 1, \"b\": 2}, "
	    "\"merges\": []}}";
	char path[FOLDER_BYTES + 16];
	additive_model *m;
	int32_t *tokens;
	size_t count;
	snprintf(path, sizeof path, "%s/tokenizer.json", o->folder);
	assert_int_equal(file_write(path, &(file_part){json, sizeof json - 1}, 1, NULL), STATUS_OK);
	additive_error failure = {.code = ADDITIVE_OK};
	if (additive_model_open(&m, o->device, o->folder, "fp32", 0, &failure) != ADDITIVE_OK)
		fail_msg("%s: %s", failure.field, failure.message);
	for (int continues = 0; continues < 2; continues++) {
		assert_int_equal(additive_tokenize(m, "ab", 2, continues, &tokens, &count, NULL), ADDITIVE_OK);
		assert_int_equal(count, 3 - continues);
		assert_int_equal(tokens[0], continues ? 1 : 0);
		additive_free(tokens);
	}
	assert_int_equal(additive_model_close(m, NULL), ADDITIVE_OK);
}

static int stop_at_step_2(void *context, const additive_progress *p)
{
	*(int64_t *)context = p->step;
	return p->step == 2;
}

static void a_stopped_run_continues_with_the_same_bits(void **state)
{
	opened *o = *state;
	char run[2][FOLDER_BYTES], text[FOLDER_BYTES + 16], words[2000], path[FOLDER_BYTES + 32], *weights[2];
	size_t bytes[2];
	int64_t step = 0;
	static const char recipe[] =
	    "{\"model\": \"additive\", \"seed\": 1, \"additive\": {\"max_steps\": 4, \"sequence_length\": 16, "
	    "\"batch_size\": 2, \"config\": {\"hidden_size\": 16, \"n_heads\": 2, \"n_layer\": 2, \"n_positions\": "
	    "16}}}";
	for (size_t i = 0; i < sizeof words; i++)
		words[i] = (char)('a' + i * i % 19);
	for (int i = 0; i < 2; i++)
		make_folder(run[i]);
	snprintf(text, sizeof text, "%s/text.txt", run[0]);
	assert_int_equal(file_write(text, &(file_part){words, sizeof words}, 1, NULL), STATUS_OK);
	ASSERT_FAILS(additive_train(o->device, recipe, text, run[0], stop_at_step_2, &step, &failure),
	             ADDITIVE_CANCELLED, "");
	assert_int_equal(step, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(additive_train(o->device, recipe, text, run[i], NULL, NULL, NULL), ADDITIVE_OK);
		snprintf(path, sizeof path, "%s/model/model.safetensors", run[i]);
		assert_int_equal(file_read(path, 1 << 20, &weights[i], &bytes[i], NULL), STATUS_OK);
	}
	assert_int_equal(bytes[0], bytes[1]);
	assert_memory_equal(weights[0], weights[1], bytes[0]);
	for (int i = 0; i < 2; i++) {
		free(weights[i]);
		file_remove_tree(run[i], NULL);
	}
}

int main(void)
{
#define WITH_ALL(test) cmocka_unit_test_setup_teardown(test, open_all, close_all)
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_device_names_the_argument_that_is_wrong),
	    WITH_ALL(a_model_names_the_argument_that_is_wrong),
	    WITH_ALL(what_others_use_stays_open),
	    WITH_ALL(sessions_are_limited),
	    WITH_ALL(a_session_names_the_token_that_is_wrong),
	    WITH_ALL(sampling_names_the_setting_that_is_wrong),
	    WITH_ALL(a_tampered_state_is_refused),
	    WITH_ALL(an_explanation_names_the_argument_that_is_wrong),
	    WITH_ALL(a_recipe_names_the_field_that_is_wrong),
	    WITH_ALL(steps_choose_the_tokens_of_a_generation),
	    WITH_ALL(copies_continue_with_the_same_bits),
	    WITH_ALL(parts_sum_to_the_score_and_weights_to_one),
	    WITH_ALL(a_text_gives_whole_characters),
	    WITH_ALL(a_text_that_continues_has_no_token_that_begins_one),
	    WITH_ALL(a_stopped_run_continues_with_the_same_bits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
