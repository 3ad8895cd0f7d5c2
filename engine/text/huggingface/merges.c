#include "engine/text/huggingface/merges.h"

#include <string.h>

#include "engine/base/memory.h"

status merges_init(merges *m, size_t count)
{
	int bits = 4;
	while (((size_t)1 << bits) < 2 * count)
		bits++;
	m->shift = 64 - bits;
	m->mask = ((size_t)1 << bits) - 1;
	m->slots = memory_new(m->mask + 1, sizeof *m->slots);
	for (size_t i = 0; m->slots && i <= m->mask; i++)
		m->slots[i].pair = UINT64_MAX;
	return m->slots ? STATUS_OK : STATUS_NOMEM;
}

void merges_fini(merges *m)
{
	free(m->slots);
	m->slots = NULL;
}

void merges_add(merges *m, int32_t left, int32_t right, uint32_t rank, int32_t made)
{
	const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	size_t at = (size_t)(pair * UINT64_C(0x9E3779B97F4A7C15) >> m->shift);
	while (m->slots[at].pair != pair && m->slots[at].pair != UINT64_MAX)
		at = (at + 1) & m->mask;
	m->slots[at] = (merge_slot){pair, rank, made};
}
