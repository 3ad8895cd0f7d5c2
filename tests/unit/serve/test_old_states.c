/* Sessions from before attention that forgets kept sums in place of logarithms: they continue, and are written in the
 * new form. */
#include "tests/unit/serve/fixture.h"
#include "tests/unit/support/slot_with_logs.h"

#include <math.h>

#include "engine/base/digest.h"

enum { READ = 9, MORE = 20, HEADER = 56, VERSION_AT = 8, STATE_FLOATS_AT = 32 };

static void check_close(const float *got, const float *want)
{
	for (int i = 0; i < VOCAB; i++)
		if (!(fabsf(got[i] - want[i]) <= 1e-5f * (1 + fabsf(want[i]))))
			fail_msg("logit %d is %g, must be %g", i, (double)got[i], (double)want[i]);
}

/* Return the blob of a session as version 1 had it; *bytes: its size, before and after. */
static unsigned char *with_logs(const served_model *m, const unsigned char *blob, size_t *bytes)
{
	const state_list *list = model_states(m->model);
	const uint64_t floats = (uint64_t)state_list_slot_with_logs(list);
	const size_t slot = statepool_slot_bytes(m->pool), before = floats * sizeof(float);
	const size_t after = *bytes - HEADER - slot - sizeof(uint64_t);
	float *state = calloc(1, slot + before), *old = state + slot / sizeof *state;
	unsigned char *out = calloc(1, HEADER + before + after + sizeof(uint64_t));
	memcpy(out, blob, HEADER);
	out[VERSION_AT] = 1;
	memcpy(out + STATE_FLOATS_AT, &floats, sizeof floats);
	memcpy(state, blob + HEADER, slot);
	slot_with_logs(list, state, old);
	memcpy(out + HEADER, old, before);
	memcpy(out + HEADER + before, blob + HEADER + slot, after);
	const uint64_t sum = digest_bytes(out, HEADER + before + after);
	memcpy(out + HEADER + before + after, &sum, sizeof sum);
	free(state);
	*bytes = HEADER + before + after + sizeof sum;
	return out;
}

static void check_continues(const char *kind, const char *config)
{
	fixture f = {0};
	int32_t ids[READ + MORE];
	error err = ERROR_INIT;
	void *blob, *again;
	size_t bytes, more;
	session *old, *new;
	make_folder(f.folder);
	assert_int_equal(cpu_reference_open(&f.backend, 1, NULL), STATUS_OK);
	write_configured(f.folder, f.backend, kind, config);
	fixture_serve(&f, &roomy);
	random_tokens(ids, READ + MORE, 10);
	new = open_session(&f, "new", POSITION_CLAMP, false);
	append(&f, new, ids, READ);
	assert_int_equal(scheduler_session_export(f.scheduler, new, &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(((unsigned char *)blob)[VERSION_AT], 3);
	unsigned char *logs = with_logs(f.model, blob, &bytes);
	if (scheduler_session_import(f.scheduler, f.model, "old", logs, bytes, &old, &err) != STATUS_OK)
		fail_msg("%s: %s", kind, err.message);
	for (int i = READ; i < READ + MORE; i++) {
		append(&f, old, ids + i, 1);
		append(&f, new, ids + i, 1);
		check_close(old->logits, new->logits);
	}
	assert_int_equal(scheduler_session_export(f.scheduler, old, &again, &more, NULL), STATUS_OK);
	assert_int_equal(((unsigned char *)again)[VERSION_AT], 3);
	drop(&f, old);
	drop(&f, new);
	free(logs);
	free(blob);
	free(again);
	fixture_close(&f);
}

static void a_session_with_logarithms_continues(void **state)
{
	(void)state;
	check_continues("additive2", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 4, \"n_layer\": 2}");
	check_continues("additive2", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 8, \"n_layer\": 2,"
	                             " \"window_layers\": [1], \"window\": 16}");
	check_continues("rwkv",
	                "{\"hidden_size\": 32, \"vocab_size\": 259, \"num_hidden_layers\": 2, \"rescale_every\": 1}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_session_with_logarithms_continues),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
