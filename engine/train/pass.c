/* pass.c - the batch is assembled in host memory, port by port, and uploaded as a whole. Positions are 0…length-1 in
 * every row and uploaded once. */
#include "engine/train/pass.h"

#include <assert.h>

#include "engine/base/memory.h"
#include "engine/model/feed.h"

struct pass {
	plan *plan;
	backend *backend;
	float *pool; /* slots, if rows carry the state of a session; otherwise NULL */
	const train_options *options;
	const objective *objective;
	const model_dims *dims;
	int64_t batch, length, source_length; /* batch: in records */
	int64_t rows;                         /* number for a record */
	int64_t loaded;                       /* records of the batch that count */
	value loss, count;
	text_record record;                 /* the record being loaded */
	int32_t *host[OBJECTIVE_MAX_PORTS]; /* a batch of each port */
	int64_t row[OBJECTIVE_MAX_PORTS];   /* numbers in a row of the port */
	bool *continues;                    /* [batch] */
	int64_t *numbers;                   /* [batch]: text_record.number */
	/* for an objective that computes the loss itself; R = batch · rows */
	value log_probabilities;
	float *by_label;        /* [R, length]: log-probabilities, then weights */
	float *sums, *compared; /* [R] each: sequence_batch.sums, reference */
	double *slopes;         /* [R] */
	int64_t *labels;        /* [R] */
};

/* Return the index of a port in the objective's list; -1: absent. */
static int find_port(const objective *o, port_role role)
{
	for (int i = 0; i < o->n_ports; i++)
		if (o->ports[i] == role)
			return i;
	return -1;
}

/* Add what the objective's ports need to the spec. */
static void add_ports(forward_spec *spec, const train_options *o)
{
	spec->masked = spec->masked || find_port(o->objective, PORT_MASK) >= 0;
	spec->source = train_options_source(o);
	spec->source_masked = find_port(o->objective, PORT_SOURCE_MASK) >= 0;
}

forward_spec pass_training_spec(const train_options *o, const model_dims *d, int64_t batch)
{
	const bool weighs = o->objective->weigh;
	forward_spec spec = {.batch = batch * objective_rows(o->objective),
	                     .length = o->sequence_length,
	                     .train.dropout = d->dropout > 0 && !weighs, /* noise in one of two compared numbers */
	                     .train.loss = true,
	                     .train.backward = true,
	                     .train.carried = o->carry_state,
	                     .train.recompute = o->recompute,
	                     .bf16 = o->precision == PRECISION_BF16,
	                     .train.log_probabilities = weighs,
	                     .train.weighted = weighs,
	                     .train.smoothing = weighs ? 0 : (float)o->label_smoothing};
	add_ports(&spec, o);
	return spec;
}

static status make_rows(pass *p)
{
	const graph *g = plan_graph(p->plan);
	for (int i = 0; i < p->objective->n_ports; i++) {
		value port = port_find(g, p->objective->ports[i]);
		p->row[i] = port == VALUE_NONE ? p->length : shape_count(graph_value(g, port)->shape) / p->batch;
		p->host[i] = memory_new((size_t)(p->row[i] * p->batch), sizeof *p->host[i]);
		if (!p->host[i])
			return STATUS_NOMEM;
	}
	return STATUS_OK;
}

static status make_sequences(pass *p)
{
	const int64_t rows = p->batch * p->rows;
	p->log_probabilities = port_find(plan_graph(p->plan), PORT_LOG_PROBABILITIES);
	p->by_label = memory_new((size_t)(rows * p->length), sizeof *p->by_label);
	p->sums = memory_new((size_t)rows, sizeof *p->sums);
	p->compared = memory_new((size_t)rows, sizeof *p->compared);
	p->slopes = memory_new((size_t)rows, sizeof *p->slopes);
	p->labels = memory_new((size_t)rows, sizeof *p->labels);
	return p->by_label && p->sums && p->compared && p->slopes && p->labels ? STATUS_OK : STATUS_NOMEM;
}

