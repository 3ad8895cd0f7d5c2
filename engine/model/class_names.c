#include "engine/model/class_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NUMBER_BYTES = 32 };

static void default_name(int64_t i, char out[NUMBER_BYTES])
{
	snprintf(out, NUMBER_BYTES, "LABEL_%" PRId64, i);
}

json_t *class_names_read(const json_t *config, int64_t classes)
{
	const json_t *given = json_object_get(config, "id2label");
	json_t *names = json_array();
	bool whole = names;
	for (int64_t i = 0; whole && i < classes; i++) {
		char key[NUMBER_BYTES], other[NUMBER_BYTES];
		snprintf(key, sizeof key, "%" PRId64, i);
		default_name(i, other);
		json_t *name = json_object_get(given, key);
		whole = json_array_append_new(names, name ? json_incref(name) : json_string(other)) == 0;
	}
	if (whole)
		return names;
	json_decref(names);
	return NULL;
}

static bool are_defaults(const json_t *names)
{
	char name[NUMBER_BYTES];
	size_t i = 0;
	for (; i < json_array_size(names); i++) {
		default_name((int64_t)i, name);
		if (strcmp(json_string_value(json_array_get(names, i)), name) != 0)
			return false;
	}
	return true;
}

bool class_names_write(json_t *config, const json_t *names)
{
	if (are_defaults(names))
		return true;
	json_t *by_id = json_object(), *by_name = json_object();
	bool whole = by_id && by_name;
	for (size_t i = 0; whole && i < json_array_size(names); i++) {
		char key[NUMBER_BYTES];
		json_t *name = json_array_get(names, i);
		snprintf(key, sizeof key, "%zu", i);
		whole = json_object_set(by_id, key, name) == 0 &&
		        json_object_set_new(by_name, json_string_value(name), json_integer((json_int_t)i)) == 0;
	}
	whole = whole && json_object_set(config, "id2label", by_id) == 0 &&
	        json_object_set(config, "label2id", by_name) == 0;
	json_decref(by_id);
	json_decref(by_name);
	return whole;
}
