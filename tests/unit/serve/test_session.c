/* Over 600 lines: sessions read, fork, export and import, all checked with the same small models. */
#include "tests/unit/serve/fixture.h"

#include <math.h>

#include "engine/explain/explain.h"
#include "engine/base/digest.h"
#include "engine/serve/session_blob.h"
#include "tests/unit/support/parallel_log.h"

static void assert_close(const float *a, const float *b, int64_t n, double tolerance)
{
	for (int64_t i = 0; i < n; i++)
		if (!(fabs(a[i] - b[i]) <= tolerance * (1 + fabs(b[i]))))
			fail_msg("element %lld: %g and %g", (long long)i, a[i], b[i]);
}

/* --- reading -------------------------------------------------------------------- */

static void a_prompt_gives_the_same_logits_and_scores_in_pieces_of_any_size(void **state)
{
	fixture *f = *state;
	int32_t ids[POSITIONS];
	static const int64_t pieces[] = {1, 2, 3, 5, 7, 16, 17, 31, 33, 47};
	random_tokens(ids, POSITIONS, 1);
	session *whole = open_session(f, "whole", POSITION_ERROR, true);
	append(f, whole, ids, POSITIONS);
	assert_int_equal(whole->tokens, POSITIONS);
	for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
		session *x = open_session(f, "pieces", POSITION_ERROR, true);
		for (int64_t at = 0; at < POSITIONS; at += pieces[p])
			append(f, x, ids + at, POSITIONS - at < pieces[p] ? POSITIONS - at : pieces[p]);
		assert_int_equal(x->tokens, POSITIONS);
		assert_tokens(x, ids, POSITIONS);
		assert_close(x->logits, whole->logits, VOCAB, 1e-4);
		assert_close(x->log, whole->log, POSITIONS * f->model->log_floats, 1e-4);
		drop(f, x);
	}
	drop(f, whole);
}

static void recurrent_scores_equal_those_of_the_parallel_form(void **state)
{
	fixture *f = *state;
	int32_t ids[POSITIONS];
	const float *log;
	int64_t count;
	explain_log parallel, recurrent;
	random_tokens(ids, POSITIONS, 2);
	float *data = parallel_log(f->model->model, ids, POSITIONS, &parallel);
	session *x = open_session(f, "log", POSITION_ERROR, true);
	for (int64_t at = 0; at < POSITIONS; at += 6)
		append(f, x, ids + at, 6);
	assert_int_equal(scheduler_session_log(x, &log, &count, NULL), STATUS_OK);
	assert_int_equal(count, POSITIONS);
	assert_tokens(x, ids, POSITIONS);
	assert_close(log, parallel.data, POSITIONS * f->model->log_floats, 1e-4);
	explain_log_init(&recurrent, model_architecture(f->model->model), model_config(f->model->model), log, count);
	for (int64_t l = 0; l < LAYERS; l++)
		for (int64_t round = 0; round < 2; round++)
			for (int64_t h = 0; h < HEADS; h++)
				for (int64_t i = 0; i < POSITIONS; i++) {
					double a[POSITIONS], b[POSITIONS];
					explain_range r = explain_reads(&parallel, l, i);
					explain_alpha(&parallel, l, round, h, i, a);
					explain_alpha(&recurrent, l, round, h, i, b);
					for (int64_t j = 0; j < r.end - r.first; j++)
						assert_true(fabs(a[j] - b[j]) <= 1e-4);
				}
	free(data);
	drop(f, x);
}

static void the_log_grows_by_every_token_read_and_sampled(void **state)
{
	fixture *f = *state;
	int32_t ids[16];
	const float *log;
	int64_t count;
	random_tokens(ids, 9, 3);
	session *x = open_session(f, "log", POSITION_ERROR, true);
	client c;
	generation_request r = request(&c, ids, 9, 7);
	run(f, x, &c, &r);
	assert_int_equal(scheduler_session_log(x, &log, &count, NULL), STATUS_OK);
	assert_int_equal(count, 16);
	memcpy(ids + 9, c.tokens, 7 * sizeof *ids);
	assert_tokens(x, ids, 16);
	for (int64_t i = 0; i < count * f->model->log_floats; i++)
		assert_true(isfinite(log[i]));
	drop(f, x);
}

