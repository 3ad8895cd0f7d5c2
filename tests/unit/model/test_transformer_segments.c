/* The transformer in segments (max_mem_len): sessions compared with segments that read the rows kept by the previous
 * one, alone and side by side; and options that no session supports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "engine/model/feed.h"
#include "engine/model/transformer/transformer.h"
#include "tests/unit/model/transformer.h"

enum { V = 11, DIM = 12, SEGMENT = 6, READ = 27 };

/* Logits [READ, V] of one sequence, segment by segment. Each segment reads the rows kept by the previous one: only
 * those that exist or, with `filled`, the maximum number with the missing rows hidden. */
static void read_segments(const model *m, const int32_t *ids, bool filled, float *logits)
{
	const state_list *carried = model_carried(m);
	const int64_t most = carried->items[0].floats / DIM;
	const int64_t front = transformer_head(model_config(m))->options.num_memory_tokens;
	float *left = calloc((size_t)carried->floats, sizeof *left);
	for (int32_t at = 0; at < READ; at += SEGMENT) {
		const int64_t count = READ - at < SEGMENT ? READ - at : SEGMENT;
		const int64_t before = at + at / SEGMENT * front;
		const forward_input memory[] = {{.name = STACK_MEMORY, .rows = before < most ? before : most}, {0}};
		const forward_spec spec = {.batch = 1,
		                           .length = count,
		                           .inputs = filled ? NULL : memory,
		                           .train.carried = filled,
		                           .out.logits = LOGITS_ALL};
		plan *p = fixture_plan(m, &spec, NULL, NULL);
		for (int i = 0; i < carried->count && (filled || at); i++)
			fixture_write(p, carried->items[i].name, left + carried->items[i].offset);
		assert_int_equal(feed_write(p, PORT_TOKENS, ids + at), STATUS_OK);
		assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, at), STATUS_OK);
		if (filled)
			assert_int_equal(feed_carried(p, &at), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		fixture_read(p, "logits", logits + at * V);
		for (int i = 0; i < carried->count; i++) {
			char name[80];
			snprintf(name, sizeof name, "next.%s", carried->items[i].name);
			fixture_read(p, name, left + carried->items[i].offset);
		}
		plan_free(p);
	}
	free(left);
}

