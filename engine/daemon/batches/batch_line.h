/* batch_line.h - one line of a batch: its request to the engine, and its line in the output or error file.
 *
 * The engine answers as it answers the front end, and generated text gets the form that the front end gives it
 * (proto/generation_answer.h). So `body` equals the answer over HTTP to the same body, except for ids and times.
 *
 * Nothing in a result depends on when the line ran. Ids follow from the batch and the line number. `created` is the
 * batch's. A line without a seed gets one of its own. A generation neither uses nor keeps states of other prompts
 * unless its body says `cache_prompt`. So a line that runs again after a kill gives the same bytes, except for
 * `timings` and, with `cache_prompt`, the count of cached tokens. Loop thread, except where stated. */
#ifndef ENGINE_DAEMON_BATCHES_BATCH_LINE_H
#define ENGINE_DAEMON_BATCHES_BATCH_LINE_H

#include "engine/daemon/batches/batch_input.h"
#include "engine/daemon/net/local_request.h"

/* Bytes of an answer's frames; a line with more gets an error. */
enum { BATCH_MAX_ANSWER = 8 << 20 };

/* Data that all lines of a run share. */
typedef struct batch_context {
	net *net;
	const batch_endpoint *endpoint;
	const char *id;  /* the batch's id */
	const char *key; /* id of the API key that created it, or STREAM_KEY_OF_FILE */
	int64_t created;
	const char *fingerprint;
} batch_context;

typedef enum batch_line_state { BATCH_LINE_WAITING, BATCH_LINE_RUNNING, BATCH_LINE_DONE } batch_line_state;

typedef struct batch_line {
	const batch_context *batch;
	int32_t number;
	bool large; /* stream.large */
	batch_request request;
	batch_line_state state;
	/* A finished line's text, with its newline. NULL: the machine has failed, `failure` says how, and the line may
	 * begin again. */
	char *text;
	bool failed; /* the text belongs into the error file */
	status failure;
	int retry_after; /* seconds, with STATUS_BUSY; 0: not known */
	char reason[256];
	void (*done)(struct batch_line *line); /* called by batch_line_begin or later */
	void *owner;
	/* Private. */
	local_request *call;
	generation_answer answer;
	char *data; /* an answer in pieces */
	size_t bytes, room; /* received; allocated */
	bool lost; /* a part of the answer is missing */
	bool too_large;
} batch_line;

/* Start the request, for the first time or after a failure. `done` follows. */
void batch_line_begin(batch_line *line);
/* Finish a line that does not run, with this error. Any thread. */
void batch_line_settle(batch_line *line, const char *code, const char *message);
/* End its request; `done` follows, with a failure. */
void batch_line_cancel(batch_line *line);
void batch_line_fini(batch_line *line);

#endif
