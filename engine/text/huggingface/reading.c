#include "engine/text/huggingface/reading.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 8 };

static status reading_fail(error *err, status s, const char *path, const char *format, va_list arguments)
{
	char rest[256];
	vsnprintf(rest, sizeof rest, format, arguments);
	return error_set(err, s, path, "tokenizer.json: %s %s", path, rest);
}

status reading_refuse(error *err, const char *path, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	status s = reading_fail(err, STATUS_UNSUPPORTED, path, format, arguments);
	va_end(arguments);
	return s;
}

status reading_blame(error *err, const char *path, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	status s = reading_fail(err, STATUS_INVALID, path, format, arguments);
	va_end(arguments);
	return s;
}

status reading_type(const json_t *part, const char *path, const char **out, error *err)
{
	*out = json_string_value(json_object_get(part, "type"));
	return *out ? STATUS_OK : reading_blame(err, path, "must be an object with a string \"type\"");
}

status reading_keys(const json_t *part, const char *path, const char *const *known, error *err)
{
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)(uintptr_t)part, key, member)
	{
		const char *const *k = known;
		while (*k && strcmp(*k, key) != 0)
			k++;
		if (!*k)
			return reading_refuse(err, path, "has \"%.40s\", which is not supported", key);
	}
	return STATUS_OK;
}

status reading_bool(const json_t *part, const char *path, const char *key, bool fallback, bool *out, error *err)
{
	const json_t *member = json_object_get(part, key);
	*out = fallback;
	if (!member || json_is_null(member))
		return STATUS_OK;
	if (!json_is_boolean(member))
		return reading_blame(err, path, "needs true or false as \"%s\"", key);
	*out = json_is_true(member);
	return STATUS_OK;
}

status reading_string(const json_t *part, const char *path, const char *key, const char *fallback, const char **out,
                      error *err)
{
	const json_t *member = json_object_get(part, key);
	*out = fallback;
	if (!member || json_is_null(member))
		return STATUS_OK;
	if (!json_is_string(member))
		return reading_blame(err, path, "needs a string as \"%s\"", key);
	*out = json_string_value(member);
	return STATUS_OK;
}

static status walk(const json_t *part, const char *path, const char *list, int depth, reading_each each, void *context,
                   error *err)
{
	const char *type;
	if (!part || json_is_null(part))
		return STATUS_OK;
	if (depth == MAX_DEPTH)
		return reading_refuse(err, path, "is nested too deeply");
	TRY(reading_type(part, path, &type, err));
	if (strcmp(type, "Sequence") != 0)
		return each(context, part, type, path, err);
	const json_t *members = json_object_get(part, list);
	TRY(reading_keys(part, path, (const char *const[]){"type", list, NULL}, err));
	if (!json_is_array(members))
		return reading_blame(err, path, "needs an array \"%s\"", list);
	for (size_t i = 0; i < json_array_size(members); i++) {
		char inner[READING_PATH_BYTES];
		snprintf(inner, sizeof inner, "%s.%s[%zu]", path, list, i);
		TRY(walk(json_array_get(members, i), inner, list, depth + 1, each, context, err));
	}
	return STATUS_OK;
}

status reading_sequence(const json_t *part, const char *path, const char *list, reading_each each, void *context,
                        error *err)
{
	return walk(part, path, list, 0, each, context, err);
}
