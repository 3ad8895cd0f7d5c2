/* metrics.c - all numbers of the executor come from its snapshot, so a request never waits for it. */
#include "engine/daemon/metrics.h"

#include "engine/base/clock.h"
#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/engine_parts.h"
#include "engine/daemon/jobs/jobs.h"
#include "engine/daemon/library/storage.h"
#include "engine/daemon/net/listener.h"
#include "engine/daemon/requests/responses.h"
#include "engine/daemon/sessions/sessions.h"
#include "engine/serve/prefix_disk.h"

static double uptime(const engine *e)
{
	return (double)(clock_ns() - e->started_ns) * 1e-9;
}

/* Return an array with an object for each of several devices; NULL: there is one, or no memory. */
static json_t *list_devices(const engine *e)
{
	json_t *all = fleet_count(e->fleet) > 1 ? json_array() : NULL;
	for (int i = 0; all && i < fleet_count(e->fleet); i++) {
		device_stats d;
		device_snapshot(fleet_device(e->fleet, i), &d);
		json_array_append_new(
		    all, json_pack("{s:i, s:s, s:s?, s:i, s:i, s:i, s:I, s:i, s:i, s:b}", "number",
		                   e->options->devices[i], "device", device_description(fleet_device(e->fleet, i)),
		                   "problem", d.problem[0] ? d.problem : NULL, "models_loaded", d.scheduler.models,
		                   "sessions", d.scheduler.sessions, "slots", e->options->limits.max_sessions,
		                   "state_bytes", (json_int_t)d.scheduler.state_bytes, "queue", d.scheduler.waiting,
		                   "running", d.scheduler.running, "trains", fleet_trains(e->fleet, i)));
	}
	return all;
}

void metrics_status(stream *s)
{
	engine *e = s->room;
	device_stats d;
	int threads = e->options->threads ? e->options->threads : (int)uv_available_parallelism();
	fleet_snapshot(e->fleet, &d);
	stream_result(s, json_pack("{s:s, s:s, s:s, s:s?, s:f, s:i, s:i, s:i, s:i, s:i, s:o, s:o*}", "version",
	                           ADDITIVE_VERSION, "backend", fleet_backend_name(e->fleet), "device",
	                           fleet_description(e->fleet), "device_problem", d.problem[0] ? d.problem : NULL,
	                           "uptime_seconds", uptime(e), "models_loaded", d.scheduler.models, "sessions",
	                           sessions_count(e->sessions), "queue", d.scheduler.waiting, "running",
	                           d.scheduler.running, "threads", threads, "storage", storage_state(e->storage),
	                           "devices", list_devices(e)));
}

/* --- metrics ------------------------------------------------------------------- */

static void metrics_add(json_t *all, const char *name, const char *type, const char *help, double x)
{
	/* Print a count in full, whatever its size. */
	json_t *number = x == (double)(json_int_t)x ? json_integer((json_int_t)x) : json_real(x);
	json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:[{s:{}, s:o}]}", "name", name, "type", type, "help",
	                                     help, "samples", "labels", "value", number));
}

/* Add a histogram over device_tick_bounds. */
static void add_times(json_t *all, const char *name, const char *help, const uint64_t counts[DEVICE_TICK_BUCKETS + 1],
                      double seconds)
{
	json_t *buckets = json_array();
	uint64_t below = 0;
	for (int i = 0; i < DEVICE_TICK_BUCKETS; i++) {
		below += counts[i];
		json_array_append_new(buckets, json_pack("[f, I]", device_tick_bounds[i], (json_int_t)below));
	}
	json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:o, s:f, s:I}", "name", name, "type", "histogram",
	                                     "help", help, "buckets", buckets, "sum", seconds, "count",
	                                     (json_int_t)(below + counts[DEVICE_TICK_BUCKETS])));
}

static const char *const places[TIERS] = {[TIER_DEVICE] = "device", [TIER_HOST] = "memory", [TIER_DISK] = "disk"};

/* Add a gauge with a sample for each place. */
static void add_places(json_t *all, const char *name, const char *help, const int64_t values[TIERS])
{
	json_t *samples = json_array();
	for (int i = 0; i < TIERS; i++)
		json_array_append_new(
		    samples, json_pack("{s:{s:s}, s:I}", "labels", "place", places[i], "value", (json_int_t)values[i]));
	json_array_append_new(
	    all, json_pack("{s:s, s:s, s:s, s:o}", "name", name, "type", "gauge", "help", help, "samples", samples));
}

