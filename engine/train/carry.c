/* carry.c - a copy of all states is one piece of device memory: for each state, all micro-batches in turn, in the
 * plan's layout with rows [batch, floats]. */
#include "engine/train/carry.h"

#include <stdio.h>

#include "engine/base/memory.h"
#include "engine/model/feed.h"
#include "engine/model/safetensors.h"

enum {
	COPIES = 2,
	NAME_BYTES = sizeof((state_spec *)0)->name + 8,
	MOST_TOKENS = 1 << 24 /* exactly representable as
	                       * floats */
};
#define POSITION "position"
/* Name of a pool whose states have running sums (engine/model/states.h). Earlier files have logarithms, under the
 * name of the pool. */
#define SUMS "pool.sums"

struct carry {
	plan *plan;
	backend *backend;
	const state_list *states;
	const state_list *slots; /* the states in a slot of the pool, if they have running sums; otherwise NULL */
	int64_t batch, length, sets;
	bool rings; /* states are those of sessions, whose windows depend on the position; it must be carried, too */
	float *copy[COPIES];
	int32_t *position[COPIES]; /* [sets · batch] tokens that a row has read */
	int32_t *now;              /* [batch] positions of the current micro-batch */
};

static int64_t carry_least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t rows_of(const carry *c)
{
	return c->sets * c->batch;
}

/* A pool is both input and output. */
static value port_of(const carry *c, int state, bool output)
{
	char name[NAME_BYTES];
	snprintf(name, sizeof name, "next.%s", c->states->items[state].name);
	const value next = output ? graph_find(plan_graph(c->plan), name) : VALUE_NONE;
	return next != VALUE_NONE ? next : graph_find(plan_graph(c->plan), c->states->items[state].name);
}

static float *state_at(const carry *c, int64_t step, int state, int64_t set)
{
	const state_spec *s = &c->states->items[state];
	return c->copy[step % COPIES] + rows_of(c) * s->offset + set * c->batch * s->floats;
}

static status carry_make(carry *c, error *err)
{
	int64_t bytes;
	c->now = memory_new((size_t)c->batch, sizeof *c->now);
	bool room = memory_product(rows_of(c), c->states->floats * (int64_t)sizeof(float), &bytes) && c->now;
	for (int i = 0; i < COPIES && room; i++) {
		void *copy;
		c->position[i] = memory_new((size_t)rows_of(c), sizeof *c->position[i]);
		room = c->position[i] && c->backend->allocate(c->backend, (size_t)bytes, &copy) == STATUS_OK;
		if (room)
			c->copy[i] = copy;
	}
	return room ? STATUS_OK
	            : error_set(err, STATUS_NOMEM, NULL, "out of memory for what %lld rows carry",
	                        (long long)rows_of(c));
}

status carry_new(carry **out, const model *m, plan *p, int64_t batch, int64_t length, int64_t sets, error *err)
{
	*out = NULL;
	carry *c = memory_new(1, sizeof *c);
	if (!c)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	*c = (carry){.plan = p,
	             .backend = model_backend(m),
	             .states = model_carried(m),
	             .rings = model_architecture(m)->carries_states,
	             .batch = batch,
	             .length = length,
	             .sets = sets};
	if (c->rings && state_list_has_sums(model_states(m)))
		c->slots = model_states(m);
	status s = carry_make(c, err);
	if (s == STATUS_OK)
		*out = c;
	else
		carry_free(c);
	return s;
}

void carry_free(carry *c)
{
	if (!c)
		return;
	for (int i = 0; i < COPIES; i++) {
		c->backend->release(c->backend, c->copy[i]);
		free(c->position[i]);
	}
	free(c->now);
	free(c);
}

status carry_load(carry *c, int64_t step, int64_t set, const bool *continues)
{
	backend *b = c->backend;
	for (int i = 0; i < c->states->count; i++) {
		const int64_t floats = c->states->items[i].floats;
		float *to = plan_data(c->plan, port_of(c, i, false));
		TRY(b->copy(b, to, state_at(c, step, i, set), (size_t)(c->batch * floats) * sizeof *to));
		for (int64_t row = 0; row < c->batch; row++)
			if (!continues[row])
				TRY(b->clear(b, to + row * floats, (size_t)floats * sizeof *to));
	}
	for (int64_t row = 0; row < c->batch; row++)
		c->now[row] = continues[row] ? c->position[step % COPIES][set * c->batch + row] : 0;
	return feed_carried(c->plan, c->now);
}

