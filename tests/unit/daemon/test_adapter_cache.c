/* The adapters that a device keeps: as many as have room, the last ones. */
#include "tests/unit/serve/fixture.h"

#include "engine/daemon/compute/adapter_cache.h"
#include "engine/model/adapter.h"

static const char config[] = "{\"hidden_size\": 32, \"n_heads\": 4, \"n_layer\": 3, \"vocab_size\": 259,"
                             " \"intermediate_size\": 40}";

/* Serve a model whose folder has a state adapter, too. */
static void open_model(fixture *f)
{
	model *base, *a;
	make_folder(f->folder);
	assert_int_equal(cpu_open(&f->backend, 1, NULL), STATUS_OK);
	write_configured(f->folder, f->backend, "additive2", config);
	fixture_serve(f, &roomy);
	assert_int_equal(model_open(&base, f->folder, DTYPE_F32, f->backend, NULL), STATUS_OK);
	assert_int_equal(model_new_adapter(&a, base, NULL), STATUS_OK);
	assert_int_equal(adapter_save(a, f->folder, NULL), STATUS_OK);
	model_free(a);
	model_free(base);
}

/* Ask for an adapter by a name, and return its bytes. */
static size_t ask(adapter_cache *c, const fixture *f, const char *id)
{
	served_adapter *a;
	assert_int_equal(adapter_cache_get(c, f->model, id, f->folder, &a, NULL), STATUS_OK);
	assert_true(served_adapter_is(a, id, f->model));
	const size_t bytes = served_adapter_bytes(a);
	served_adapter_free(a);
	return bytes;
}

static bool has(const adapter_cache *c, const fixture *f, const char *id)
{
	for (int i = 0; i < ADAPTER_CACHE_ITEMS; i++)
		if (c->items[i] && served_adapter_is(c->items[i], id, f->model))
			return true;
	return false;
}

static void the_oldest_make_room_for_bytes(void **state)
{
	(void)state;
	fixture f;
	adapter_cache c = {.limit = 0};
	open_model(&f);
	const size_t each = ask(&c, &f, "a");
	assert_true(each >= (size_t)model_state_floats(served_model_model(f.model)) * sizeof(float));
	assert_true(has(&c, &f, "a")); /* larger than the limit, but the only one */
	c.limit = 3 * each;
	ask(&c, &f, "b");
	ask(&c, &f, "c");
	ask(&c, &f, "a"); /* kept, so nothing is read */
	assert_true(has(&c, &f, "a") && has(&c, &f, "b") && has(&c, &f, "c"));
	ask(&c, &f, "d");
	assert_true(!has(&c, &f, "a") && has(&c, &f, "b") && has(&c, &f, "c") && has(&c, &f, "d"));
	c.limit = each;
	ask(&c, &f, "a");
	assert_true(has(&c, &f, "a") && !has(&c, &f, "b") && !has(&c, &f, "c") && !has(&c, &f, "d"));
	adapter_cache_fini(&c);
	fixture_close(&f);
}

static void the_number_of_entries_is_bounded(void **state)
{
	(void)state;
	fixture f;
	adapter_cache c = {.limit = SIZE_MAX};
	char id[16];
	open_model(&f);
	for (int i = 0; i < ADAPTER_CACHE_ITEMS + 2; i++) {
		snprintf(id, sizeof id, "%d", i);
		ask(&c, &f, id);
	}
	assert_true(!has(&c, &f, "0") && !has(&c, &f, "1") && has(&c, &f, "2") && has(&c, &f, id));
	adapter_cache_fini(&c);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_oldest_make_room_for_bytes),
	    cmocka_unit_test(the_number_of_entries_is_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
