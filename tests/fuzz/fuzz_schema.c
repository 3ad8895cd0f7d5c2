/* fuzz_schema - the request tables: the first byte picks the table, the rest is JSON. A refusal is always well-formed.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gen/schemas.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
	if (!condition)
		abort();
}

static bool whole_utf8(const char *text)
{
	json_t *json = json_string(text);

	json_decref(json);
	return json != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const codes[] = {"unknown_parameter", "missing_parameter", "invalid_type", "out_of_range",
	                                    "invalid_value"};
	int n = 0, known = 0;
	schema_error err;

	while (schema_all[n])
		n++;
	json_t *json = size ? json_loadb((const char *)data + 1, size - 1, JSON_DECODE_ANY, NULL) : NULL;
	if (!json)
		return 0;
	bool ok = schema_check(schema_all[data[0] % n], json, &err);
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		known += strcmp(err.code, codes[i]) == 0;
	require(ok ? !err.code[0] && !err.message[0] && !err.param[0] : known == 1 && err.message[0]);
	require(whole_utf8(err.param) && whole_utf8(err.message));
	json_decref(json);
	return 0;
}