static void a_session_without_explain_has_no_log(void **state)
{
	fixture *f = *state;
	const float *log;
	int64_t count;
	session *x = open_session(f, "plain", POSITION_ERROR, false);
	assert_int_equal(scheduler_session_log(x, &log, &count, NULL), STATUS_CONFLICT);
	assert_null(log);
	drop(f, x);
}

static void a_session_has_the_same_state_size_however_much_it_has_read(void **state)
{
	fixture *f = *state;
	int32_t ids[10];
	session_info before, after;
	random_tokens(ids, 10, 4);
	session *x = open_session(f, "long", POSITION_CLAMP, false);
	scheduler_session_info(x, &before);
	assert_int_equal(before.state_bytes, model_state_floats(f->model->model) * (int64_t)sizeof(float));
	for (int i = 0; i < 60; i++)
		append(f, x, ids, 10);
	scheduler_session_info(x, &after);
	assert_int_equal(after.tokens, 600);
	assert_int_equal(after.state_bytes, before.state_bytes);
	assert_string_equal(after.id, "long");
	assert_string_equal(after.model, "m");
	assert_false(after.busy);
	assert_int_equal(after.options.policy, POSITION_CLAMP);
	drop(f, x);
}

/* --- ids and limits ----------------------------------------------------------------- */

static void an_id_is_used_once_and_found_until_deleted(void **state)
{
	fixture *f = *state;
	session_options o = {.policy = POSITION_ERROR};
	session *x = open_session(f, "one", POSITION_ERROR, false), *y;
	assert_ptr_equal(scheduler_session_find(f->scheduler, "one"), x);
	assert_int_equal(scheduler_session_new(f->scheduler, f->model, "one", &o, &y, NULL), STATUS_CONFLICT);
	assert_null(y);
	assert_int_equal(scheduler_session_new(f->scheduler, f->model, "", &o, &y, NULL), STATUS_INVALID);
	char long_id[SCHEDULER_ID_BYTES + 1];
	memset(long_id, 'x', sizeof long_id);
	long_id[SCHEDULER_ID_BYTES] = '\0';
	assert_int_equal(scheduler_session_new(f->scheduler, f->model, long_id, &o, &y, NULL), STATUS_INVALID);
	drop(f, x);
	assert_null(scheduler_session_find(f->scheduler, "one"));
}

static void more_sessions_than_allowed_are_refused_as_busy(void **state)
{
	fixture *f = *state;
	session_options o = {.policy = POSITION_ERROR};
	session *x[17];
	char id[16];
	for (int i = 0; i < 16; i++) {
		snprintf(id, sizeof id, "s%d", i);
		x[i] = open_session(f, id, POSITION_ERROR, false);
	}
	assert_int_equal(scheduler_session_new(f->scheduler, f->model, "more", &o, &x[16], NULL), STATUS_BUSY);
	assert_int_equal(scheduler_session_fork(f->scheduler, x[0], "more", &x[16], NULL), STATUS_BUSY);
	drop(f, x[7]);
	assert_int_equal(scheduler_session_fork(f->scheduler, x[0], "more", &x[16], NULL), STATUS_OK);
	for (int i = 0; i < 17; i++)
		if (i != 7)
			drop(f, x[i]);
}

/* --- fork, export, import -------------------------------------------------------------- */

static void a_fork_continues_as_its_original_and_independently(void **state)
{
	fixture *f = *state;
	int32_t ids[12];
	random_tokens(ids, 12, 5);
	session *x = open_session(f, "original", POSITION_ERROR, true), *y, *z;
	append(f, x, ids, 12);
	assert_int_equal(scheduler_session_fork(f->scheduler, x, "fork", &y, NULL), STATUS_OK);
	assert_int_equal(y->tokens, 12);
	assert_same_logits(x, y);
	client cx, cy, cz;
	generation_request r = request(&cx, NULL, 0, 10);
	run(f, x, &cx, &r);
	assert_int_equal(scheduler_session_fork(f->scheduler, y, "fork of the fork", &z, NULL), STATUS_OK);
	append(f, y, ids, 3); /* other tokens */
	r = request(&cz, NULL, 0, 10);
	run(f, z, &cz, &r);
	assert_memory_equal(cx.tokens, cz.tokens, 10 * sizeof(int32_t));
	assert_same_logits(x, z);
	assert_memory_equal(x->log, z->log, (size_t)(22 * f->model->log_floats) * sizeof(float));
	r = request(&cy, NULL, 0, 1);
	run(f, y, &cy, &r);
	assert_int_equal(y->tokens, 16);
	drop(f, x);
	drop(f, y);
	drop(f, z);
}

