/* rig.h - the engine without its sockets, in this process.
 *
 * It has a store in a folder of its own, the device and its thread, and one small random model "m" of bytes. Clients'
 * requests go to the method table. Include after cmocka.h; failures fail the test. */
#ifndef TESTS_UNIT_SUPPORT_RIG_H
#define TESTS_UNIT_SUPPORT_RIG_H

#include "engine/daemon/compute/device.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/engine_parts.h"

enum { RIG_SNAPSHOTS = 4, RIG_SESSIONS = 3, RIG_GENERATIONS = 4, RIG_POSITIONS = 64 };

typedef struct rig {
	engine engine;
	engine_options options;
	char folder[64];
	struct rig_call *calls; /* not yet freed */
	task hold;
	uv_sem_t held;
	bool holds; /* `hold` blocks the executor */
} rig;

/* A request, from rig_begin to rig_call_free. */
typedef struct rig_call {
	stream_peer peer;
	rig *rig;
	struct rig_call *next;
	stream *stream; /* NULL after the answer */
	json_t *events; /* array, in order of arrival */
	json_t *answer; /* object of the RESULT or ERROR; NULL before */
	bool failed;    /* the answer was an ERROR */
	int answers;    /* RESULT and ERROR frames */
	int late;       /* frames received after an answer */
	char *data;     /* content of DATA frames */
	size_t bytes;
} rig_call;

/* cpu: opens the CPU backend; NULL: the engine's own. */
rig *rig_new(backend_opener cpu);
/* With n devices, which are opened in order. */
rig *rig_new_fleet(backend_opener cpu, int n);
void rig_free(rig *d);
/* Stop the engine and open the same folder again. */
void rig_reopen(rig *d, backend_opener cpu);

/* Begin a request; takes ownership of params. */
rig_call *rig_begin(rig *d, const char *method, json_t *params, int64_t credit);
/* Send `data` as the only part of an upload. */
void rig_send(rig_call *c, const char *part, const void *data, size_t bytes);
void rig_grant(rig_call *c, int64_t credit);
void rig_cancel(rig_call *c);
/* Turn the loop until the call is answered, at most 10 s. */
void rig_wait(rig_call *c);
/* Turn the loop until every executor is idle and nothing is in progress. */
void rig_settle(rig *d);
/* Block the executor of a device before its next task, until rig_release, which also settles. */
void rig_hold_device(rig *d, int at);
/* Block that of the first device. */
void rig_hold(rig *d);
void rig_release(rig *d);
void rig_call_free(rig_call *c);
/* Free the calls and the hold of a failed test, and let them end. */
void rig_drop_calls(rig *d);

/* Begin, wait and free; returns the RESULT (new reference). `http` is 0, or the expected status of the ERROR, whose
 * object is then returned. */
json_t *rig_ask(rig *d, int http, const char *method, json_t *params);
/* All text of the events of one choice; the caller frees it. */
char *rig_text(const rig_call *c, int index);

/* Set id to that of an object, which is freed. */
void rig_keep_id(json_t *made, char id[STORE_ID_BYTES]);
/* Add a file of 4,000 letters to train on. */
void rig_add_text(rig *d, char id[STORE_ID_BYTES]);
/* Create a job of a small model that trains on that file, with a checkpoint after every `every` steps. */
void rig_create_job(rig *d, const char *file, int steps, int every, char id[STORE_ID_BYTES]);

/* The CPU backend, as an argument of rig_new. A linear layer fails once after rig_fails has been set, and clears it. */
extern _Atomic bool rig_fails;
status rig_open_failing(backend **out, int threads, error *err);

#endif
