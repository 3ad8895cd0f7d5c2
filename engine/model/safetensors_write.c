/* Writes a safetensors file: the header, which needs the sizes of all tensors, then their data. */
#include <assert.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/model/safetensors.h"

enum { LENGTH_BYTES = 8 };

status safetensors_add(json_t *header, const safetensors_item *item, int64_t *end, error *err)
{
	json_t *shape = json_array();
	int64_t bytes = (int64_t)safetensors_type_bytes(item->type), begin = *end;
	bool fits = true, kept = shape != NULL;
	for (int i = 0; i < item->rank; i++) {
		kept = kept && json_array_append_new(shape, json_integer(item->dim[i])) == 0;
		fits = fits && memory_product(bytes, item->dim[i], &bytes);
	}
	if (!kept || !fits || __builtin_add_overflow(begin, bytes, end)) {
		json_decref(shape);
		return kept ? error_set(err, STATUS_INVALID, item->name, "tensor \"%.100s\" is too large", item->name)
		            : error_no_memory(err, "a safetensors header");
	}
	json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", safetensors_type_name(item->type), "shape", shape,
	                          "data_offsets", (json_int_t)begin, (json_int_t)*end);
	assert(!json_object_get(header, item->name));
	return json_object_set_new(header, item->name, entry) == 0 ? STATUS_OK
	                                                           : error_no_memory(err, "a safetensors header");
}

unsigned char *safetensors_header(const json_t *header, size_t *bytes)
{
	size_t length = json_dumpb(header, NULL, 0, JSON_COMPACT);
	uint64_t padded = (length + LENGTH_BYTES - 1) / LENGTH_BYTES * LENGTH_BYTES;
	unsigned char *text = length ? malloc(LENGTH_BYTES + padded) : NULL;
	if (!text)
		return NULL;
	memset(text, ' ', LENGTH_BYTES + padded);
	memcpy(text, &padded, sizeof padded);
	if (json_dumpb(header, (char *)text + LENGTH_BYTES, length, JSON_COMPACT) != length) {
		free(text); /* would need memory each time */
		return NULL;
	}
	*bytes = LENGTH_BYTES + padded;
	return text;
}

status safetensors_write(const char *path, const safetensors_item *items, int count, const json_t *metadata, error *err)
{
	status s = STATUS_OK;
	unsigned char *text = NULL;
	size_t text_bytes = 0;
	int64_t end = 0;
	json_t *header = json_object();
	file_part *parts = memory_new((size_t)count + 1, sizeof *parts);
	if (!header || !parts || (metadata && json_object_set_new(header, "__metadata__", json_deep_copy(metadata)))) {
		s = error_no_memory(err, "a safetensors header");
		goto done;
	}
	for (int i = 0; i < count; i++) {
		int64_t begin = end;
		s = safetensors_add(header, &items[i], &end, err);
		if (s != STATUS_OK)
			goto done;
		parts[i + 1] = (file_part){items[i].data, (size_t)(end - begin)};
	}
	text = safetensors_header(header, &text_bytes);
	if (!text) {
		s = error_no_memory(err, "a safetensors header");
		goto done;
	}
	parts[0] = (file_part){text, text_bytes};
	s = file_write(path, parts, (size_t)count + 1, err);
done:
	free(text);
	free(parts);
	json_decref(header);
	return s;
}
