#include "tests/golden/dilated_set.h"

#include "tests/golden/attention_module.h"

enum { MAX_SIZE = 1 << 24 };

static const char *const segment[] = {"segment", "segment_length"}, *const dilation[] = {"dilation", "dilated_ratio"};

static const json_t *either(const json_t *json, const char *const keys[2])
{
	const json_t *found = json_object_get(json, keys[0]);
	return found ? found : json_object_get(json, keys[1]);
}

bool dilated_set_is_config(const json_t *json)
{
	return json_is_array(either(json, segment));
}

bool dilated_set_is_module(const golden *g)
{
	return attention_module_has_norm(g) || (attention_module_recognises(g) && dilated_set_is_config(g->config));
}

static status read_integers(const json_t *json, const char *const keys[2], int64_t *out, int64_t *count, error *err)
{
	const json_t *array = either(json, keys);
	*count = (int64_t)json_array_size(array);
	if (*count < 1 || *count > DILATED_MAX_BRANCHES)
		return error_set(err, STATUS_INVALID, keys[0], "the config lacks \"%s\", an array of 1 to %d integers",
		                 keys[0], DILATED_MAX_BRANCHES);
	for (int64_t i = 0; i < *count; i++)
		out[i] = json_integer_value(json_array_get(array, (size_t)i));
	return STATUS_OK;
}

status dilated_set_size(const json_t *json, const char *key, int64_t *out, error *err)
{
	*out = json_integer_value(json_object_get(json, key));
	if (*out >= 1 && *out <= MAX_SIZE)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, key, "the config lacks \"%s\", an integer from 1 to %d", key, MAX_SIZE);
}

status dilated_set_read(const json_t *json, dilated_params *out, error *err)
{
	dilated_pattern *p = &out->pattern;
	int64_t dilations;
	TRY(dilated_set_size(json, "heads", &out->heads, err));
	TRY(read_integers(json, segment, p->segment, &p->branches, err));
	TRY(read_integers(json, dilation, p->dilation, &dilations, err));
	if (dilations != p->branches)
		return error_set(err, STATUS_INVALID, "dilation", "the config has not as many dilations as segments");
	return STATUS_OK;
}
