#include "engine/daemon/rooms.h"

void *rooms_context(engine *e, room which)
{
	switch (which) {
	case ROOM_LIBRARY:
		return &e->library;
	case ROOM_SESSIONS:
		return e->sessions;
	case ROOM_GENERATION:
		return &e->generation;
	case ROOM_KEYS:
		return e->keys;
	default:
		return e;
	}
}

void rooms_connect(engine *e)
{
	const engine_options *o = e->options;
	e->generation = (generation_room){.catalog = e->catalog,
	                                  .fleet = e->fleet,
	                                  .sessions = e->sessions,
	                                  .admission = e->admission,
	                                  .max_generations = o->limits.max_generations,
	                                  .max_explanations = o->max_explanations};
	e->library = (library){.store = e->store,
	                       .catalog = e->catalog,
	                       .fleet = e->fleet,
	                       .sessions = e->sessions,
	                       .jobs = e->job_machine,
	                       .folder = o->data,
	                       .budget = o->data_budget,
	                       .cache_folder = e->cache_folder,
	                       .cache_budget = e->cache_budget,
	                       .statistics = &e->statistics,
	                       .pool_threads = e->pool_threads};
}

session_parts rooms_sessions(engine *e)
{
	return (session_parts){.store = e->store,
	                       .catalog = e->catalog,
	                       .fleet = e->fleet,
	                       .loop = e->net.loop,
	                       .max_live = e->options->limits.max_sessions,
	                       .max_known = e->options->max_known_sessions,
	                       .max_snapshots = e->options->max_snapshots,
	                       .snapshot_bytes = e->options->snapshot_bytes,
	                       .snapshot_used = &e->snapshot_used,
	                       .memory_bytes = e->options->session_memory_bytes,
	                       .disk_bytes = e->options->session_disk_bytes};
}

job_parts rooms_jobs(engine *e)
{
	const engine_options *o = e->options;
	return (job_parts){.loop = &e->loop,
	                   .net = &e->net,
	                   .store = e->store,
	                   .deaths = e->deaths,
	                   .catalog = e->catalog,
	                   .fleet = e->fleet,
	                   .sessions = e->sessions,
	                   .traces = e->traces,
	                   .cache_folder = e->cache_folder,
	                   .cache_budget = e->cache_budget,
	                   .threads = o->threads,
	                   .retain_days = o->retain_days,
	                   .retain_bytes = o->retain_bytes};
}
