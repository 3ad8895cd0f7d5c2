#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "server/site.h"

static site sites[] = {{"api.example.org", -1}, {"app.example.org", -1}};
static const site_list none, some = {sites, 2};

static void names_that_cannot_be_rebound_are_always_allowed(void **state)
{
	static const char *const good[] = {"localhost",       "localhost:8080", "LOCALHOST.",
	                                   "a.b.localhost:1", "127.0.0.1",      "10.1.2.3:80",
	                                   "[::1]",           "[fe80::1]:8080", "[::ffff:1.2.3.4]"};
	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		if (!site_allows_host(&none, good[i], true) || !site_allows_host(&some, good[i], false))
			fail_msg("refused: %s", good[i]);
	}
	assert_true(site_allows_host(&some, NULL, true));
}

static void without_a_list_other_names_are_allowed_off_loopback(void **state)
{
	static const char *const other[] = {
	    "evil.example", "evil.example:8080",   "xlocalhost", "localhost.evil", "1.2.3", "0x7f.1",
	    "::1",          "api.example.org.evil"};
	(void)state;
	for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
		if (site_allows_host(&none, other[i], true) || site_allows_host(&some, other[i], false) ||
		    site_allows_host(&some, other[i], true))
			fail_msg("accepted: %s", other[i]);
	}
	assert_true(site_allows_host(&none, "evil.example:8080", false));
	assert_true(site_allows_host(&some, "API.example.org:443", true));
	assert_true(site_allows_host(&some, "api.example.org.", false));
}

static void malformed_hosts_are_never_allowed(void **state)
{
	static const char *const bad[] = {"", ":80", "[", "[]", "[::1", "[::1]x", "a:b", "a:80:80", "[::1]:x"};
	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		if (site_allows_host(&none, bad[i], false))
			fail_msg("accepted: %s", bad[i]);
}

static void an_origin_must_be_the_host_or_on_the_list(void **state)
{
	(void)state;
	assert_true(site_allows_origin(&none, "http://localhost:8080", "localhost:8080"));
	assert_true(site_allows_origin(&none, "https://API.example.org", "api.example.org"));
	assert_true(site_allows_origin(&some, "https://app.example.org:8443", "localhost:8080"));
	assert_true(site_allows_origin(&some, "app://app.example.org", "localhost"));
	assert_false(site_allows_origin(&none, "http://localhost:3000", "localhost:8080"));
	assert_false(site_allows_origin(&none, "http://localhost", "localhost:8080"));
	assert_false(site_allows_origin(&some, "null", "localhost"));
	assert_false(site_allows_origin(&some, "", ""));
	assert_false(site_allows_origin(&some, "https://app.example.org@evil.example", "localhost"));
	assert_false(site_allows_origin(&some, "https://evil.example/app.example.org", "localhost"));
	assert_false(site_allows_origin(&none, "http://localhost", NULL));
}

static void a_star_allows_every_name(void **state)
{
	static site star[] = {{"*", -1}};
	static const site_list all = {star, 1};
	(void)state;
	assert_true(site_allows_host(&all, "evil.example", true));
	assert_true(site_allows_host(&all, "", true));
	assert_true(site_allows_origin(&all, "null", "localhost"));
}

static void a_listed_port_is_the_only_allowed_one(void **state)
{
	static site with_ports[] = {{"localhost", 3000}, {"app.example", 443}, {"::1", 5173}};
	static const site_list list = {with_ports, 3};
	(void)state;
	assert_true(site_lists_origin(&list, "http://localhost:3000"));
	assert_true(site_lists_origin(&list, "https://LOCALHOST:3000"));
	assert_true(site_lists_origin(&list, "https://app.example"));
	assert_true(site_lists_origin(&list, "https://app.example:443"));
	assert_true(site_lists_origin(&list, "http://[::1]:5173"));
	assert_false(site_lists_origin(&list, "http://localhost:3001"));
	assert_false(site_lists_origin(&list, "http://localhost"));
	assert_false(site_lists_origin(&list, "http://app.example"));
	assert_false(site_lists_origin(&list, "https://app.example:8443"));
	assert_false(site_lists_origin(&list, "http://[::1]:65536"));
	assert_false(site_lists_origin(&list, "null"));
	assert_true(site_allows_host(&list, "app.example", true));
	assert_true(site_allows_host(&list, "app.example:443", true));
	assert_false(site_allows_host(&list, "app.example:8080", true));
}

static void a_malformed_name_is_not_listed(void **state)
{
	static const char *const wrong[] = {"",
	                                    "https://api.example.org",
	                                    "api.example.org.",
	                                    "a b",
	                                    "a:",
	                                    "a:0",
	                                    "a:65536",
	                                    "*:80",
	                                    "a:b",
	                                    "[::1",
	                                    "a@b",
	                                    "a,b",
	                                    "a/"};
	site out;
	(void)state;
	assert_true(site_parse(&out, "api.example.org") && out.port == -1);
	assert_true(site_parse(&out, "*"));
	assert_true(site_parse(&out, "api.example.org:8080") && out.port == 8080);
	assert_string_equal(out.name, "api.example.org");
	assert_true(site_parse(&out, "[::1]:65535") && out.port == 65535);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		if (site_parse(&out, wrong[i]))
			fail_msg("accepted: %s", wrong[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(names_that_cannot_be_rebound_are_always_allowed),
	    cmocka_unit_test(without_a_list_other_names_are_allowed_off_loopback),
	    cmocka_unit_test(malformed_hosts_are_never_allowed),
	    cmocka_unit_test(an_origin_must_be_the_host_or_on_the_list),
	    cmocka_unit_test(a_star_allows_every_name),
	    cmocka_unit_test(a_listed_port_is_the_only_allowed_one),
	    cmocka_unit_test(a_malformed_name_is_not_listed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
