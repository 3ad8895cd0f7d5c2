/* handles.h - the objects that additive.h declares, and the way from a status to a caller's error. */
#ifndef ENGINE_LIBRARY_HANDLES_H
#define ENGINE_LIBRARY_HANDLES_H

#include "engine/library/additive.h"
#include "engine/serve/scheduler.h"

struct additive_device {
	backend *backend;
	int models; /* open */
};

/* Each model has a scheduler of its own, which runs until it is idle within each call. */
struct additive_model {
	additive_device *device;
	scheduler *scheduler;
	served_model *served;
	int sessions;       /* open */
	unsigned long next; /* number of the next session */
};

struct additive_session {
	additive_model *model;
	session *session;
	int32_t *tokens; /* [capacity] a contiguous copy of the tokens read, for additive_session_tokens */
	size_t count, capacity;
};

/* Convert s to a code, and fill *out (NULL is legal) from err unless s is STATUS_OK. */
additive_code handles_report(additive_error *out, status s, const error *err);
/* Run the scheduler until it has no work. STATUS_DEVICE: the device failed. */
status handles_run(additive_model *m, error *err);
/* Check tokens of an input. STATUS_INVALID `field`: none, or one that the model does not know. */
status handles_check_tokens(const additive_model *m, const int32_t *tokens, size_t count, const char *field,
                            error *err);
/* STATUS_UNSUPPORTED "model": the model reads a source beside its tokens. */
status handles_refuse_source(const additive_model *m, error *err);

#endif
