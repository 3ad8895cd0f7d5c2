#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "server/router.h"

/* Find a request's route; returns the status. The caller keeps the uri for the parameters. */
static int find(uri *u, const char *method, const char *target, const char *type, route_match *match)
{
	assert_true(uri_parse(u, target));
	return router_find(u, method, type, match);
}

static void every_row_is_found_by_its_own_path(void **state)
{
	(void)state;
	static const char *const types[] = {NULL, "application/json", "multipart/form-data; boundary=x",
	                                    "application/octet-stream"};
	const route *row;
	int rows = 0;
	for (; (row = router_row(rows)) != NULL; rows++) {
		char target[128] = "", *out = target;
		for (const char *p = row->path; *p; p++) { /* replace {id} by x */
			*out++ = *p == '{' ? 'x' : *p;
			if (*p == '{')
				p += strcspn(p, "}");
		}
		*out = '\0';
		uri u;
		route_match match;
		assert_int_equal(find(&u, row->method, target, types[row->body], &match), 200);
		assert_ptr_equal(match.route, row);
		uri_fini(&u);
	}
	assert_true(rows > 30);
}

static void every_row_is_complete(void **state)
{
	(void)state;
	const route *row;
	for (int i = 0; (row = router_row(i)) != NULL; i++) {
		assert_non_null(row->handle);
		assert_int_equal(row->path[0], '/');
		assert_int_equal(row->body == BODY_JSON, row->schema != NULL);
		for (int j = 0; j < i; j++) { /* no row hides a later one */
			const route *other = router_row(j);
			assert_false(strcmp(other->method, row->method) == 0 && strcmp(other->path, row->path) == 0 &&
			             other->body == row->body);
		}
	}
}

static void parameters_come_from_the_path_in_order(void **state)
{
	(void)state;
	uri u;
	route_match match;
	char name[16];
	assert_int_equal(find(&u, "GET", "/v1/models/m-1/files/config.json", NULL, &match), 200);
	assert_string_equal(match.params[0], "m-1");
	assert_string_equal(match.params[1], "config.json");
	assert_true(router_param_name(match.route, 0, name, sizeof name));
	assert_string_equal(name, "id");
	assert_true(router_param_name(match.route, 1, name, sizeof name));
	assert_string_equal(name, "name");
	assert_false(router_param_name(match.route, 2, name, sizeof name));
	uri_fini(&u);
}

static void the_content_type_chooses_between_rows_of_one_path(void **state)
{
	(void)state;
	uri u;
	route_match json, octets, none;
	assert_int_equal(find(&u, "POST", "/v1/sessions", "application/json; charset=utf-8", &json), 200);
	assert_int_equal(json.route->body, BODY_JSON);
	assert_int_equal(router_find(&u, "POST", "Application/Octet-Stream", &octets), 200);
	assert_int_equal(octets.route->body, BODY_OCTETS);
	assert_int_equal(router_find(&u, "POST", "text/plain", &none), 415);
	assert_int_equal(router_find(&u, "POST", "application/jsonp", &none), 415);
	assert_int_equal(router_find(&u, "POST", "", &none), 415);
	assert_int_equal(router_find(&u, "POST", NULL, &none), 415);
	assert_null(none.route);
	assert_string_equal(none.types, "application/json or application/octet-stream");
	uri_fini(&u);
}

static void a_wrong_method_is_answered_with_the_allowed_ones(void **state)
{
	(void)state;
	uri u;
	route_match match;
	assert_int_equal(find(&u, "PUT", "/v1/sessions", NULL, &match), 405);
	assert_string_equal(match.allow, "GET, HEAD, POST");
	assert_null(match.route);
	assert_int_equal(router_find(&u, "get", NULL, &match), 405);
	assert_int_equal(router_find(&u, "HEAD", NULL, &match), 200);
	uri_fini(&u);
}

static void an_unknown_path_is_not_found(void **state)
{
	(void)state;
	static const char *const targets[] = {
	    "/v1", "/v1/",      "/v1/models/", "/v1/models/..", "/v1/models/a%2fb", "/v1/models/a/b",
	    "//",  "/healthz/", "/Healthz"};
	for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
		uri u;
		route_match match;
		assert_int_equal(find(&u, "GET", targets[i], NULL, &match), 404);
		assert_string_equal(match.allow, "");
		uri_fini(&u);
	}
}

static void a_segment_that_is_no_id_is_named(void **state)
{
	static const char *const cases[][2] = {
	    {"/v1/models/a%2Fb", "a/b"}, {"/v1/models/a%2Fb/files/x", "a/b"}, {"/v1/models/a/files/x%20y", "x y"},
	    {"/v1/models/a", NULL},      {"/v1/nothing/a%2Fb", NULL},         {"/v1/models/a/b", NULL},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uri u;
		assert_true(uri_parse(&u, cases[i][0]));
		const char *invalid = router_invalid_id(&u);
		assert_true(!invalid == !cases[i][1]);
		if (invalid)
			assert_string_equal(invalid, cases[i][1]);
		uri_fini(&u);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_row_is_found_by_its_own_path),
	    cmocka_unit_test(every_row_is_complete),
	    cmocka_unit_test(parameters_come_from_the_path_in_order),
	    cmocka_unit_test(the_content_type_chooses_between_rows_of_one_path),
	    cmocka_unit_test(a_wrong_method_is_answered_with_the_allowed_ones),
	    cmocka_unit_test(an_unknown_path_is_not_found),
	    cmocka_unit_test(a_segment_that_is_no_id_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
