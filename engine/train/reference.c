#include "engine/train/reference.h"

#include "engine/base/memory.h"
#include "engine/model/safetensors.h"

static const char *const names[REFERENCE_SETS] = {"train", "valid"};

status reference_new(reference **out, int64_t train, int64_t valid, error *err)
{
	reference *r = *out = memory_new(1, sizeof *r);
	bool ok = r;
	if (ok)
		*r = (reference){.numbers = {train, valid}};
	for (int i = 0; i < REFERENCE_SETS && ok; i++)
		ok = (r->sums[i] = memory_new((size_t)r->numbers[i], sizeof *r->sums[i]));
	if (ok)
		return STATUS_OK;
	reference_free(r);
	*out = NULL;
	return error_no_memory(err, "the log-probabilities of the records");
}

void reference_free(reference *r)
{
	if (!r)
		return;
	for (int i = 0; i < REFERENCE_SETS; i++)
		free(r->sums[i]);
	free(r);
}

status reference_write(const reference *r, const char *path, error *err)
{
	safetensors_item items[REFERENCE_SETS];
	int n = 0;
	for (int i = 0; i < REFERENCE_SETS; i++)
		if (r->numbers[i] > 0)
			items[n++] = (safetensors_item){
			    .name = names[i], .type = ST_F32, .rank = 1, .dim = {r->numbers[i]}, .data = r->sums[i]};
	return safetensors_write(path, items, n, NULL, err);
}

static status read_set(reference *r, int i, safetensors *file, error *err)
{
	const safetensors_entry *e = safetensors_find(file, names[i]);
	if (!e || e->type != ST_F32 || e->count != r->numbers[i])
		return error_set(err, STATUS_CORRUPT, NULL, "%lld log-probabilities \"%s\" are missing",
		                 (long long)r->numbers[i], names[i]);
	return safetensors_load_f32(file, e, 0, e->count, r->sums[i], err);
}

status reference_read(reference *r, const char *path, const manifest *about, error *err)
{
	safetensors *file;
	status s = STATUS_OK;
	TRY(safetensors_open_verified(&file, path, about, err));
	for (int i = 0; i < REFERENCE_SETS && s == STATUS_OK; i++)
		if (r->numbers[i] > 0)
			s = read_set(r, i, file, err);
	safetensors_close(file);
	r->complete = s == STATUS_OK;
	return s;
}
