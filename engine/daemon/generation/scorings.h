/* scorings.h - requests whose inputs are read whole: from the request over tokens and numbers to the answer.
 *
 *   loop:     the model is opened, options are read (`begin`)
 *   pool:     the inputs become tokens (`encode`)
 *   executor: a scoring reads them in slices (serve/scheduler.h)
 *   pool:     the numbers become the answer (`answer`)
 */
#ifndef ENGINE_DAEMON_GENERATION_SCORINGS_H
#define ENGINE_DAEMON_GENERATION_SCORINGS_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/net/stream.h"

typedef struct scorings scorings;

/* Tokens of all inputs that are explained in one answer: about 80 bytes of JSON for each; and numbers of all rows. */
enum { SCORINGS_EXPLAINED_TOKENS = 100000, SCORINGS_NUMBERS = 1 << 25 };

/* What the methods differ in. */
typedef struct scorings_kind {
	status (*begin)(scorings *x, error *err);
	/* Fill sequences[i], and of the other arrays what the method uses. */
	status (*encode)(scorings *x, int64_t i, const json_t *input, error *err);
	json_t *(*answer)(const scorings *x, error *err); /* NULL without err: out of memory */
} scorings_kind;

struct scorings {
	const scorings_kind *kind;
	model_entry *model;
	const json_t *params; /* the stream's */
	pooling embedding;    /* as of scoring_request; set by `begin` */
	int64_t width;
	bool explains;               /* `begin` wants the log of each sequence too */
	int64_t n;                   /* inputs, */
	bool list;                   /* which are the elements of `input` */
	scoring_sequence *sequences; /* [n]; their ids, rows and logs are freed with them */
	bool *truncated;             /* [n] */
	byte_range **places;         /* [n], freed too: of each row of a sequence, where in its text its token is */
	int64_t answer_bytes;        /* for `encode` to count */
	int64_t rows;                /* of all sequences together */
	float *numbers;              /* [rows][width], finite */
};

/* Answer a request for `model` and `input`. Loop thread. */
void scorings_create(stream *s, const scorings_kind *kind);

/* For `encode`: copy n tokens. STATUS_NOMEM. */
status scorings_copy(scoring_sequence *out, const int32_t *ids, int64_t n);
/* For `encode`: a text, or (second not NULL) a pair of texts, as training reads it, cut to `length` tokens. */
status scorings_encode_sequence(const scorings *x, const json_t *text, const json_t *second, int64_t length,
                                scoring_sequence *out, bool *truncated, error *err);
/* For `answer`: {"prompt_tokens","total_tokens"}. New reference; NULL when out of memory. */
json_t *scorings_usage(const scorings *x);

#endif
