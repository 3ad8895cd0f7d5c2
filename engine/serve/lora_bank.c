#include "engine/serve/lora_bank.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/model/lora.h"
#include "engine/serve/served_adapter.h"

struct lora_bank {
	lora_tables device;
	uint64_t hash[LORA_ENTRIES]; /* the adapter of an entry; 0: empty */
	int users[LORA_ENTRIES];
	uint64_t given[LORA_ENTRIES], clock; /* time when the last user left */
	int owner[LORA_STRIPS];              /* the entry of a strip; 0: free */
};

static status allocate_zeros(backend *d, size_t bytes, void **out)
{
	TRY(d->allocate(d, bytes, out));
	void *zeros = memory_new(bytes, 1);
	const status s = zeros ? d->upload(d, *out, zeros, bytes) : STATUS_NOMEM;
	free(zeros);
	return s;
}

static status allocate(served_model *m, lora_bank *b)
{
	backend *d = model_backend(m->model);
	void *at;
	TRY(d->allocate(d, (size_t)(LORA_STRIPS * lora_strip_floats(m->model)) * sizeof(float), &at));
	b->device.bank = at;
	status s = allocate_zeros(d, (size_t)(LORA_ENTRIES * lora_parts(m->model)) * sizeof(int32_t), &at);
	b->device.ranks = at;
	if (s == STATUS_OK) {
		s = allocate_zeros(d, (size_t)(LORA_ENTRIES * LORA_MAX_RANK) * sizeof(int32_t), &at);
		b->device.places = at;
	}
	return s;
}

void lora_bank_free(served_model *m)
{
	if (!m->lora)
		return;
	backend *d = model_backend(m->model);
	d->release(d, m->lora->device.bank);
	d->release(d, m->lora->device.ranks);
	d->release(d, m->lora->device.places);
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

/* Count the strips that are free, or of entries without users. */
static int64_t count_available(const lora_bank *b)
{
	int64_t n = 0;
	for (int s = 0; s < LORA_STRIPS; s++)
		n += b->users[b->owner[s]] == 0;
	return n;
}

static int64_t count_free(const lora_bank *b)
{
	int64_t n = 0;
	for (int s = 0; s < LORA_STRIPS; s++)
		n += b->owner[s] == 0;
	return n;
}

static void empty_entry(lora_bank *b, int entry)
{
	b->hash[entry] = 0;
	for (int s = 0; s < LORA_STRIPS; s++)
		b->owner[s] = b->owner[s] == entry ? 0 : b->owner[s];
}

/* Return the entry of an adapter; 0: it has none. */
static int find_entry(const lora_bank *b, uint64_t hash)
{
	int i = LORA_ENTRIES - 1;
	while (i > 0 && b->hash[i] != hash)
		i--;
	return i;
}

/* Return the entry that is unused longest; 0: all are used. empty: only one without an adapter, or only one with. */
static int find_unused(const lora_bank *b, bool empty)
{
	int best = 0;
	for (int i = 1; i < LORA_ENTRIES; i++)
		if (b->users[i] == 0 && (b->hash[i] == 0) == empty && (best == 0 || b->given[i] < b->given[best]))
			best = i;
	return best;
}

/* Return an empty entry, with this many strips free; 0: sessions use too much. */
static int free_entry(lora_bank *b, int64_t rank)
{
	if (count_available(b) < rank)
		return 0;
	while (count_free(b) < rank || find_unused(b, true) == 0) {
		const int old = find_unused(b, false);
		if (old == 0)
			return 0;
		empty_entry(b, old);
	}
	return find_unused(b, true);
}

static status fill_entry(served_model *m, const served_adapter *a, int entry)
{
	lora_bank *b = m->lora;
	int32_t strips[LORA_MAX_RANK];
	const int64_t rank = lora_image_rank(a->lora);
	int64_t n = 0;
	for (int32_t s = 0; n < rank; s++)
		if (b->owner[s] == 0) {
			b->owner[s] = entry;
			strips[n++] = s;
		}
	TRY(lora_image_write(a->lora, model_backend(m->model), &b->device, entry, strips));
	b->hash[entry] = a->hash;
	return STATUS_OK;
}

status lora_bank_take(served_model *m, const served_adapter *a, int32_t *entry, error *err)
{
	*entry = 0;
	if (!a || !a->lora)
		return STATUS_OK;
	TRY(bank_make(m, err));
	lora_bank *b = m->lora;
	int i = find_entry(b, a->hash);
	if (i == 0) {
		i = free_entry(b, lora_image_rank(a->lora));
		if (i == 0)
			return error_set(err, STATUS_BUSY, "adapter",
			                 "the low-rank adapters in use leave no room for another: they are %d at most, "
			                 "with ranks of %d in all",
			                 LORA_ENTRIES - 1, LORA_STRIPS);
		const status s = fill_entry(m, a, i);
		if (s != STATUS_OK) {
			empty_entry(b, i);
			return error_set(err, s, "adapter", "the adapter could not be copied: %s", status_text(s));
		}
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

void lora_bank_inputs(const lora_bank *b, forward_input inputs[LORA_BANK_INPUTS])
{
	inputs[0] = (forward_input){.name = LORA_BANK, .data = b->device.bank};
	inputs[1] = (forward_input){.name = LORA_RANKS, .data = b->device.ranks};
	inputs[2] = (forward_input){.name = LORA_PLACES, .data = b->device.places};
}
