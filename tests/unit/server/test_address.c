#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "server/address.h"

static address_bytes parse(const char *text)
{
	struct sockaddr_in four = {.sin_family = AF_INET};
	struct sockaddr_in6 six = {.sin6_family = AF_INET6};
	if (inet_pton(AF_INET, text, &four.sin_addr) == 1)
		return address_of((struct sockaddr *)&four);
	assert_int_equal(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
	return address_of((struct sockaddr *)&six);
}

static void assert_split(const char *text, const char *host, const char *port)
{
	char h[32], p[8];
	if (!address_split(text, h, sizeof h, p, sizeof p))
		fail_msg("malformed: %s", text);
	assert_string_equal(h, host);
	assert_string_equal(p, port);
}

static void an_address_is_host_and_port(void **state)
{
	static const char *const bad[] = {
	    "",        ":",      ":80",         "*:80",       "host",
	    "host:",   "host:x", "host:123456", "host:65536", "host:-1",
	    "host:+1", "::1:80", "[]:80",       "[::1]",      "[::1:80",
	    "99999",   "80 ",    "host:80 ",    "a:b:80",     "a-name-that-is-longer-than-the-room:80"};
	char h[32], p[8];
	(void)state;
	assert_split("127.0.0.1:8080", "127.0.0.1", "8080");
	assert_split("[::]:0", "::", "0");
	assert_split("name:65535", "name", "65535");
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		if (address_split(bad[i], h, sizeof h, p, sizeof p))
			fail_msg("taken: %s", bad[i]);
}

static void a_port_alone_is_on_loopback(void **state)
{
	(void)state;
	assert_split("8110", "127.0.0.1", "8110");
}

static void loopback_addresses_are_recognized_in_both_families(void **state)
{
	static const char *const loopback[] = {"127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"};
	static const char *const other[] = {
	    "0.0.0.0", "128.0.0.1", "10.0.0.1", "::", "::2", "::ffff:10.0.0.1", "fe80::1"};
	(void)state;
	for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++) {
		address_bytes a = parse(loopback[i]);
		assert_true(address_is_loopback(&a));
	}
	for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
		address_bytes a = parse(other[i]);
		assert_false(address_is_loopback(&a));
	}
}

static void a_client_is_one_v4_address_or_a_network_of_v6_addresses(void **state)
{
	static const char *const names[][2] = {{"192.0.2.7", "192.0.2.7"},
	                                       {"::ffff:192.0.2.7", "192.0.2.7"},
	                                       {"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
	                                       {"::1", "::/64"},
	                                       {"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff::/64"}};
	char text[ADDRESS_TEXT_BYTES];
	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		address_bytes a = parse(names[i][0]);
		address_client(&a, text);
		assert_string_equal(text, names[i][1]);
	}
}

static void an_address_is_written_in_full(void **state)
{
	static const char *const names[][2] = {{"::ffff:192.0.2.7", "192.0.2.7"}, {"2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6"}};
	char text[ADDRESS_TEXT_BYTES];
	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		address_bytes a = parse(names[i][0]);
		address_text(&a, text);
		assert_string_equal(text, names[i][1]);
	}
}

static void addresses_are_counted_separately(void **state)
{
	address_counts c = {0};
	address_bytes a = parse("192.0.2.7"), b = parse("::1");
	(void)state;
	assert_int_equal(address_counts_get(&c, &a), 0);
	for (unsigned i = 1; i <= 3; i++) {
		assert_true(address_counts_add(&c, &a));
		assert_int_equal(address_counts_get(&c, &a), i);
	}
	assert_true(address_counts_add(&c, &b));
	for (int i = 0; i < 3; i++)
		address_counts_remove(&c, &a);
	assert_int_equal(address_counts_get(&c, &a), 0);
	assert_int_equal(address_counts_get(&c, &b), 1);
	address_counts_remove(&c, &b);
	assert_null(c.root);
}

static void a_range_has_the_addresses_that_begin_with_its_bits(void **state)
{
	static const char *const bad[] = {"",          "10.0.0",      "10.0.0.1/",   "10.0.0.0/33", "10.0.0.1/8", "::/129",
	                                  "::1/64",    "10.0.0.0/+8", "10.0.0.0/8 ", "name",        "/8",         "::ffff:10.0.0.1/95",
	                                  "10.0.0.0/0008"};
	static const struct {
		const char *range, *in, *out;
	} cases[] = {{"10.0.0.0/8", "10.255.1.2", "11.0.0.0"},       {"10.1.2.3", "10.1.2.3", "10.1.2.2"},
	             {"10.1.2.128/25", "10.1.2.255", "10.1.2.127"},  {"2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"},
	             {"0.0.0.0/0", "255.255.255.255", "2001:db8::1"}, {"::/0", "10.0.0.1", NULL}};
	address_range r;
	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		if (address_range_parse(&r, bad[i]))
			fail_msg("accepted: %s", bad[i]);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const address_bytes in = parse(cases[i].in), out = cases[i].out ? parse(cases[i].out) : in;
		assert_true(address_range_parse(&r, cases[i].range));
		assert_true(address_range_has(&r, &in));
		assert_true(!cases[i].out || !address_range_has(&r, &out));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_range_has_the_addresses_that_begin_with_its_bits),
	    cmocka_unit_test(an_address_is_host_and_port),
	    cmocka_unit_test(a_port_alone_is_on_loopback),
	    cmocka_unit_test(loopback_addresses_are_recognized_in_both_families),
	    cmocka_unit_test(a_client_is_one_v4_address_or_a_network_of_v6_addresses),
	    cmocka_unit_test(an_address_is_written_in_full),
	    cmocka_unit_test(addresses_are_counted_separately),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