static void an_empty_session_can_be_forked_and_exported(void **state)
{
	fixture *f = *state;
	session *x = open_session(f, "empty", POSITION_WRAP, true), *y, *z;
	void *blob;
	size_t bytes;
	int32_t ids[4];
	random_tokens(ids, 4, 6);
	assert_int_equal(scheduler_session_fork(f->scheduler, x, "fork", &y, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_import(f->scheduler, f->model, "import", blob, bytes, &z, NULL), STATUS_OK);
	append(f, x, ids, 4);
	append(f, y, ids, 4);
	append(f, z, ids, 4);
	assert_same_logits(x, y);
	assert_same_logits(x, z);
	free(blob);
	drop(f, x);
	drop(f, y);
	drop(f, z);
}

static void an_import_continues_exactly_where_the_export_was_made(void **state)
{
	fixture *f = *state;
	int32_t ids[21];
	void *blob, *again;
	size_t bytes, bytes_again;
	session_info info;
	random_tokens(ids, 21, 7);
	session *y;
	session_options o = {.policy = POSITION_WRAP, .explain = true, .durable = true};
	session *x;
	assert_int_equal(scheduler_session_new(f->scheduler, f->model, "x", &o, &x, NULL), STATUS_OK);
	append(f, x, ids, 21);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_import(f->scheduler, f->model, "y", blob, bytes, &y, NULL), STATUS_OK);
	scheduler_session_info(y, &info);
	assert_int_equal(info.tokens, 21);
	assert_true(info.options.policy == POSITION_WRAP && info.options.explain && info.options.durable);
	assert_int_equal(scheduler_session_export(f->scheduler, y, &again, &bytes_again, NULL), STATUS_OK);
	assert_int_equal(bytes_again, bytes);
	assert_memory_equal(again, blob, bytes);
	client cx, cy;
	generation_request r = request(&cx, NULL, 0, 60);
	run(f, x, &cx, &r);
	r = request(&cy, NULL, 0, 60);
	run(f, y, &cy, &r);
	assert_memory_equal(cx.tokens, cy.tokens, 60 * sizeof(int32_t));
	assert_same_logits(x, y);
	free(again);
	free(blob);
	drop(f, x);
	drop(f, y);
}

static void equal_sessions_export_equal_bytes_whatever_their_slots_held(void **state)
{
	fixture *f = *state;
	int32_t ids[30];
	void *a, *b;
	size_t na, nb;
	random_tokens(ids, 30, 8);
	session *x = open_session(f, "a", POSITION_CLAMP, false);
	append(f, x, ids, 3);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &a, &na, NULL), STATUS_OK);
	append(f, x, ids, 27);
	drop(f, x);
	x = open_session(f, "b", POSITION_CLAMP, false); /* gets the same slot */
	append(f, x, ids, 3);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &b, &nb, NULL), STATUS_OK);
	assert_int_equal(na, nb);
	assert_memory_equal(a, b, na);
	free(a);
	free(b);
	drop(f, x);
}

static status import(fixture *f, const void *blob, size_t bytes)
{
	/* An exact copy, so that a sanitizer detects a read past the end. */
	unsigned char *copy = malloc(bytes ? bytes : 1);
	session *x;
	memcpy(copy, blob, bytes);
	status s = scheduler_session_import(f->scheduler, f->model, "imported", copy, bytes, &x, NULL);
	free(copy);
	if (s == STATUS_OK)
		drop(f, x);
	else
		assert_null(x);
	return s;
}