status carry_keep(carry *c, int64_t step, int64_t set)
{
	backend *b = c->backend;
	for (int i = 0; i < c->states->count; i++)
		TRY(b->copy(b, state_at(c, step + 1, i, set), plan_data(c->plan, port_of(c, i, true)),
		            (size_t)(c->batch * c->states->items[i].floats) * sizeof(float)));
	int32_t *next = c->position[(step + 1) % COPIES] + set * c->batch;
	for (int64_t row = 0; row < c->batch; row++)
		next[row] = c->rings && c->now[row] + c->length > MOST_TOKENS
		                ? 0
		                : (int32_t)carry_least(c->now[row] + c->length, MOST_TOKENS);
	return STATUS_OK;
}

/* --- checkpoints ----------------------------------------------------------------------- */

status carry_write(const carry *c, int64_t step, const char *path, error *err)
{
	const int n = c->states->count;
	const int64_t rows = rows_of(c);
	const size_t bytes = (size_t)(rows * c->states->floats) * sizeof(float);
	safetensors_item *items = memory_new((size_t)n + 1, sizeof *items);
	float *host = memory_new(bytes, 1);
	status s = items && host ? c->backend->download(c->backend, host, c->copy[step % COPIES], bytes) : STATUS_NOMEM;
	for (int i = 0; i < n && s == STATUS_OK; i++) {
		const state_spec *state = &c->states->items[i];
		items[i] = (safetensors_item){.name = c->slots ? SUMS : state->name,
		                              .type = ST_F32,
		                              .rank = 2,
		                              .dim = {rows, state->floats},
		                              .data = host + rows * state->offset};
	}
	if (s == STATUS_OK) {
		items[n] = (safetensors_item){
		    .name = POSITION, .type = ST_I32, .rank = 1, .dim = {rows}, .data = c->position[step % COPIES]};
		s = safetensors_write(path, items, n + 1, NULL, err);
	}
	free(items);
	free(host);
	return s;
}

static status read_tensor(safetensors *file, const char *name, int64_t count, float *out, error *err)
{
	const safetensors_entry *e = safetensors_find(file, name);
	if (!e || e->count != count)
		return error_set(err, STATUS_CORRUPT, NULL, "%lld numbers \"%s\" are missing", (long long)count, name);
	return safetensors_load_f32(file, e, 0, count, out, err);
}

/* Read slots that have logarithms in place of sums, and convert them. */
static status read_logs(const carry *c, safetensors *file, const char *name, float *out, error *err)
{
	const int64_t rows = rows_of(c), before = state_list_slot_with_logs(c->slots), after = c->states->floats;
	float *logs = memory_new((size_t)(rows * before), sizeof *logs);
	status s = logs ? read_tensor(file, name, rows * before, logs, err) : STATUS_NOMEM;
	for (int64_t row = 0; row < rows && s == STATUS_OK; row++)
		state_list_convert_logs(c->slots, logs + row * before, out + row * after);
	free(logs);
	return s;
}

static status carry_read_all(carry *c, int64_t step, safetensors *file, float *host, error *err)
{
	const int64_t rows = rows_of(c);
	for (int i = 0; i < c->states->count; i++) {
		const state_spec *state = &c->states->items[i];
		const char *name = c->slots ? SUMS : state->name;
		TRY(c->slots && !safetensors_find(file, SUMS)
		        ? read_logs(c, file, state->name, host, err)
		        : read_tensor(file, name, rows * state->floats, host, err));
		TRY(c->backend->upload(c->backend, state_at(c, step, i, 0), host,
		                       (size_t)(rows * state->floats) * sizeof *host));
	}
	TRY(read_tensor(file, POSITION, rows, host, err));
	for (int64_t row = 0; row < rows; row++) {
		if (!(host[row] >= 0 && host[row] <= MOST_TOKENS))
			return error_set(err, STATUS_CORRUPT, NULL, "\"" POSITION "\" is not a number of tokens");
		c->position[step % COPIES][row] = (int32_t)host[row];
	}
	return STATUS_OK;
}

status carry_read(carry *c, int64_t step, const char *path, const manifest *about, error *err)
{
	safetensors *file;
	TRY(safetensors_open_verified(&file, path, about, err));
	int64_t most = c->states->floats > 1 ? c->states->floats : 1;
	float *host = memory_new((size_t)(rows_of(c) * most), sizeof *host);
	status s = host ? carry_read_all(c, step, file, host, err) : STATUS_NOMEM;
	free(host);
	safetensors_close(file);
	return s;
}