static void add_sessions(json_t *all, const engine *e)
{
	static const struct {
		session_tier from, to;
	} ways[] = {{TIER_DEVICE, TIER_HOST},
	            {TIER_DEVICE, TIER_DISK},
	            {TIER_HOST, TIER_DISK},
	            {TIER_HOST, TIER_DEVICE},
	            {TIER_DISK, TIER_DEVICE}};
	sessions_stats s;
	json_t *moves = json_array();
	sessions_stats_read(e->sessions, &s);
	add_places(all, "additive_engine_session_states", "Sessions by the place of their state.", s.sessions);
	add_places(all, "additive_engine_session_state_bytes",
	           "Bytes of those states; on the disk without durable sessions.", s.bytes);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		json_array_append_new(moves, json_pack("{s:{s:s, s:s}, s:I}", "labels", "from", places[ways[i].from],
		                                       "to", places[ways[i].to], "value",
		                                       (json_int_t)s.moves[ways[i].from][ways[i].to]));
	json_array_append_new(all,
	                      json_pack("{s:s, s:s, s:s, s:o}", "name", "additive_engine_session_moves_total", "type",
	                                "counter", "help", "Moves of sessions between places.", "samples", moves));
	add_times(all, "additive_engine_session_return_seconds",
	          "Time from a request to the return of its session to the device.", s.returns, s.return_seconds);
}

static void add_prefix_disk(json_t *all, const engine *e)
{
	prefix_disk_stats s;
	prefix_disk_read_stats(e->prefix_disk, &s);
	metrics_add(all, "additive_engine_prefix_disk_states", "gauge", "States on the disk that prompts begin with.",
	            (double)s.states);
	metrics_add(all, "additive_engine_prefix_disk_bytes", "gauge", "Bytes of those states.", (double)s.bytes);
	metrics_add(all, "additive_engine_prefix_disk_reads_total", "counter",
	            "States that returned from the disk for a prompt.", (double)s.reads);
	metrics_add(all, "additive_engine_prefix_disk_writes_total", "counter", "States written to the disk.",
	            (double)s.writes);
	metrics_add(all, "additive_engine_prefix_disk_unwritten_total", "counter",
	            "States given up: the queue was full, or the disk full or faulty.", (double)s.unwritten);
	metrics_add(all, "additive_engine_prefix_disk_damaged_total", "counter",
	            "States on the disk that were missing or damaged.", (double)s.damaged);
}

static void add_serving(json_t *all, const engine *e, const device_stats *d)
{
	const scheduler_stats *s = &d->scheduler;
	metrics_add(all, "additive_engine_prompt_tokens_total", "counter", "Prompt tokens read.",
	            (double)s->prompt_tokens);
	metrics_add(all, "additive_engine_cached_prompt_tokens_total", "counter",
	            "Prompt tokens that were not read, because the state after them was kept.",
	            (double)s->cached_tokens);
	metrics_add(all, "additive_engine_prefix_bytes", "gauge", "Host memory of states that prompts begin with.",
	            (double)s->prefix_bytes);
	metrics_add(all, "additive_engine_prefix_too_large_total", "counter",
	            "States of prompts that were not kept: larger than the whole budget.", (double)s->prefix_too_large);
	metrics_add(all, "additive_engine_prefix_thinned_total", "counter",
	            "States of prompts that were not kept: copying or memory costs too much against reading, or they are "
	            "copied in pieces and the generation ended or another such copy was in progress.",
	            (double)s->prefix_thinned);
	int64_t blocks, shared;
	scheduler_block_bytes(&blocks, &shared);
	metrics_add(all, "additive_engine_state_block_bytes", "gauge",
	            "Host memory of blocks of 256 tokens' keys and values, held by snapshots and states of prompts.",
	            (double)blocks);
	metrics_add(all, "additive_engine_state_block_shared_bytes", "gauge",
	            "Bytes that they would take more if each had its own.", (double)shared);
	add_prefix_disk(all, e);
	metrics_add(all, "additive_engine_generated_tokens_total", "counter", "Tokens generated.",
	            (double)s->generated_tokens);
	metrics_add(all, "additive_engine_ticks_total", "counter", "Turns: decode steps, steps of prompts, slices.",
	            (double)s->ticks);
	metrics_add(all, "additive_engine_batched_sequences_total", "counter",
	            "Streams in all steps; each had one token.", (double)s->batched_sequences);
	metrics_add(all, "additive_engine_generations_running", "gauge", "Generations that have begun.", s->running);
	metrics_add(all, "additive_engine_generations_waiting", "gauge", "Generations whose prompt waits.", s->waiting);
	metrics_add(all, "additive_engine_explanations_running", "gauge", "Explanations being made or sent.",
	            e->generation.explanations);
	metrics_add(all, "additive_engine_tasks_pending", "gauge", "Requests handed to the executor and not yet begun.",
	            fleet_pending(e->fleet));
	metrics_add(all, "additive_engine_models_loaded", "gauge", "Models on the device.", s->models);
	metrics_add(all, "additive_engine_sessions", "gauge", "Sessions, wherever their states are.",
	            sessions_count(e->sessions));
	metrics_add(all, "additive_engine_sessions_live", "gauge", "Sessions with a state on the device.", s->sessions);
	add_times(all, "additive_engine_tick_seconds", "Duration of one decode step or prefill chunk.", d->tick_count,
	          d->tick_seconds);
	add_sessions(all, e);
}

