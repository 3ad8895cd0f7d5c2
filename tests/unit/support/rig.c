#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/base/philox.h" /* before the daemon's headers: one of its parameters is called `stream` */

#include "tests/unit/support/folder.h"
#include "tests/unit/support/parts.h"
#include "tests/unit/support/rig.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/cpu/cpu.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/dispatch.h"
#include "engine/daemon/generation/admission.h"
#include "engine/daemon/keys/keys.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/requests/idempotency.h"
#include "engine/daemon/requests/responses.h"
#include "engine/daemon/sessions/sessions.h"
#include "engine/model/model.h"

/* --- the engine ------------------------------------------------------------------------ */

/* Give every parameter an effect, so that texts depend on the tokens read. */
static void stir(model *m)
{
	for (int i = 0; i < model_tensor_count(m); i++) {
		float *data = model_arena(m) + model_parameter_offset(m, i);
		for (int64_t j = 0; j < shape_count(model_parameter(m, i)->shape); j++)
			data[j] += philox_uniform(philox(7, (uint32_t)i, 1, (uint64_t)j).word[0]) - 0.5f;
	}
}

static void add_model(rig *d)
{
	char folder[PATH_MAX];
	backend *b;
	model *m;
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i}", "hidden_size", 16, "vocab_size", 259, "n_heads", 2,
	                           "n_positions", RIG_POSITIONS, "n_layer", 2);
	store_temporary_path(d->engine.store, folder);
	assert_int_equal(file_make_folders(folder, NULL), STATUS_OK);
	assert_int_equal(cpu_open(&b, 1, NULL), STATUS_OK);
	assert_int_equal(model_create(&m, architecture_find("additive"), config, 1, b, NULL), STATUS_OK);
	stir(m);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	assert_int_equal(catalog_add(d->engine.catalog, "m", folder, "", NULL), STATUS_OK);
	model_free(m);
	json_decref(config);
	backend_close(b);
}

static void open_parts(rig *d, backend_opener cpu)
{
	engine *e = &d->engine;
	device_options on[FLEET_MAX];
	for (int i = 0; i < d->options.n_devices; i++)
		on[i] = (device_options){
		    .backend = "cpu", .device = i, .threads = 1, .limits = d->options.limits, .cpu = cpu};
	*e = (engine){.options = &d->options};
	assert_int_equal(uv_loop_init(&e->loop), 0);
	e->net = (net){.loop = &e->loop, .owner = e};
	assert_int_equal(admission_new(&e->admission, RIG_GENERATIONS), STATUS_OK);
	assert_int_equal(store_open(&e->store, d->folder, NULL), STATUS_OK);
	assert_int_equal(keys_new(&e->keys, e->store, NULL), STATUS_OK);
	assert_int_equal(fleet_open(&e->fleet, on, d->options.n_devices, NULL), STATUS_OK);
	assert_int_equal(fleet_start(e->fleet, &e->loop, NULL), STATUS_OK);
	assert_int_equal(idempotency_new(&e->net.idempotency), STATUS_OK);
	e->net.store = e->store;
	assert_int_equal(responses_new(&e->net.responses, &e->net, &d->options.responses, NULL), STATUS_OK);
	assert_int_equal(catalog_new(&e->catalog, e->store), STATUS_OK);
	parts_open_sessions(e);
	parts_open_jobs(e, dispatch_job_kinds);
	rooms_connect(e);
}

/* Release a hold of the executor. */
static void let_go(rig *d)
{
	d->holds = false;
	uv_sem_post(&d->held);
}

void rig_drop_calls(rig *d)
{
	if (d->holds)
		let_go(d);
	while (d->calls)
		rig_call_free(d->calls);
	while (d->engine.net.streams > 0)
		uv_run(&d->engine.loop, UV_RUN_NOWAIT);
}

static void close_parts(rig *d)
{
	engine *e = &d->engine;
	rig_drop_calls(d);
	fleet_stop(e->fleet);
	uv_run(&e->loop, UV_RUN_DEFAULT);
	job_machine_free(e->job_machine);
	sessions_free(e->sessions);
	catalog_free(e->catalog);
	idempotency_free(e->net.idempotency);
	responses_free(e->net.responses);
	admission_free(e->admission);
	fleet_free(e->fleet);
	keys_free(e->keys);
	store_close(e->store);
	assert_int_equal(uv_loop_close(&e->loop), 0);
	assert_int_equal(e->net.streams, 0);
}

rig *rig_new(backend_opener cpu)
{
	return rig_new_fleet(cpu, 1);
}