static void damage_to_any_byte_and_any_truncation_are_detected(void **state)
{
	fixture *f = *state;
	int32_t ids[5];
	void *out;
	size_t bytes;
	random_tokens(ids, 5, 9);
	session *x = open_session(f, "x", POSITION_ERROR, true);
	append(f, x, ids, 5);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &out, &bytes, NULL), STATUS_OK);
	drop(f, x);
	unsigned char *blob = out;
	assert_int_equal(import(f, blob, bytes), STATUS_OK);
	for (size_t i = 0; i < bytes; i++) {
		blob[i] ^= (unsigned char)(1 << i % 8);
		assert_int_not_equal(import(f, blob, bytes), STATUS_OK);
		blob[i] ^= (unsigned char)(1 << i % 8);
	}
	for (size_t n = 0; n < bytes; n++)
		assert_int_equal(import(f, blob, n), STATUS_CORRUPT);
	unsigned char *longer = calloc(1, bytes + 8);
	memcpy(longer, blob, bytes);
	for (size_t n = 1; n <= 8; n++)
		assert_int_equal(import(f, longer, bytes + n), STATUS_CORRUPT);
	assert_int_equal(import(f, blob, bytes), STATUS_OK);
	free(longer);
	free(out);
}

static void seal(unsigned char *blob, size_t bytes)
{
	uint64_t sum = digest_bytes(blob, bytes - sizeof sum);
	memcpy(blob + bytes - sizeof sum, &sum, sizeof sum);
}

static status import_resealed(fixture *f, unsigned char *blob, size_t bytes)
{
	seal(blob, bytes);
	return import(f, blob, bytes);
}

/* The forger of a blob can also write its checksum. */
static void a_forged_header_is_refused_without_harm(void **state)
{
	fixture *f = *state;
	static const uint64_t values[] = {0,
	                                  1,
	                                  6,
	                                  48,
	                                  49,
	                                  1000,
	                                  INT32_MAX,
	                                  (uint64_t)INT32_MAX + 1,
	                                  UINT32_MAX,
	                                  (uint64_t)1 << 61,
	                                  (uint64_t)1 << 62,
	                                  INT64_MAX,
	                                  (uint64_t)1 << 63,
	                                  UINT64_MAX};
	int32_t ids[5];
	void *out;
	size_t bytes;
	random_tokens(ids, 5, 10);
	session *x = open_session(f, "x", POSITION_ERROR, false);
	append(f, x, ids, 5);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &out, &bytes, NULL), STATUS_OK);
	drop(f, x);
	unsigned char *blob = out, original[64];
	memcpy(original, blob, sizeof original);
	assert_int_equal(import_resealed(f, blob, bytes), STATUS_OK);
	for (size_t at = 24; at < 56; at += 8) /* tokens, state floats, vocabulary, score floats */
		for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
			bool same = memcmp(original + at, &values[i], 8) == 0;
			memcpy(blob + at, &values[i], 8);
			assert_int_equal(import_resealed(f, blob, bytes), same ? STATUS_OK : STATUS_CORRUPT);
			memcpy(blob, original, sizeof original);
		}
	blob[16] ^= 1; /* the model's hash */
	assert_int_equal(import_resealed(f, blob, bytes), STATUS_INVALID);
	memcpy(blob, original, sizeof original);
	for (int version = 0; version < 256; version++) {
		blob[8] = (unsigned char)version;
		assert_int_equal(import_resealed(f, blob, bytes), version == 1                   ? STATUS_OK
		                                                  : version >= 2 && version <= 4 ? STATUS_CORRUPT
		                                                                                 : STATUS_UNSUPPORTED);
	}
	memcpy(blob, original, sizeof original);
	for (int flags = 3; flags < 256; flags++) /* valid flags are 0, 1 and 2 for policies, plus 8 for durable */
		if ((flags & ~8) > 2) {
			blob[12] = (unsigned char)flags;
			assert_int_equal(import_resealed(f, blob, bytes), STATUS_CORRUPT);
		}
	memcpy(blob, original, sizeof original);
	int32_t strange[] = {-1, VOCAB, INT32_MAX, INT32_MIN};
	unsigned char *token = blob + bytes - 8 - 3 * sizeof(int32_t);
	for (int i = 0; i < 4; i++) {
		memcpy(token, &strange[i], sizeof strange[i]);
		assert_int_equal(import_resealed(f, blob, bytes), STATUS_CORRUPT);
	}
	free(out);
}