static void add_responses(json_t *all, const engine *e)
{
	const responses_counts c = responses_count(e->net.responses);
	metrics_add(all, "additive_engine_responses", "gauge", "Stored and background responses.", c.known);
	metrics_add(all, "additive_engine_responses_running", "gauge", "Those whose generation has not ended.",
	            c.running);
	metrics_add(all, "additive_engine_responses_bytes", "gauge", "Memory that they use.", (double)c.bytes);
	metrics_add(all, "additive_engine_responses_expired_total", "counter",
	            "Responses removed after --responses-seconds.", (double)c.expired);
	metrics_add(all, "additive_engine_responses_evicted_total", "counter",
	            "Responses removed earlier, to make room for others.", (double)c.evicted);
}

static void add_training(json_t *all, const engine *e, const device_stats *d)
{
	metrics_add(all, "additive_engine_training_steps_total", "counter", "Optimiser steps.",
	            (double)d->training_steps);
	metrics_add(all, "additive_engine_training_tokens_total", "counter", "Tokens trained on.",
	            (double)d->training_tokens);
	metrics_add(all, "additive_engine_training_tokens_per_second", "gauge",
	            "Speed of the running job, 0 without one.", d->training_tokens_per_second);
	metrics_add(all, "additive_engine_jobs_waiting", "gauge", "Jobs in the queue.",
	            jobs_waiting(jobs_of(e->job_machine)));
	metrics_add(all, "additive_engine_jobs_running", "gauge", "1 while a job runs.",
	            jobs_running(jobs_of(e->job_machine)));
}

/* Latest values of the jobs that have started and not ended, one sample for each. */
static const struct job_gauge {
	const char *member, *name, *help;
} job_gauges[] = {
    {"step", "additive_job_step", "Optimiser steps of a job that runs or is paused."},
    {"train_loss", "additive_job_train_loss", "Training loss of its last step, nats."},
    {"valid_loss", "additive_job_valid_loss", "Validation loss of its last validation, nats."},
    {"learning_rate", "additive_job_learning_rate", "Learning rate of its last step."},
    {"gradient_norm", "additive_job_gradient_norm", "Norm of the gradient of its last step, before clipping."},
    {"tokens_per_second", "additive_job_tokens_per_second", "Its speed while it runs."},
};

typedef struct job_samples {
	const char *member;
	json_t *samples;
} job_samples;

static void add_job_sample(void *context, const char *id, const json_t *progress)
{
	const job_samples *s = context;
	json_t *number = json_object_get(progress, s->member);
	if (json_is_number(number))
		json_array_append_new(s->samples, json_pack("{s:{s:s}, s:O}", "labels", "job", id, "value", number));
}

static void add_jobs(json_t *all, const engine *e)
{
	for (size_t i = 0; i < sizeof job_gauges / sizeof *job_gauges; i++) {
		const struct job_gauge *g = &job_gauges[i];
		job_samples s = {g->member, json_array()};
		jobs_each_started(jobs_of(e->job_machine), add_job_sample, &s);
		if (json_array_size(s.samples) > 0)
			json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:O}", "name", g->name, "type", "gauge",
			                                     "help", g->help, "samples", s.samples));
		json_decref(s.samples);
	}
}

static double device_ok(const device_stats *d)
{
	return d->problem[0] == 0;
}

static double device_restarts(const device_stats *d)
{
	return (double)d->restarts;
}

static double device_models(const device_stats *d)
{
	return d->scheduler.models;
}

static double device_sessions(const device_stats *d)
{
	return d->scheduler.sessions;
}

static double device_state_bytes(const device_stats *d)
{
	return (double)d->scheduler.state_bytes;
}

static double device_running(const device_stats *d)
{
	return d->scheduler.running;
}

