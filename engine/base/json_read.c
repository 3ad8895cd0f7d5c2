#include "engine/base/json_read.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/base/reserve.h"

/* The caller gets a failure as a status. An earlier failure stays remembered. */
static void restore(bool failed_before)
{
	reserve_forget();
	if (failed_before)
		reserve_remember();
}

/* jansson sets a line for every fault of a text. */
static bool ran_out(const json_error_t *where)
{
	return reserve_failed() || where->line < 0 || json_error_code(where) == json_error_out_of_memory;
}

status json_read(json_t **out, const char *text, size_t bytes, size_t flags, json_error_t *where)
{
	json_error_t own;
	const bool failed_before = reserve_failed();
	if (!where)
		where = &own;
	reserve_forget();
	*out = json_loadb(text, bytes, flags, where);
	status s = *out && !reserve_failed() ? STATUS_OK : ran_out(where) ? STATUS_NOMEM : STATUS_INVALID;
	if (s == STATUS_NOMEM)
		snprintf(where->text, sizeof where->text - 1, "out of memory"); /* the last byte is the code */
	if (s != STATUS_OK) {
		json_decref(*out);
		*out = NULL;
	}
	restore(failed_before);
	return s;
}

status json_read_members(const json_t *json, const char *format, ...)
{
	json_error_t where;
	const bool failed_before = reserve_failed();
	va_list arguments;
	va_start(arguments, format);
	int failed = json_vunpack_ex((json_t *)(uintptr_t)json, &where, 0, format, arguments);
	va_end(arguments);
	restore(failed_before);
	return !failed ? STATUS_OK : json_error_code(&where) == json_error_out_of_memory ? STATUS_NOMEM : STATUS_INVALID;
}

int64_t json_read_integer(const json_t *object, const char *key, int64_t fallback)
{
	const json_t *found = json_object_get(object, key);
	return json_is_integer(found) ? json_integer_value(found) : fallback;
}

double json_read_real(const json_t *object, const char *key, double fallback)
{
	const json_t *found = json_object_get(object, key);
	return json_is_number(found) ? json_number_value(found) : fallback;
}
