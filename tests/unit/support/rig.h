/* rig.h - the engine without its sockets, in this process: a store in a folder of its own, the device and its
 * thread, one small random model "m" of bytes, and clients whose requests go to the table of methods. Include after
 * cmocka.h; failures fail the test. */
#ifndef TESTS_UNIT_SUPPORT_RIG_H
#define TESTS_UNIT_SUPPORT_RIG_H

#include "engine/daemon/compute/device.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

enum { RIG_SESSIONS = 3, RIG_GENERATIONS = 4, RIG_POSITIONS = 64 };

typedef struct rig {
	engine engine;
	engine_options options;
	char folder[64];
	struct rig_call *calls; /* not yet freed */
	task hold;
	uv_sem_t held;
	bool holds; /* the executor, by `hold` */
} rig;

/* A request, from its begin to rig_call_free. */
typedef struct rig_call {
	stream_peer peer;
	rig *rig;
	struct rig_call *next;
	stream *stream; /* NULL: answered */
	json_t *events; /* array, in the order they came */
	json_t *answer; /* of RESULT or ERROR; NULL before */
	bool failed;    /* it was ERROR */
	int answers;    /* frames of these kinds */
	int late;       /* frames after one of them */
	char *data;     /* of DATA frames */
	size_t bytes;
} rig_call;

/* cpu: opens the CPU backend; NULL: the engine's own. */
rig *rig_new(backend_opener cpu);
void rig_free(rig *d);
/* Stop as the engine does and open the same folder again. */
void rig_reopen(rig *d, backend_opener cpu);

/* Begin a request; params are taken over. */
rig_call *rig_begin(rig *d, const char *method, json_t *params, int64_t credit);
/* The whole of `data` as the only part of an upload. */
void rig_send(rig_call *c, const char *part, const void *data, size_t bytes);
void rig_grant(rig_call *c, int64_t credit);
void rig_cancel(rig_call *c);
/* Turn the loop until it is answered; within 10 s. */
void rig_wait(rig_call *c);
/* Turn the loop until the executor has nothing to do and nothing is under way. */
void rig_settle(rig *d);
/* Keep the executor from its next task on, until rig_release, which settles. */
void rig_hold(rig *d);
void rig_release(rig *d);
void rig_call_free(rig_call *c);
/* Free what a test that has failed has left, the hold too, and let it end. */
void rig_drop_calls(rig *d);

/* Begin, wait and free: the RESULT (new reference). The status must be 0, or that of the ERROR, whose object it is
 * then. */
json_t *rig_ask(rig *d, int http, const char *method, json_t *params);
/* All text of the events of one choice; free it. */
char *rig_text(const rig_call *c, int index);

#endif