/* As from a version whose sessions of this model had another size. */
static void a_state_of_another_size_is_refused_naming_both_sizes(void **state)
{
	enum { LESS = 16, HEADER = 56, STATE_FLOATS = 32 };
	fixture *f = *state;
	int32_t ids[5];
	void *out;
	size_t bytes;
	char sizes[2][24];
	session *x;
	error err = ERROR_INIT;
	random_tokens(ids, 5, 10);
	x = open_session(f, "x", POSITION_ERROR, false);
	append(f, x, ids, 5);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &out, &bytes, NULL), STATUS_OK);
	drop(f, x);
	unsigned char *blob = out;
	uint64_t floats;
	memcpy(&floats, blob + STATE_FLOATS, sizeof floats);
	snprintf(sizes[1], sizeof sizes[1], "has %llu", (unsigned long long)floats);
	floats -= LESS;
	snprintf(sizes[0], sizeof sizes[0], "has %llu", (unsigned long long)floats);
	memcpy(blob + STATE_FLOATS, &floats, sizeof floats);
	memmove(blob + HEADER, blob + HEADER + LESS * sizeof(float), bytes - HEADER - LESS * sizeof(float));
	bytes -= LESS * sizeof(float);
	seal(blob, bytes);
	assert_int_equal(scheduler_session_import(f->scheduler, f->model, "y", blob, bytes, &x, &err),
	                 STATUS_UNSUPPORTED);
	assert_non_null(strstr(error_message(&err), sizes[0]));
	assert_non_null(strstr(error_message(&err), sizes[1]));
	free(out);
}

/* A forged state is at worst wrong numbers: the engine and its other sessions are not affected. */
static void a_forged_state_affects_no_other_session(void **state)
{
	fixture *f = *state;
	int32_t ids[20];
	void *out;
	size_t bytes;
	random_tokens(ids, 20, 11);
	session *x = open_session(f, "x", POSITION_CLAMP, false), *forged,
	        *good = open_session(f, "good", POSITION_CLAMP, false);
	session *reference = open_session(f, "reference", POSITION_CLAMP, false);
	append(f, x, ids, 20);
	append(f, good, ids, 7);
	append(f, reference, ids, 7);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &out, &bytes, NULL), STATUS_OK);
	unsigned char *blob = out;
	for (size_t i = 56; i < 56 + statepool_slot_bytes(f->model->pool); i++)
		blob[i] = (unsigned char)philox(1, 1, 0, i).word[0];
	seal(blob, bytes);
	assert_int_equal(scheduler_session_import(f->scheduler, f->model, "forged", blob, bytes, &forged, NULL),
	                 STATUS_OK);
	client bad, fine, alone;
	generation_request r = request(&bad, ids, 3, 30);
	start(f, forged, &bad, &r);
	r = request(&fine, NULL, 0, 30);
	start(f, good, &fine, &r);
	drain(f);
	assert_int_equal(bad.finished, 1);
	assert_int_equal(fine.result.status, STATUS_OK);
	r = request(&alone, NULL, 0, 30);
	run(f, reference, &alone, &r);
	assert_memory_equal(fine.tokens, alone.tokens, 30 * sizeof(int32_t));
	free(out);
	drop(f, x);
	drop(f, forged);
	drop(f, good);
	drop(f, reference);
}

