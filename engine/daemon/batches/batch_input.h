/* batch_input.h - the input file of a batch: JSON lines {"custom_id","method","url","body"}.
 *
 * A run first reads the whole file once: it checks its digest and the limits, finds the lines, and finds the ids that
 * occur twice. It then reads a few lines at a time. Line numbers count from 1 and include blank lines, which are
 * skipped. No state; any thread. */
#ifndef ENGINE_DAEMON_BATCHES_BATCH_INPUT_H
#define ENGINE_DAEMON_BATCHES_BATCH_INPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "proto/generation_answer.h"

enum {
	BATCH_MAX_LINES = 50000,
	BATCH_MAX_BYTES = 200 << 20, /* limit of a file */
	BATCH_MAX_LINE = 8 << 20,    /* bytes of a line; a longer one is an error line */
	BATCH_MAX_ID = 512,          /* bytes of a custom_id */
	BATCH_MAX_PROBLEMS = 10      /* listed of a file without any request */
};

/* A line whose answer does not come from a generation. */
enum { BATCH_NO_GENERATION = -1 };

typedef struct batch_endpoint {
	const char *url, *method; /* HTTP path; the engine's method */
	int form;                 /* generation_form, or BATCH_NO_GENERATION */
} batch_endpoint;

/* NULL: not an endpoint of batches. */
const batch_endpoint *batch_endpoint_find(const char *url);

typedef struct batch_place {
	int64_t offset;
	int32_t bytes;
	int32_t number; /* line number */
	bool duplicate; /* an earlier line has its custom_id */
} batch_place;

typedef struct batch_index {
	batch_place *lines; /* not blank */
	int n;
	json_t *problems; /* reasons why the file is no batch: [{"code","message","param","line"}]; NULL: none */
} batch_index;

/* Read the file once. digest: the expected one; "": unknown. STATUS_STORAGE: the file is damaged. Zero-initialise
 * *out; free it with batch_index_fini, also after an error. */
status batch_index_read(batch_index *out, const char *path, const char *digest, error *err);
void batch_index_fini(batch_index *x);

/* A line, read. */
typedef struct batch_request {
	json_t *custom_id; /* a string, or null if the line has none */
	json_t *body;      /* NULL: the line is wrong */
	const char *code;  /* stable word for what is wrong */
	char message[256];
} batch_request;

/* Read a line for the endpoint; the text may be changed. STATUS_NOMEM. */
status batch_request_read(batch_request *out, const batch_endpoint *e, const batch_place *line, char *text);
void batch_request_fini(batch_request *x);

#endif