/* Read two sessions token by token; the first one starts `LAG` steps later. */
static void read_side_by_side(const model *m, const int32_t *ids, const float *expected, const char *text)
{
	enum { LAG = 4 };
	const forward_spec spec = {.phase = PHASE_STEP, .batch = 2, .length = 1, .slots = 2, .out.logits = LOGITS_ALL};
	float *pool = calloc((size_t)(2 * model_state_floats(m)), sizeof *pool), got[2 * V];
	plan *p = fixture_plan(m, &spec, NULL, pool);
	for (int32_t at = 0; at < READ; at++) {
		const bool both = at >= LAG;
		const int32_t position[] = {both ? at - LAG : 0, at}, length[] = {both, 1}, slot[] = {1, 0},
		              tokens[] = {ids[position[0]], ids[at]};
		const model_dims *d = model_dimensions(m);
		const int32_t rows[] = {position_row(d, POSITION_ERROR, position[0]),
		                        position_row(d, POSITION_ERROR, at)};
		assert_int_equal(feed_write(p, PORT_TOKENS, tokens), STATUS_OK);
		assert_int_equal(feed_write(p, PORT_SLOT, slot), STATUS_OK);
		assert_int_equal(feed_write(p, PORT_POSITION, position), STATUS_OK);
		assert_int_equal(feed_write(p, PORT_LENGTH, length), STATUS_OK);
		assert_int_equal(feed_write(p, PORT_POSITIONS, rows), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		fixture_read(p, "logits", got);
		for (int b = both ? 0 : 1; b < 2; b++) {
			const double off = distance(got + b * V, expected + position[b] * V, V);
			if (!(off <= 1e-5))
				fail_msg("token %d beside another: off by %g with %s", (int)position[b], off, text);
		}
	}
	plan_free(p);
	free(pool);
}

static void sessions_give_the_logits_of_segments_with_memories(void **state)
{
	(void)state;
	backend *b = fixture_backend();
	/* Missing rows count in the positions of memories and of rotated values. */
	enum { COUNTED = 16 };
	static const char *const cases[] = {
	    "\"max_mem_len\": 4, \"rotary_pos_emb\": true",
	    "\"max_mem_len\": 5, \"num_memory_tokens\": 2, \"rel_pos_bias\": true",
	    "\"max_mem_len\": 17, \"num_memory_tokens\": 3, \"rotary_pos_emb\": true, \"attn_one_kv_head\": true",
	    "\"max_mem_len\": 3, \"num_memory_tokens\": 4, \"alibi_pos_bias\": true, \"shift_tokens\": 1, "
	    "\"raw_memory\": true",
	    "\"max_mem_len\": 9, \"num_memory_tokens\": 1, \"attn_num_mem_kv\": 2, \"attn_qk_norm\": true",
	    "\"max_mem_len\": 8, \"num_memory_tokens\": 2, \"attn_talking_heads\": true, \"residual_attn\": true, "
	    "\"attn_max_attend_past\": 7",
	    "\"max_mem_len\": 15, \"rel_pos_bias\": true, \"rel_pos_num_buckets\": 8, \"rel_pos_max_distance\": 20",
	    "\"max_mem_len\": 1, \"alibi_pos_bias\": true, \"use_abs_pos_emb\": false",
	    "\"max_mem_len\": 6",
	    "\"max_mem_len\": 9, \"alibi_pos_bias\": true, \"attn_one_kv_head\": true, \"attn_max_attend_past\": 7",
	    "\"max_mem_len\": 9, \"attn_num_mem_kv\": 2, \"attn_qk_norm\": true",
	    "\"max_mem_len\": 8, \"rotary_pos_emb\": true, \"attn_talking_heads\": true, \"residual_attn\": true",
	    "\"max_mem_len\": 8, \"pre_norm\": false, \"gate_residual\": true, \"raw_memory\": true, \"macaron\": true",
	    "\"max_mem_len\": 15, \"rel_pos_bias\": true, \"raw_memory\": true, \"attn_one_kv_head\": true",
	    "\"max_mem_len\": 7, \"alibi_pos_bias\": true, \"shift_tokens\": [2, 1, 1, 0], \"attn_sparse_topk\": 5",
	    "\"max_mem_len\": 5, \"rotary_pos_emb\": true, \"shift_mem_down\": 1, \"attn_talking_heads\": true",
	    "\"max_mem_len\": 9, \"rel_pos_bias\": true, \"attn_num_mem_kv\": 2, \"attn_max_attend_past\": 12",
	    "\"max_mem_len\": 8, \"rotary_pos_emb\": true, \"rotate_values\": true, \"attn_num_mem_kv\": 1",
	    "\"max_mem_len\": 14, \"rotary_pos_emb\": true, \"rotate_values\": true, \"raw_memory\": true, "
	    "\"attn_shared_kv\": true, \"attn_gate_values\": true",
	    "\"max_mem_len\": 8, \"num_memory_tokens\": 3, \"rotary_pos_emb\": true, \"rotate_values\": true, "
	    "\"attn_num_mem_kv\": 1",
	    "\"max_mem_len\": 13, \"num_memory_tokens\": 2, \"rel_pos_bias\": true, \"shift_mem_down\": 1, "
	    "\"shift_tokens\": 1, \"depth\": 3",
	    "\"max_mem_len\": 17, \"rel_pos_bias\": true, \"raw_memory\": true, \"shift_mem_down\": 2, "
	    "\"attn_num_mem_kv\": 2, \"shift_tokens\": 1, \"depth\": 3, \"residual_attn\": true",
	};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		char text[500];
		snprintf(text, sizeof text,
		         "{\"stack\": \"decoder\", \"num_tokens\": %d, \"dim\": %d, \"heads\": 2, %s"
		         "\"attn_dim_head\": 6, \"ff_mult\": 1, \"max_seq_len\": %d, %s}",
		         V, DIM, strstr(cases[c], "depth") ? "" : "\"depth\": 2, ", SEGMENT, cases[c]);
		model *m = fixture_created_as(&architecture_transformer, text, 7, b);
		stir(m);
		const model_dims *d = model_dimensions(m);
		int32_t ids[READ];
		float expected[READ * V], got[8 * V];
		for (int i = 0; i < READ; i++)
			ids[i] = i * i * 7 % V;
		const int64_t front = transformer_head(model_config(m))->options.num_memory_tokens;
		assert_int_equal(d->positions, front ? INT32_MAX / (SEGMENT + front) * SEGMENT : MODEL_UNBOUNDED);
		read_segments(m, ids, false, expected);
		if (c < COUNTED) {
			float filled[READ * V];
			read_segments(m, ids, true, filled);
			assert_true(distance(filled, expected, READ * V) <= 1e-5);
		}
		static const int64_t chunks[] = {1, 3, 8};
		for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
			const int64_t chunk = chunks[k];
			const forward_spec spec = {
			    .phase = PHASE_STEP, .batch = 1, .length = chunk, .slots = 1, .out.logits = LOGITS_ALL};
			float *pool = calloc((size_t)model_state_floats(m), sizeof *pool);
			plan *p = fixture_plan(m, &spec, NULL, pool);
			for (int64_t at = 0, count; at + chunk <= READ; at += count) {
				count = model_dims_piece(d, at, chunk, chunk);
				assert_int_equal(feed_write(p, PORT_TOKENS, ids + at), STATUS_OK);
				assert_int_equal(feed_step(p, at, count), STATUS_OK);
				assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, at), STATUS_OK);
				assert_int_equal(plan_run(p), STATUS_OK);
				fixture_read(p, "logits", got);
				const double off = distance(got, expected + at * V, count * V);
				if (!(off <= 1e-5))
					fail_msg("token %d in pieces of %d: off by %g with %s", (int)at, (int)chunk,
					         off, cases[c]);
			}
			plan_free(p);
			free(pool);
		}
		read_side_by_side(m, ids, expected, cases[c]);
		model_free(m);
	}
	backend_close(b);
}