rig *rig_new_fleet(backend_opener cpu, int n)
{
	rig *d = memory_new(1, sizeof *d);
	log_init("test", LOG_ERROR);
	folder_new(d->folder);
	d->options = (engine_options){.data = d->folder,
	                              .n_devices = n,
	                              .limits = {.max_models = 2,
	                                         .max_sessions = RIG_SESSIONS,
	                                         .max_generations = RIG_GENERATIONS,
	                                         .max_batch = 4},
	                              .max_known_sessions = 8,
	                              .max_snapshots = RIG_SNAPSHOTS,
	                              .snapshot_bytes = 1 << 30,
	                              .max_explanations = 8,
	                              .responses = {RESPONSES_SECONDS, RESPONSES_BYTES, RESPONSES_OWNER_BYTES}};
	open_parts(d, cpu);
	add_model(d);
	return d;
}

void rig_reopen(rig *d, backend_opener cpu)
{
	close_parts(d);
	open_parts(d, cpu);
}

void rig_free(rig *d)
{
	close_parts(d);
	assert_int_equal(file_remove_tree(d->folder, NULL), STATUS_OK);
	free(d);
}

/* --- a client ------------------------------------------------------------------------- */

static void take_frame(rig_call *c, const frame *f, const char *json)
{
	c->late += c->answers > 0;
	json_t *object = f->json_bytes ? json_loadb(json, f->json_bytes, JSON_ALLOW_NUL, NULL) : NULL;
	if (f->type == FRAME_EVENT) {
		json_array_append(c->events, object);
	} else if (f->type == FRAME_RESULT || f->type == FRAME_ERROR) {
		c->answers++;
		c->failed = f->type == FRAME_ERROR;
		c->answer = json_incref(object);
	} else if (f->type == FRAME_DATA) {
		return; /* peer_send keeps the bytes */
	}
	json_decref(object);
}

static void peer_send(stream_peer *p, const frame *f, char *json, void *payload)
{
	rig_call *c = (rig_call *)p;
	take_frame(c, f, json);
	if (f->type == FRAME_DATA) {
		c->data = realloc(c->data, c->bytes + f->payload_bytes);
		assert_non_null(c->data);
		memcpy(c->data + c->bytes, payload, f->payload_bytes);
		c->bytes += f->payload_bytes;
	}
	reserve_free(json);
	free(payload);
}

static void peer_send_copy(stream_peer *p, const frame *f)
{
	take_frame((rig_call *)p, f, f->json);
}

static void peer_fail(stream_peer *p)
{
	(void)p;
	fail_msg("a frame is missing");
}

static void peer_forget(stream_peer *p, stream *s)
{
	rig_call *c = (rig_call *)p;
	assert_ptr_equal(c->stream, s);
	c->stream = NULL;
}

rig_call *rig_begin(rig *d, const char *method, json_t *params, int64_t credit)
{
	rig_call *c = memory_new(1, sizeof *c);
	stream *s = c->stream = stream_new(&d->engine.net, &c->peer, 1, credit);
	c->peer = (stream_peer){peer_send, peer_send_copy, peer_fail, peer_forget, false};
	c->rig = d;
	c->next = d->calls;
	d->calls = c;
	c->events = json_array();
	s->params = params;
	s->large = json_dumpb(params, NULL, 0, 0) >= STREAM_LARGE;
	s->upload = strcmp(method, "session.import") == 0 || strcmp(method, "file.create") == 0;
	assert_non_null(params);
	dispatch_request(s, method);
	return c;
}

void rig_send(rig_call *c, const char *part, const void *data, size_t bytes)
{
	char name[64];
	snprintf(name, sizeof name, "{\"part\":\"%s\"}", part);
	assert_non_null(c->stream);
	c->stream->watch->data(c->stream, &(frame){.type = FRAME_DATA,
	                                           .flags = FRAME_FLAG_END,
	                                           .json = name,
	                                           .json_bytes = strlen(name),
	                                           .payload = data,
	                                           .payload_bytes = bytes});
}

void rig_grant(rig_call *c, int64_t credit)
{
	if (!c->stream)
		return;
	c->stream->credit += credit;
	if (c->stream->watch && c->stream->watch->credit)
		c->stream->watch->credit(c->stream);
}

void rig_cancel(rig_call *c)
{
	if (c->stream)
		stream_cancel(c->stream);
}

void rig_wait(rig_call *c)
{
	for (uint64_t began = clock_ns(); !c->answers;) {
		assert_true(clock_ns() - began < 10000000000u);
		uv_run(&c->rig->engine.loop, UV_RUN_NOWAIT);
	}
}

typedef struct look {
	task task;
	bool done, idle;
} look;

static void run_look(task *t, device *d)
{
	((look *)t)->idle = !device_scheduler(d) || !scheduler_runnable(device_scheduler(d));
}

