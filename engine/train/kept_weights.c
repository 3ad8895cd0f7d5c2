#include "engine/train/kept_weights.h"

#include "engine/base/memory.h"
#include "engine/model/safetensors.h"

#define WEIGHTS "weights"

struct kept_weights {
	const model *model;
	int64_t floats;
	float *weights;
};

status kept_weights_new(kept_weights **out, const model *m)
{
	kept_weights *b = *out = memory_new(1, sizeof *b);
	if (!b)
		return STATUS_NOMEM;
	b->model = m;
	b->floats = model_trained_floats(m);
	b->weights = memory_new((size_t)b->floats, sizeof *b->weights);
	if (b->weights)
		return STATUS_OK;
	kept_weights_free(b);
	*out = NULL;
	return STATUS_NOMEM;
}

void kept_weights_free(kept_weights *b)
{
	if (!b)
		return;
	free(b->weights);
	free(b);
}

static size_t bytes_of(const kept_weights *b)
{
	return (size_t)b->floats * sizeof *b->weights;
}

status kept_weights_take(kept_weights *b)
{
	backend *device = model_backend(b->model);
	return device->download(device, b->weights, model_arena(b->model), bytes_of(b));
}

status kept_weights_use(const kept_weights *b)
{
	backend *device = model_backend(b->model);
	return device->upload(device, model_arena(b->model), b->weights, bytes_of(b));
}

status kept_weights_write(const kept_weights *b, const char *path, error *err)
{
	const safetensors_item item = {
	    .name = WEIGHTS, .type = ST_F32, .rank = 1, .dim = {b->floats}, .data = b->weights};
	return safetensors_write(path, &item, 1, NULL, err);
}

status kept_weights_read(kept_weights *b, const char *path, const manifest *about, error *err)
{
	safetensors *file;
	TRY(safetensors_open_verified(&file, path, about, err));
	const safetensors_entry *e = safetensors_find(file, WEIGHTS);
	status s = !e || e->type != ST_F32 || e->count != b->floats
	               ? error_set(err, STATUS_CORRUPT, NULL, "%s lacks %lld floats \"" WEIGHTS "\"", path,
	                           (long long)b->floats)
	               : safetensors_load_f32(file, e, 0, b->floats, b->weights, err);
	safetensors_close(file);
	return s;
}