static void a_state_of_another_model_is_refused(void **state)
{
	fixture *f = *state;
	char folder[64];
	void *blob;
	size_t bytes;
	int32_t ids[5];
	error err = ERROR_INIT;
	session *y;
	served_model *other;
	random_tokens(ids, 5, 12);
	make_folder(folder);
	write_model(folder, f->backend, 2, POSITIONS, POSITION_ERROR); /* other weights in the same shape */
	session *x = open_session(f, "x", POSITION_ERROR, false);
	append(f, x, ids, 5);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(scheduler_model(f->scheduler, "other", folder, DTYPE_PANEL_F32, &other, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_import(f->scheduler, other, "y", blob, bytes, &y, &err), STATUS_INVALID);
	assert_non_null(strstr(err.message, "another model"));
	assert_string_equal(err.param, "state");
	assert_int_equal(other->users, 0);
	free(blob);
	drop(f, x);
	assert_int_equal(scheduler_model_unload(f->scheduler, "other", NULL), STATUS_OK);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

/* The largest copy between host and device, and the number of copies. */
static status (*real_download)(backend *b, void *host, const void *data, size_t bytes);
static status (*real_upload)(backend *b, void *data, const void *host, size_t bytes);
static size_t largest, copies;

static void note_copy(size_t bytes)
{
	largest = bytes > largest ? bytes : largest;
	copies++;
}

static status noted_download(backend *b, void *host, const void *data, size_t bytes)
{
	note_copy(bytes);
	return real_download(b, host, data, bytes);
}

static status noted_upload(backend *b, void *data, const void *host, size_t bytes)
{
	note_copy(bytes);
	return real_upload(b, data, host, bytes);
}

/* With a log of scores the blob has a few megabytes. */
static void an_export_and_an_import_move_a_bounded_part_of_the_session_at_a_time(void **state)
{
	enum { MANY = 40000 };
	fixture *f = *state;
	session_transfer out = {0}, in = {0};
	session *y = NULL;
	int steps = 0;
	int32_t *ids = calloc(MANY, sizeof *ids);
	random_tokens(ids, MANY, 15);
	session *x = open_session(f, "x", POSITION_CLAMP, true);
	append(f, x, ids, MANY);
	real_download = f->backend->download;
	real_upload = f->backend->upload;
	f->backend->download = noted_download;
	f->backend->upload = noted_upload;
	largest = copies = 0;
	for (size_t before = 56; !out.done; before = out.moved, steps++) {
		assert_int_equal(scheduler_session_export_step(f->scheduler, x, &out, NULL), STATUS_OK);
		assert_true(out.moved - before <= SESSION_STEP);
	}
	assert_true(steps > 2 && steps >= (int)(out.bytes / SESSION_STEP));
	assert_int_equal(copies, 1); /* only the state is copied */
	assert_int_equal(largest, model_states(f->model->model)->floats * sizeof(float)); /* the slot has more */
	assert_int_equal(scheduler_transfer_check(&out, NULL), STATUS_CORRUPT);
	scheduler_transfer_seal(&out);
	assert_int_equal(scheduler_transfer_check(&out, NULL), STATUS_OK);
	in = (session_transfer){.blob = out.blob, .bytes = out.bytes};
	for (size_t before = 56; !in.done; before = in.moved) {
		assert_null(y);
		assert_int_equal(scheduler_session_import_step(f->scheduler, f->model, "y", &in, &y, NULL), STATUS_OK);
		assert_true(in.moved - before <= SESSION_STEP);
		if (!in.done)
			assert_int_equal(
			    scheduler_session_delete(f->scheduler, scheduler_session_find(f->scheduler, "y"), NULL),
			    STATUS_CONFLICT);
	}
	assert_int_equal(copies, 2);
	f->backend->download = real_download;
	f->backend->upload = real_upload;
	assert_same_logits(x, y);
	scheduler_transfer_fini(&out);
	free(ids);
	drop(f, x);
	drop(f, y);
}

static void a_temporary_import_is_not_durable(void **state)
{
	fixture *f = *state;
	session_options o = {.policy = POSITION_WRAP, .durable = true};
	session *x, *y = NULL;
	session_info info;
	void *blob;
	size_t bytes;
	int32_t ids[5];
	random_tokens(ids, 5, 17);
	assert_int_equal(scheduler_session_new(f->scheduler, f->model, "x", &o, &x, NULL), STATUS_OK);
	append(f, x, ids, 5);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &blob, &bytes, NULL), STATUS_OK);
	session_transfer t = {.blob = blob, .bytes = bytes, .temporary = true};
	assert_int_equal(scheduler_transfer_model(&t), f->model->hash);
	while (!t.done)
		assert_int_equal(scheduler_session_import_step(f->scheduler, f->model, "y", &t, &y, NULL), STATUS_OK);
	scheduler_session_info(y, &info);
	assert_false(info.options.durable);
	assert_int_equal(info.options.policy, POSITION_WRAP);
	assert_same_logits(x, y);
	scheduler_transfer_fini(&t);
	drop(f, x);
	drop(f, y);
}