static status allocate_pool(pass *p, const model *m)
{
	int64_t bytes;
	void *pool;
	if (!memory_product(p->batch, model_carried(m)->floats * (int64_t)sizeof(float), &bytes))
		return STATUS_NOMEM;
	TRY(p->backend->allocate(p->backend, (size_t)bytes, &pool));
	p->pool = pool;
	return STATUS_OK;
}

static status pass_make(pass *p, const model *m, const forward_spec *spec, float *gradients, error *err)
{
	forward_spec own = *spec;
	add_ports(&own, p->options);
	if (own.train.carried && model_architecture(m)->carries_states)
		TRY(allocate_pool(p, m));
	TRY(model_plan(&p->plan, m, &own, gradients, p->pool, err));
	TRY(text_record_reserve(&p->record, p->length * p->rows + p->source_length, err));
	p->continues = memory_new((size_t)p->batch, sizeof *p->continues);
	p->numbers = memory_new((size_t)p->batch, sizeof *p->numbers);
	if (!p->continues || !p->numbers)
		return STATUS_NOMEM;
	if (p->objective->weigh)
		TRY(make_sequences(p));
	p->loss = port_find(plan_graph(p->plan), PORT_LOSS);
	p->count = port_find(plan_graph(p->plan), PORT_COUNT);
	TRY(make_rows(p));
	return feed_positions(p->plan, model_dimensions(m), POSITION_ERROR, 0);
}

status pass_new(pass **out, const model *m, const train_options *o, const forward_spec *spec, float *gradients,
                error *err)
{
	*out = NULL;
	int64_t cells;
	if (!memory_product(spec->batch, spec->length + train_options_source(o), &cells))
		return error_set(err, STATUS_INVALID, "batch_size", "batch_size times sequence_length is too large");
	pass *p = memory_new(1, sizeof *p);
	if (!p)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	p->backend = model_backend(m);
	p->options = o;
	p->objective = o->objective;
	p->dims = model_dimensions(m);
	p->rows = objective_rows(o->objective);
	p->batch = spec->batch / p->rows;
	p->length = spec->length;
	p->source_length = train_options_source(o);
	status s = pass_make(p, m, spec, gradients, err);
	if (s != STATUS_OK) {
		pass_free(p);
		return error_set(err, s, NULL, "a batch of %lld sequences of %lld tokens: %s", (long long)spec->batch,
		                 (long long)spec->length, status_text(s));
	}
	*out = p;
	return STATUS_OK;
}

void pass_free(pass *p)
{
	if (!p)
		return;
	plan_free(p->plan);
	p->backend->release(p->backend, p->pool);
	for (int i = 0; i < OBJECTIVE_MAX_PORTS; i++)
		free(p->host[i]);
	text_record_fini(&p->record);
	free(p->continues);
	free(p->numbers);
	free(p->by_label);
	free(p->sums);
	free(p->compared);
	free(p->slopes);
	free(p->labels);
	free(p);
}

plan *pass_plan(const pass *p)
{
	return p->plan;
}

status pass_read(pass *p, const dataset *d, uint64_t shuffle, pass_rows rows, error *err)
{
	assert(rows.count >= 0 && rows.count <= p->batch && dataset_length(d) == train_options_record(p->options));
	int64_t records = dataset_records(d);
	p->loaded = rows.count;
	example x = {.data = d,
	             .dims = p->dims,
	             .options = p->options,
	             .record = &p->record,
	             .length = p->length,
	             .source_length = p->source_length,
	             .seed = shuffle};
	for (int64_t b = 0; b < p->batch; b++) {
		int64_t number = rows.first + b * rows.stride;
		x.epoch = number / records;
		x.place = number % records;
		if (b < rows.count)
			TRY(dataset_record(d, shuffle, x.epoch, x.place, &p->record, err));
		else
			x.record = NULL;
		p->numbers[b] = p->record.number;
		p->continues[b] = x.record && !rows.begin && p->record.continues;
		void *values[OBJECTIVE_MAX_PORTS];
		for (int i = 0; i < p->objective->n_ports; i++)
			values[i] = p->host[i] + b * p->row[i];
		p->objective->example(&x, values);
	}
	return STATUS_OK;
}

