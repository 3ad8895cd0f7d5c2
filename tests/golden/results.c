#include "tests/golden/results.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"

extent extent_of(shape s)
{
	extent e = {.rank = s.rank};
	memcpy(e.dim, s.dim, (size_t)s.rank * sizeof *s.dim);
	return e;
}

int64_t extent_count(extent e)
{
	int64_t count = 1;
	for (int i = 0; i < e.rank; i++)
		count *= e.dim[i];
	return count;
}

bool extent_equal(extent a, extent b)
{
	return a.rank == b.rank && memcmp(a.dim, b.dim, (size_t)a.rank * sizeof *a.dim) == 0;
}

const char *extent_text(extent e, char *buf, size_t size)
{
	size_t at = 0;
	buf[0] = 0;
	for (int i = 0; i < e.rank && at < size; i++)
		at += (size_t)snprintf(buf + at, size - at, "%s%" PRId64, i ? ", " : "[", e.dim[i]);
	if (at < size)
		snprintf(buf + at, size - at, "%s", e.rank ? "]" : "[]");
	return buf;
}

/* Room for one more item. */
static bool grow(results *r)
{
	if (r->count < r->capacity)
		return true;
	int capacity = r->capacity ? 2 * r->capacity : 64;
	safetensors_item *items = realloc(r->items, (size_t)capacity * sizeof *items);
	if (!items)
		return false;
	r->items = items;
	r->capacity = capacity;
	return true;
}

static void *add(results *r, safetensors_type type, extent e, const char *name)
{
	char *copy = strdup(name);
	void *data = memory_new((size_t)extent_count(e), safetensors_type_bytes(type));
	if (!copy || !data || !grow(r)) {
		free(copy);
		free(data);
		return NULL;
	}
	safetensors_item *item = &r->items[r->count++];
	*item = (safetensors_item){.name = copy, .type = type, .rank = e.rank, .data = data};
	memcpy(item->dim, e.dim, sizeof item->dim);
	return data;
}

float *results_add(results *r, extent e, const char *name)
{
	return add(r, ST_F32, e, name);
}

int64_t *results_add_integers(results *r, extent e, const char *name)
{
	return add(r, ST_I64, e, name);
}

void results_free(results *r)
{
	for (int i = 0; i < r->count; i++) {
		free((void *)(uintptr_t)r->items[i].name);
		free((void *)(uintptr_t)r->items[i].data);
	}
	free(r->items);
}
