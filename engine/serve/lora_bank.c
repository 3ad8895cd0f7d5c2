#include "engine/serve/lora_bank.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/model/lora.h"
#include "engine/serve/served_adapter.h"

struct lora_bank {
	float *entries; /* device memory */
	int32_t *ranks;
	uint64_t hash[LORA_ENTRIES]; /* the adapter of an entry; 0: empty */
	int users[LORA_ENTRIES];
	uint64_t given[LORA_ENTRIES], clock; /* time when the last user left */
};

static status allocate(served_model *m, lora_bank *b)
{
	backend *d = model_backend(m->model);
	const size_t ranks = (size_t)(LORA_ENTRIES * lora_entry_parts(m->model)) * sizeof(int32_t);
	void *entries, *all;
	TRY(d->allocate(d, (size_t)(LORA_ENTRIES * lora_entry_floats(m->model)) * sizeof(float), &entries));
	b->entries = entries;
	TRY(d->allocate(d, ranks, &all));
	b->ranks = all;
	void *zeros = memory_new(ranks, 1);
	const status s = zeros ? d->upload(d, all, zeros, ranks) : STATUS_NOMEM;
	free(zeros);
	return s;
}

void lora_bank_free(served_model *m)
{
	if (!m->lora)
		return;
	backend *d = model_backend(m->model);
	d->release(d, m->lora->entries);
	d->release(d, m->lora->ranks);
	free(m->lora);
	m->lora = NULL;
}

static status bank_make(served_model *m, error *err)
{
	if (m->lora)
		return STATUS_OK;
	m->lora = memory_new(1, sizeof *m->lora);
	const status s = m->lora ? allocate(m, m->lora) : STATUS_NOMEM;
	if (s == STATUS_OK)
		return s;
	lora_bank_free(m);
	return error_set(err, s, "adapter", "no room for low-rank adapters: %s", status_text(s));
}

/* Return the entry with the hash, or the unused one that is unused longest; 0: there is none. */
static int bank_find(const lora_bank *b, uint64_t hash)
{
	int best = 0;
	for (int i = 1; i < LORA_ENTRIES; i++) {
		if (b->hash[i] == hash)
			return i;
		if (b->users[i] == 0 && (best == 0 || b->given[i] < b->given[best]))
			best = i;
	}
	return best;
}

status lora_bank_take(served_model *m, const served_adapter *a, int32_t *entry, error *err)
{
	*entry = 0;
	if (!a || !a->lora)
		return STATUS_OK;
	TRY(bank_make(m, err));
	lora_bank *b = m->lora;
	const int i = bank_find(b, a->hash);
	if (i == 0)
		return error_set(err, STATUS_BUSY, "adapter", "all %d places for low-rank adapters are in use",
		                 LORA_ENTRIES - 1);
	if (b->hash[i] != a->hash) {
		b->hash[i] = 0;
		const status s =
		    lora_image_write(a->lora, model_backend(m->model), b->entries + i * lora_entry_floats(m->model),
		                     b->ranks + i * lora_entry_parts(m->model));
		if (s != STATUS_OK)
			return error_set(err, s, "adapter", "the adapter could not be copied: %s", status_text(s));
		b->hash[i] = a->hash;
	}
	b->users[i]++;
	*entry = i;
	return STATUS_OK;
}

void lora_bank_give(served_model *m, int32_t entry)
{
	if (!entry)
		return;
	assert(m->lora->users[entry] > 0);
	m->lora->users[entry]--;
	m->lora->given[entry] = ++m->lora->clock;
}

void lora_bank_inputs(const lora_bank *b, forward_input inputs[2])
{
	inputs[0] = (forward_input){.name = LORA_BANK, .data = b->entries};
	inputs[1] = (forward_input){.name = LORA_RANKS, .data = b->ranks};
}