status pass_load(pass *p, const dataset *d, uint64_t shuffle, pass_rows rows, error *err)
{
	TRY(pass_read(p, d, shuffle, rows, err));
	for (int i = 0; i < p->objective->n_ports; i++)
		TRY(feed_write(p->plan, p->objective->ports[i], p->host[i]));
	const int ids = find_port(p->objective, PORT_TOKENS), mask = find_port(p->objective, PORT_MASK);
	return feed_last(p->plan, p->dims, ids < 0 ? NULL : p->host[ids], mask < 0 ? NULL : p->host[mask]);
}

const bool *pass_continues(const pass *p)
{
	return p->continues;
}

int64_t pass_labels(const pass *p)
{
	int port = find_port(p->objective, PORT_LABELS);
	int64_t count = 0;
	for (int64_t i = 0; port >= 0 && i < p->row[port] * p->batch; i++)
		count += p->host[port][i] >= 0;
	return count;
}

status pass_seed(pass *p, uint64_t seed, uint32_t step, uint32_t part)
{
	const uint32_t words[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), step, part};
	return feed_write(p->plan, PORT_RANDOM, words);
}

const float *pass_loss(const pass *p)
{
	return plan_data(p->plan, p->loss);
}

status pass_result(pass *p, double *loss, double *count)
{
	float l, c;
	TRY(plan_read(p->plan, p->loss, &l));
	TRY(plan_read(p->plan, p->count, &c));
	*loss = l;
	*count = c;
	return STATUS_OK;
}

/* --- objectives that compute the loss themselves ---------------------------------------------- */

int pass_stop(const pass *p)
{
	return port_find(plan_graph(p->plan), PORT_LABEL_WEIGHTS) == VALUE_NONE
	           ? plan_node_count(p->plan)
	           : plan_node_of(p->plan, p->log_probabilities) + 1;
}

status pass_sums(pass *p, float *sums)
{
	const int32_t *labels = p->host[find_port(p->objective, PORT_LABELS)];
	TRY(plan_read(p->plan, p->log_probabilities, p->by_label));
	for (int64_t row = 0; row < p->loaded * p->rows; row++) {
		double sum = 0;
		p->labels[row] = 0;
		for (int64_t i = row * p->length; i < (row + 1) * p->length; i++) {
			sum += (double)p->by_label[i];
			p->labels[row] += labels[i] >= 0;
		}
		sums[row] = (float)sum;
	}
	return STATUS_OK;
}

status pass_weigh(pass *p, const float *reference, void *tally, double *loss)
{
	sequence_batch b = {.options = p->options,
	                    .records = p->loaded,
	                    .sums = p->sums,
	                    .reference = p->compared,
	                    .labels = p->labels,
	                    .slopes = p->slopes,
	                    .tally = tally};
	TRY(pass_sums(p, p->sums));
	for (int64_t i = 0; i < p->loaded * p->rows; i++)
		p->compared[i] = reference[p->numbers[i / p->rows] * p->rows + i % p->rows];
	p->objective->weigh(&b);
	*loss = b.loss;
	/* The loss of the plan is Σ weight · -log-probability / labels. */
	const double labels = (double)pass_labels(p);
	for (int64_t i = 0; i < p->batch * p->rows * p->length; i++) {
		const int64_t row = i / p->length;
		p->by_label[i] = row < p->loaded * p->rows ? (float)(-labels * p->slopes[row]) : 0;
	}
	return feed_write(p->plan, PORT_LABEL_WEIGHTS, p->by_label);
}
