/* score_request.h - requests whose inputs are read whole, from the request to the answer.
 *
 *   loop:     open the model, read options (`begin`)
 *   pool:     tokenize the inputs (`encode`)
 *   executor: read them in slices, as a score task (serve/scheduler.h)
 *   pool:     convert the numbers to the answer (`answer`) */
#ifndef ENGINE_DAEMON_GENERATION_SCORE_REQUEST_H
#define ENGINE_DAEMON_GENERATION_SCORE_REQUEST_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/net/stream.h"

typedef struct score_request score_request;

/* Maximum tokens explained in one answer (each has about 80 bytes of JSON), and maximum numbers of all rows. */
enum { SCORE_REQUEST_EXPLAINED_TOKENS = 100000, SCORE_REQUEST_NUMBERS = 1 << 25 };

/* The functions that differ between methods. */
typedef struct score_request_kind {
	status (*begin)(score_request *x, error *err); /* check the model and read options. Loop thread */
	/* Fill sequences[i] and the other arrays that the method uses. Pool thread. */
	status (*encode)(score_request *x, int64_t i, const json_t *input, error *err);
	/* Return the answer (new reference). NULL without err: out of memory. Pool thread. */
	json_t *(*answer)(const score_request *x, error *err);
} score_request_kind;

struct score_request {
	const score_request_kind *kind;
	model_entry *model;
	const json_t *params; /* the stream's params */
	pooling embedding;    /* as in score_task_request; set by `begin` */
	int64_t width;
	bool explains;             /* set by `begin`: keep the log of each sequence */
	int64_t n;                 /* number of inputs */
	bool list;                 /* `input` is a list of them */
	score_sequence *sequences; /* [n]; freed with their ids, rows and logs */
	bool *truncated;           /* [n] */
	byte_range **places;       /* [n], freed too: for each row of a sequence, the byte range of its token in the
	                            * text */
	int64_t answer_bytes;      /* counted by `encode` */
	int64_t rows;              /* rows of all sequences */
	float *numbers;            /* [rows][width], finite */
};

/* Answer a request for `model` and `input`. Loop thread. */
void score_request_create(stream *s, const score_request_kind *kind);

/* For `encode`: read a text or, if second is not NULL, a pair of texts, as training does; cut to `length` tokens. */
status score_request_encode_sequence(const score_request *x, const json_t *text, const json_t *second, int64_t length,
                                     score_sequence *out, bool *truncated, error *err);
/* For `answer`: {"prompt_tokens","total_tokens"}. New reference; NULL when out of memory. */
json_t *score_request_usage(const score_request *x);

#endif