static double device_waiting(const device_stats *d)
{
	return d->scheduler.waiting;
}

static double device_ticks(const device_stats *d)
{
	return (double)d->scheduler.ticks;
}

static double device_training_steps(const device_stats *d)
{
	return (double)d->training_steps;
}

/* Values of one device, with its number as a label; only if there are several. */
static const struct device_gauge {
	const char *name, *type, *help;
	double (*value)(const device_stats *d);
} device_gauges[] = {
    {"additive_device_ok", "gauge", "0 while the device cannot be used.", device_ok},
    {"additive_device_restarts_total", "counter", "Times the device failed and was opened again.", device_restarts},
    {"additive_device_models_loaded", "gauge", "Models on the device.", device_models},
    {"additive_device_sessions_live", "gauge", "Sessions with a state on the device.", device_sessions},
    {"additive_device_state_bytes", "gauge", "Memory of the states on the device.", device_state_bytes},
    {"additive_device_generations_running", "gauge", "Generations that have begun.", device_running},
    {"additive_device_generations_waiting", "gauge", "Generations whose prompt waits.", device_waiting},
    {"additive_device_ticks_total", "counter", "Turns: decode steps, steps of prompts, slices.", device_ticks},
    {"additive_device_training_steps_total", "counter", "Optimiser steps.", device_training_steps},
};

static void add_devices(json_t *all, const engine *e)
{
	for (size_t k = 0; k < sizeof device_gauges / sizeof *device_gauges && fleet_count(e->fleet) > 1; k++) {
		const struct device_gauge *g = &device_gauges[k];
		json_t *samples = json_array();
		for (int i = 0; i < fleet_count(e->fleet); i++) {
			char number[16];
			device_stats d;
			snprintf(number, sizeof number, "%d", e->options->devices[i]);
			device_snapshot(fleet_device(e->fleet, i), &d);
			json_array_append_new(samples, json_pack("{s:{s:s}, s:o}", "labels", "device", number, "value",
			                                         json_integer((json_int_t)g->value(&d))));
		}
		json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:o}", "name", g->name, "type", g->type, "help",
		                                     g->help, "samples", samples));
	}
}

void metrics_read(stream *s)
{
	const engine *e = s->room;
	device_stats d;
	json_t *all = json_array();
	fleet_snapshot(e->fleet, &d);
	/* A gauge that is always 1; its labels name the device. */
	json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:[{s:{s:s, s:s}, s:i}]}", "name", "additive_engine_info",
	                                     "type", "gauge", "help", "The backend and the device that compute.",
	                                     "samples", "labels", "backend", fleet_backend_name(e->fleet), "device",
	                                     fleet_description(e->fleet), "value", 1));
	metrics_add(all, "additive_engine_uptime_seconds", "gauge", "Since the engine started.", uptime(e));
	metrics_add(all, "additive_engine_storage_damaged", "gauge", "Stored objects that were found damaged.",
	            store_damaged_count(e->store));
	metrics_add(all, "additive_engine_storage_lost", "gauge",
	            "Blobs without a row in the ledger, kept in DATA/lost.", (double)storage_lost(e->storage));
	metrics_add(all, "additive_engine_connections", "gauge", "Front ends connected.",
	            listener_connections(e->listener));
	metrics_add(all, "additive_engine_streams", "gauge", "Requests not yet answered.", e->net.streams);
	metrics_add(all, "additive_engine_results_total", "counter", "Requests answered with success.",
	            (double)e->net.requests);
	metrics_add(all, "additive_engine_errors_total", "counter", "Requests answered with an error.",
	            (double)e->net.failures);
	metrics_add(all, "additive_engine_device_ok", "gauge", "0 while the device cannot be used.", d.problem[0] == 0);
	metrics_add(all, "additive_engine_device_restarts_total", "counter",
	            "Times the device failed and was opened again.", (double)d.restarts);
	metrics_add(all, "additive_engine_process_restarts_total", "counter",
	            "Times the engine re-executed itself because the device did not open again in the same process.",
	            d.processes);
	metrics_add(all, "additive_engine_storage_ok", "gauge", "0 while the data folder cannot be relied on.",
	            store_problem(e->store) == NULL);
	metrics_add(all, "additive_engine_storage_damaged", "gauge", "Objects found damaged since the start.",
	            store_damaged_count(e->store));
	add_serving(all, e, &d);
	add_responses(all, e);
	add_training(all, e, &d);
	add_jobs(all, e);
	add_devices(all, e);
	stream_result(s, json_pack("{s:o}", "metrics", all));
}