static void a_fork_copies_a_bounded_part_of_the_session_at_a_time(void **state)
{
	enum { MANY = 40000 };
	fixture *f = *state;
	size_t moved = 0, bytes = MANY * (size_t)f->model->log_floats * sizeof(float);
	session *y = NULL;
	int steps = 0;
	int32_t *ids = calloc(MANY, sizeof *ids);
	random_tokens(ids, MANY, 16);
	session *x = open_session(f, "x", POSITION_CLAMP, true);
	append(f, x, ids, MANY);
	for (size_t before = 0; !y; before = moved, steps++) {
		assert_int_equal(scheduler_session_fork_step(f->scheduler, x, "y", &moved, &y, NULL), STATUS_OK);
		assert_true(moved > before && moved - before <= SESSION_STEP);
		session *half = scheduler_session_find(f->scheduler, "y");
		assert_int_equal(half->busy, !y);
		assert_int_equal(half->tokens, y ? MANY : 0);
	}
	assert_true(steps > 2 && steps >= (int)(bytes / SESSION_STEP));
	assert_tokens(y, ids, MANY);
	assert_memory_equal(y->log, x->log, MANY * (size_t)f->model->log_floats * sizeof(float));
	append(f, x, ids, 3);
	append(f, y, ids, 3);
	assert_same_logits(x, y);
	free(ids);
	drop(f, x);
	drop(f, y);
}

static void a_state_can_be_moved_to_another_engine_with_the_same_model(void **state)
{
	fixture *f = *state;
	scheduler *elsewhere;
	served_model *m;
	session *y;
	void *blob;
	size_t bytes;
	int32_t ids[13];
	random_tokens(ids, 13, 13);
	session *x = open_session(f, "x", POSITION_ERROR, false);
	append(f, x, ids, 13);
	assert_int_equal(scheduler_session_export(f->scheduler, x, &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(scheduler_new(&elsewhere, f->backend, &roomy), STATUS_OK);
	assert_int_equal(scheduler_model(elsewhere, "renamed", f->folder, DTYPE_PANEL_F32, &m, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_import(elsewhere, m, "y", blob, bytes, &y, NULL), STATUS_OK);
	assert_same_logits(x, y);
	scheduler_free(elsewhere);
	free(blob);
	drop(f, x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_prompt_gives_the_same_logits_and_scores_in_pieces_of_any_size, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(recurrent_scores_equal_those_of_the_parallel_form, setup, teardown),
	    cmocka_unit_test_setup_teardown(the_log_grows_by_every_token_read_and_sampled, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_session_without_explain_has_no_log, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_session_has_the_same_state_size_however_much_it_has_read, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(an_id_is_used_once_and_found_until_deleted, setup, teardown),
	    cmocka_unit_test_setup_teardown(more_sessions_than_allowed_are_refused_as_busy, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_fork_continues_as_its_original_and_independently, setup, teardown),
	    cmocka_unit_test_setup_teardown(an_empty_session_can_be_forked_and_exported, setup, teardown),
	    cmocka_unit_test_setup_teardown(an_import_continues_exactly_where_the_export_was_made, setup, teardown),
	    cmocka_unit_test_setup_teardown(equal_sessions_export_equal_bytes_whatever_their_slots_held, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(damage_to_any_byte_and_any_truncation_are_detected, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_forged_header_is_refused_without_harm, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_state_of_another_size_is_refused_naming_both_sizes, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_forged_state_affects_no_other_session, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_state_of_another_model_is_refused, setup, teardown),
	    cmocka_unit_test_setup_teardown(an_export_and_an_import_move_a_bounded_part_of_the_session_at_a_time, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_temporary_import_is_not_durable, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_fork_copies_a_bounded_part_of_the_session_at_a_time, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_state_can_be_moved_to_another_engine_with_the_same_model, setup,
	                                    teardown),
	};
	return RUN_ALL_WAYS(tests);
}