/* Segments have 6 tokens after 2 rows of their own, and read `memory` rows of the previous segment. */
static void explanations_leave_out_the_rows_before_segments(void **state)
{
	(void)state;
	backend *b = fixture_backend();
	static const struct {
		int64_t memory, token, first;
	} cases[] = {{5, 3, 0},   {5, 6, 1}, {5, 7, 1},  {5, 11, 1}, {5, 12, 7}, {1, 6, 5},
	             {1, 13, 11}, {8, 6, 0}, {8, 12, 6}, {7, 12, 6}, {6, 12, 6}, {9, 12, 5}};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		char text[300];
		snprintf(text, sizeof text,
		         "{\"stack\": \"decoder\", \"num_tokens\": 11, \"dim\": 8, \"depth\": 1, \"heads\": 2, "
		         "\"attn_dim_head\": 4, \"max_seq_len\": 6, \"max_mem_len\": %d, \"num_memory_tokens\": 2}",
		         (int)cases[c].memory);
		model *m = fixture_created_as(&architecture_transformer, text, 7, b);
		const explain_range r =
		    model_explainer(m)->range(model_mixer_options(m, 0), cases[c].token, cases[c].token + 1);
		assert_int_equal(r.first, cases[c].first);
		assert_int_equal(r.end, cases[c].token + 1);
		model_free(m);
	}
	backend_close(b);
}

static void options_that_no_session_supports_are_refused_by_name(void **state)
{
	(void)state;
	backend *b = fixture_backend();
	static const char *const keys[][2] = {{"attn_qk_norm_groups", "2, \"attn_qk_norm\": true"}};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		char text[300];
		plan *p;
		error err = ERROR_INIT;
		float pool[4096] = {0};
		snprintf(text, sizeof text,
		         "{\"stack\": \"decoder\", \"num_tokens\": 11, \"dim\": 8, \"depth\": 1, \"heads\": 2, "
		         "\"attn_dim_head\": 8, \"max_seq_len\": 6, \"max_mem_len\": 3, \"rotary_pos_emb\": true, "
		         "\"%s\": %s}",
		         keys[i][0], keys[i][1]);
		model *m = fixture_created_as(&architecture_transformer, text, 7, b);
		const forward_spec step = {.phase = PHASE_STEP, .batch = 1, .length = 1, .slots = 1},
		                   whole = {.batch = 1, .length = 7, .out.logits = LOGITS_ALL};
		assert_int_equal(model_plan(&p, m, &step, NULL, pool, &err), STATUS_UNSUPPORTED);
		assert_string_equal(err.param, "model");
		assert_non_null(strstr(err.message, keys[i][0]));
		assert_int_equal(model_dimensions(m)->positions, 6);
		assert_int_equal(model_plan(&p, m, &whole, NULL, NULL, NULL), STATUS_UNSUPPORTED);
		model_free(m);
	}
	backend_close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(sessions_give_the_logits_of_segments_with_memories),
	    cmocka_unit_test(explanations_leave_out_the_rows_before_segments),
	    cmocka_unit_test(options_that_no_session_supports_are_refused_by_name),
	};
	return cmocka_run_group_tests_name("transformer in segments", tests, NULL, NULL);
}
