#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>

#include "engine/base/string_table.h"

enum { MANY = 5000 };

typedef struct thing {
	char name[24];
	string_node node;
} thing;
static thing things[MANY];

static thing *find(const string_table *t, const char *name)
{
	return STRING_TABLE_OWNER(string_table_find(t, name), thing, node);
}

static void an_entry_is_found_until_it_is_removed(void **state)
{
	string_table t = {0};
	(void)state;
	assert_null(find(&t, "thing-0"));
	assert_null(string_table_any(&t));
	for (int i = 0; i < MANY; i++) {
		snprintf(things[i].name, sizeof things[i].name, "thing-%d", i);
		assert_int_equal(string_table_add(&t, &things[i].node, things[i].name), STATUS_OK);
	}
	assert_int_equal(t.count, MANY);
	for (int i = 0; i < MANY; i++)
		assert_ptr_equal(find(&t, things[i].name), &things[i]);
	for (int i = 0; i < MANY; i += 2)
		string_table_remove(&t, &things[i].node);
	for (int i = 0; i < MANY; i++)
		assert_ptr_equal(find(&t, things[i].name), i % 2 ? &things[i] : NULL);
	int seen = 0;
	for (const string_node *n = NULL; (n = string_table_next(&t, n));)
		seen += STRING_TABLE_OWNER((string_node *)(uintptr_t)n, thing, node)->name[6] != 0;
	assert_int_equal(seen, MANY / 2);
	for (string_node *n; (n = string_table_any(&t));)
		string_table_remove(&t, n);
	assert_int_equal(t.count, 0);
	assert_null(string_table_next(&t, NULL));
	string_table_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_entry_is_found_until_it_is_removed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