static void look_done(task *t)
{
	((look *)t)->done = true;
}

/* Settle after four idle looks at each device in a row. A look runs after everything posted before it. The messages of
 * those tasks may post further tasks to the executor, whose messages may do so again. */
void rig_settle(rig *d)
{
	const int n = fleet_count(d->engine.fleet);
	for (int quiet = 0, at = 0; quiet < 4 * n; at = (at + 1) % n) {
		look x = {.task = {.run = run_look, .done = look_done}};
		bool none = fleet_pending(d->engine.fleet) == 0 && d->engine.loop.active_reqs.count == 0;
		executor_control(fleet_executor(d->engine.fleet, at), &x.task);
		while (!x.done)
			uv_run(&d->engine.loop, UV_RUN_NOWAIT);
		quiet = none && x.idle ? quiet + 1 : 0;
	}
}

static void run_hold(task *t, device *d)
{
	(void)d;
	uv_sem_wait(&TASK_OWNER(t, rig, hold)->held);
}

void rig_hold_device(rig *d, int at)
{
	d->hold = (task){.run = run_hold};
	assert_int_equal(uv_sem_init(&d->held, 0), 0);
	d->holds = true;
	executor_control(fleet_executor(d->engine.fleet, at), &d->hold);
}

void rig_hold(rig *d)
{
	rig_hold_device(d, 0);
}

void rig_release(rig *d)
{
	let_go(d);
	rig_settle(d);
	uv_sem_destroy(&d->held);
}

void rig_call_free(rig_call *c)
{
	rig_call **link = &c->rig->calls;
	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	if (c->stream) { /* the peer disconnects and its answer is dropped */
		c->stream->peer = NULL;
		stream_cancel_again(c->stream);
	}
	json_decref(c->events);
	json_decref(c->answer);
	free(c->data);
	free(c);
}

json_t *rig_ask(rig *d, int http, const char *method, json_t *params)
{
	rig_call *c = rig_begin(d, method, params, 1000);
	rig_wait(c);
	json_t *answer = json_incref(c->answer);
	assert_int_equal(c->answers, 1);
	assert_int_equal(json_integer_value(json_object_get(c->failed ? answer : NULL, "status")), http);
	rig_call_free(c);
	return answer;
}

char *rig_text(const rig_call *c, int index)
{
	char *text = calloc(1, 1 << 16);
	size_t i;
	json_t *event;
	json_array_foreach(c->events, i, event) if (json_integer_value(json_object_get(event, "index")) == index)
	    strcat(text, json_string_value(json_object_get(event, "text")));
	return text;
}

/* --- a backend that fails --------------------------------------------------------------- */

static backend_kernel real_linear;
_Atomic bool rig_fails;

static status failing_linear(backend *b, const op_call *call)
{
	if (!rig_fails)
		return real_linear(b, call);
	rig_fails = false;
	return STATUS_DEVICE;
}

status rig_open_failing(backend **out, int threads, error *err)
{
	TRY(cpu_open(out, threads, err));
	real_linear = (*out)->kernel[OP_linear];
	(*out)->kernel[OP_linear] = failing_linear;
	return STATUS_OK;
}

/* --- training --------------------------------------------------------------------------- */

void rig_keep_id(json_t *made, char id[STORE_ID_BYTES])
{
	snprintf(id, STORE_ID_BYTES, "%s", json_string_value(json_object_get(made, "id")));
	json_decref(made);
}

void rig_add_text(rig *d, char id[STORE_ID_BYTES])
{
	char path[PATH_MAX], words[4000];
	store_file text = {.filename = "text", .purpose = "fine-tune"};
	for (size_t i = 0; i < sizeof words; i++)
		words[i] = (char)('a' + i * i % 23);
	store_temporary_path(d->engine.store, path);
	assert_int_equal(file_write(path, &(file_part){words, sizeof words}, 1, NULL), STATUS_OK);
	assert_int_equal(store_file_add(d->engine.store, &text, path, NULL), STATUS_OK);
	snprintf(id, STORE_ID_BYTES, "%s", text.id);
}

void rig_create_job(rig *d, const char *file, int steps, int every, char id[STORE_ID_BYTES])
{
	rig_keep_id(rig_ask(d, 0, "job.create",
	                    json_pack("{s:s, s:s, s:i, s:{s:{s:i, s:i, s:i, s:i}, s:i, s:i, s:i, s:i}}", "model",
	                              "additive", "training_file", file, "seed", 3, "additive", "config", "hidden_size",
	                              16, "n_heads", 2, "n_layer", 2, "n_positions", 32, "sequence_length", 32,
	                              "batch_size", 2, "max_steps", steps, "checkpoint_every", every)),
	            id);
}
