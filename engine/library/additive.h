/* additive.h - the library libadditive: run, train and explain small language models in a C program.
 *
 *   additive_device *device;
 *   additive_model *model;
 *   additive_session *session;
 *   additive_error error;
 *   if (additive_device_open(&device, "cpu", 0, &error) != ADDITIVE_OK ||
 *       additive_model_open(&model, device, "folder", "fp32", 0, &error) != ADDITIVE_OK ||
 *       additive_session_open(&session, model, ADDITIVE_POSITIONS_ERROR, &error) != ADDITIVE_OK)
 *           fprintf(stderr, "%s: %s\n", error.field, error.message);
 *
 * Complete programs are generate.c, explain.c and train.c in clients/examples.
 *
 * Errors: a function that can fail returns an additive_code and fills *error, which may be NULL. ADDITIVE_OK is 0 and
 * leaves *error unchanged. Any function may return ADDITIVE_NOMEM, and one that computes ADDITIVE_DEVICE. Other codes
 * are listed with each function. After an error, outputs are NULL or 0, unless a function says otherwise.
 *
 * Ownership: handles and memory that a function returns through a pointer to a pointer belong to the caller, who frees
 * them with the function named there. Strings and arrays that the caller passes are only read during the call. A model
 * belongs to its device, and sessions and texts to their model: close sessions and texts, then the model, then the
 * device.
 *
 * Threads: a device, its models and their sessions may be used by one thread at a time. Different devices are
 * independent. Functions that do not follow this rule say so. A device has threads of its own, which OpenMP creates;
 * do not fork() a process that has opened a device. Threads that wait for work spin first: on a busy machine set
 * OMP_WAIT_POLICY=passive before the program starts.
 *
 * Units: texts are UTF-8, with their size in bytes and no final NUL. Tokens are numbers from 0. Positions and counts
 * are tokens. Scores and logits are natural logarithms (nats) up to a constant.
 *
 * A result does not depend on the number of threads, and it has the same bits as that of the HTTP service with the same
 * model, weights and device. Warnings are written to standard error. */
#ifndef ADDITIVE_H
#define ADDITIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- errors -------------------------------------------------------------------------- */

typedef enum additive_code {
	ADDITIVE_OK,
	ADDITIVE_INVALID,     /* an argument or a file is wrong; `field` names it */
	ADDITIVE_UNSUPPORTED, /* the model or the device cannot do this */
	ADDITIVE_NOT_FOUND,   /* there is no such file or folder */
	ADDITIVE_CONFLICT,    /* not in this state: a session or model is still open, or no token has been read */
	ADDITIVE_TOO_LARGE,   /* over a size limit */
	ADDITIVE_BUSY,        /* all sessions of the model are open */
	ADDITIVE_CANCELLED,   /* a callback stopped the work */
	ADDITIVE_NOMEM,       /* out of memory; nothing has changed */
	ADDITIVE_UNAVAILABLE, /* the library cannot use this device */
	ADDITIVE_CORRUPT,     /* a saved session is damaged */
	ADDITIVE_IO,          /* reading or writing a file failed */
	ADDITIVE_DEVICE,      /* the device failed; a session that returns this again is lost. If every call returns it,
	                       * close the device */
	ADDITIVE_INTERNAL,    /* a defect of the library */
	ADDITIVE_STORAGE,     /* a file differs from what its folder's manifest records */
	ADDITIVE_FULL         /* no space is left on the disk */
} additive_code;

typedef struct additive_error {
	additive_code code;
	char field[128];   /* the argument, the key or the tensor to blame; "" if none is */
	char message[384]; /* one sentence in English, without a final period */
} additive_error;

/* Return the library's version, "0.1.0". Any thread. */
const char *additive_version(void);
/* Free memory from additive_tokenize or additive_session_save. NULL is legal. Any thread. */
void additive_free(void *memory);

/* --- devices ------------------------------------------------------------------------- */

typedef struct additive_device additive_device;

/* Open a device: "cpu", or "auto" for the best that this build of the library can use, which is "cpu" too. `threads` is
 * the number of threads, 0 for one on each core. Close with additive_device_close. Any thread.
 *
 * ADDITIVE_UNAVAILABLE "device": "cuda", which only the service can use. ADDITIVE_INVALID "device": another name.
 * ADDITIVE_INVALID "threads": out of range. */
additive_code additive_device_open(additive_device **device, const char *name, int threads, additive_error *error);
/* Return a description such as "AMD EPYC …, 2 threads, avx512"; valid until the device is closed. Any thread. */
const char *additive_device_description(const additive_device *device);
/* Close a device; NULL is legal. ADDITIVE_CONFLICT: a model is open; the device stays open. */
additive_code additive_device_close(additive_device *device, additive_error *error);

/* --- models -------------------------------------------------------------------------- */

typedef struct additive_model additive_model;

/* Open a model folder: config.json, model.safetensors and the tokenizer's files. `weights` is the type in which
 * matrices are kept: "fp32", "bf16" or "int8". `sessions` limits the sessions that are open at once; 0 for 16. A
 * session costs memory only once it is open. Close with additive_model_close.
 *
 * ADDITIVE_INVALID "weights" or "sessions": out of range. ADDITIVE_NOT_FOUND "folder": no folder that can be read.
 * ADDITIVE_INVALID, ADDITIVE_UNSUPPORTED, ADDITIVE_NOT_FOUND, ADDITIVE_TOO_LARGE or ADDITIVE_IO: a file is wrong or
 * missing; `field` names a key or a tensor, or is "folder". ADDITIVE_STORAGE: a file is damaged. */
additive_code additive_model_open(additive_model **model, additive_device *device, const char *folder,
                                  const char *weights, int sessions, additive_error *error);
/* Close a model; NULL is legal. ADDITIVE_CONFLICT: a session is open; the model stays open. */
additive_code additive_model_close(additive_model *model, additive_error *error);

typedef struct additive_facts {
	const char *architecture; /* "additive", "gpt2", …; never freed */
	int64_t vocabulary;       /* tokens that the model reads are 0 … vocabulary - 1 */
	int64_t outputs;          /* logits of a prediction: tokens, or the classes of a classifier */
	int64_t positions;        /* maximum tokens of a sequence; 2^31 - 1: no limit */
	int64_t parameters;       /* number of weights */
	int64_t layers, heads;
	int64_t state_bytes; /* memory of a session's state; constant, or that of all positions */
	int sessions;        /* 1: reads token by token, so that it has sessions */
	int classifier;      /* 1: a prediction is a class of the whole text */
} additive_facts;

/* Fill *facts. Any thread. */
void additive_model_facts(const additive_model *model, additive_facts *facts);

/* --- text ---------------------------------------------------------------------------- */

/* Turn a text into tokens. The token that begins a text, if the tokenizer has one, comes first; 1 as `continues`: it is
 * left out, because the text follows what a session has read. Names of special tokens in the text are plain text.
 * *tokens is freed with additive_free. Any thread, also while another uses the model. ADDITIVE_INVALID,
 * ADDITIVE_TOO_LARGE. */
additive_code additive_tokenize(const additive_model *model, const char *text, size_t bytes, int continues,
                                int32_t **tokens, size_t *count, additive_error *error);
/* Return 1 if the token ends a text, otherwise 0. Any thread. */
int additive_token_ends(const additive_model *model, int32_t token);

/* A text that grows by tokens. A character may be split among tokens: it is returned with its last one. */
typedef struct additive_text additive_text;

/* Begin a text; 1 as `continues`: the tokens follow others, so that the space before the first word is kept. Free with
 * additive_text_close. */
additive_code additive_text_open(additive_text **text, const additive_model *model, int continues,
                                 additive_error *error);
/* Append a token and return the characters that it completes, whose number of bytes is *bytes and may be 0. They end
 * with a NUL and are valid until the next call. An invalid byte becomes U+FFFD. Token -1 ends the text: a character
 * that is incomplete becomes U+FFFD. Tokens outside the vocabulary have no text. One thread for each text. */
const char *additive_text_append(additive_text *text, int32_t token, size_t *bytes);
/* Free the text. NULL is legal. */
void additive_text_close(additive_text *text);

/* --- sessions ------------------------------------------------------------------------ */

/* One sequence of tokens and the model's state after the last of them. */
typedef struct additive_session additive_session;

/* The row of the position table for tokens beyond additive_facts.positions. */
typedef enum additive_positions {
	ADDITIVE_POSITIONS_ERROR, /* none: they are refused */
	ADDITIVE_POSITIONS_CLAMP, /* the last row */
	ADDITIVE_POSITIONS_WRAP   /* the first row follows the last */
} additive_positions;

/* Open an empty session. Free with additive_session_close. ADDITIVE_UNSUPPORTED "model": the model does not read token
 * by token, or it reads a source beside its tokens (an encoder-decoder). ADDITIVE_INVALID "positions". ADDITIVE_BUSY:
 * all sessions are open. */
additive_code additive_session_open(additive_session **session, additive_model *model, additive_positions positions,
                                    additive_error *error);
/* Free the session. NULL is legal. */
void additive_session_close(additive_session *session);

/* Read tokens, many at a time. After an error the session has read none of them, or only the first of them.
 * ADDITIVE_INVALID "prompt": none, one outside the vocabulary, or more than the positions left. */
additive_code additive_session_read(additive_session *session, const int32_t *tokens, size_t count,
                                    additive_error *error);
/* Read one token, in the fastest way for one. ADDITIVE_INVALID "token": as above. */
additive_code additive_session_step(additive_session *session, int32_t token, additive_error *error);
/* Set *tokens to all tokens read and return their number. Valid until the session changes. */
size_t additive_session_tokens(const additive_session *session, const int32_t **tokens);
/* Set *logits to the outputs after the last token, [facts.outputs]. Valid until the session changes.
 * ADDITIVE_CONFLICT: no token has been read. */
additive_code additive_session_logits(additive_session *session, const float **logits, additive_error *error);

/* Settings for choosing a token; ranges as in the HTTP API. Initialise with additive_sampling_default. */
typedef struct additive_sampling {
	float temperature;                         /* 0 … 2; 0: the largest logit */
	float top_p;                               /* over 0 … 1; 1: off */
	int32_t top_k;                             /* 0: off */
	float min_p;                               /* 0 … 1; 0: off */
	float top_a, top_a_power;                  /* 0: off; the power's default is 2 */
	float repetition_penalty;                  /* over 0 … 10; 1: off */
	float presence_penalty, frequency_penalty; /* -2 … 2; 0: off */
	uint64_t seed;                             /* equal seeds, settings and tokens choose the same token */
} additive_sampling;

/* Set temperature 1, seed 0 and everything else off. Any thread. */
void additive_sampling_default(additive_sampling *sampling);
/* Choose the next token. It is not read: pass it to additive_session_step. Time grows with the number of tokens read
 * only if a penalty is set. ADDITIVE_INVALID names a setting that is out of range, or "model" if no logit is finite.
 * ADDITIVE_CONFLICT: no token has been read. */
additive_code additive_session_sample(additive_session *session, const additive_sampling *sampling, int32_t *token,
                                      additive_error *error);

/* Open a copy; both continue independently. Free with additive_session_close. ADDITIVE_BUSY. */
additive_code additive_session_fork(additive_session *session, additive_session **copy, additive_error *error);
/* Save the session as bytes: *data is freed with additive_free. The HTTP service imports the same bytes. */
additive_code additive_session_save(additive_session *session, void **data, size_t *bytes, additive_error *error);
/* Open a saved session, which continues bit for bit. Untrusted bytes are safe to load. Errors name the field "state".
 * ADDITIVE_INVALID: saved by another model, that is, other weights or another type of weights. ADDITIVE_CORRUPT:
 * damaged. ADDITIVE_UNSUPPORTED: of another version, or the model has no sessions. ADDITIVE_BUSY. */
additive_code additive_session_load(additive_session **session, additive_model *model, const void *data, size_t bytes,
                                    additive_error *error);

/* --- explanations -------------------------------------------------------------------- */

typedef enum additive_method {
	ADDITIVE_CONTRIBUTIONS, /* exact signed parts of the score; about two forward passes */
	ADDITIVE_GRADIENT,      /* gradient times input */
	ADDITIVE_INTEGRATED,    /* integrated gradients, 64 steps */
	ADDITIVE_LEAVE_ONE_OUT  /* the score minus the score without the token; one pass for each token */
} additive_method;

typedef enum additive_score {
	ADDITIVE_SCORE_USUAL,     /* CONTRAST, or DIFFERENCE if the probability is 0.9 or more */
	ADDITIVE_SCORE_CONTRAST,  /* the logit minus the mean logit, weighted by probability */
	ADDITIVE_SCORE_LOGIT,     /* the logit */
	ADDITIVE_SCORE_DIFFERENCE /* the logit minus that of `other` */
} additive_score;

/* The prediction to explain. The caller sets the first four members; additive_explain replaces USUAL, -1 as
 * `output` and, for DIFFERENCE, -1 as `other` by its choices. It sets the remaining members. */
typedef struct additive_explanation {
	additive_method method;
	additive_score kind;
	int32_t output;                /* token or class; -1: the one with the largest logit */
	int32_t other;                 /* for DIFFERENCE; -1: the strongest rival */
	double score;                  /* the score to explain, as `kind` defines it */
	double logit, log_probability; /* those of `output` */
	double head;                   /* CONTRIBUTIONS: the part of the score that belongs to no token */
} additive_explanation;

/* Explain the prediction after `count` tokens: of the next token, or of a classifier's class. parts[count] receives the
 * part of each token. For CONTRIBUTIONS, others[count] receives the part of each position's embedding and biases; it
 * may be NULL. The sum of parts, others and head is the score, up to rounding. For other methods `others` becomes 0.
 *
 * ADDITIVE_INVALID "input": no tokens, or one outside the vocabulary. ADDITIVE_INVALID "target": no such output.
 * ADDITIVE_INVALID "method" or "kind": out of range. ADDITIVE_TOO_LARGE "input": too many tokens.
 * ADDITIVE_UNSUPPORTED "model": it reads a source, or fills in masks. */
additive_code additive_explain(additive_model *model, const int32_t *tokens, size_t count,
                               additive_explanation *explanation, float *parts, float *others, additive_error *error);
/* Compute the attention weights with which the last of `count` tokens reads each of them, averaged over the heads,
 * layers and rounds of attention. -1 as `layer` or `head`: all. weights[count] sum to 1. 1 as `rollout`: layers are
 * multiplied through instead (Abnar and Zuidema 2020).
 *
 * ADDITIVE_INVALID "input", "layer" or "head". ADDITIVE_UNSUPPORTED "explain": the architecture has no weights.
 * ADDITIVE_UNSUPPORTED "model": as for additive_explain, or it is a classifier. ADDITIVE_TOO_LARGE: too many tokens. */
additive_code additive_explain_weights(additive_model *model, const int32_t *tokens, size_t count, int64_t layer,
                                       int64_t head, int rollout, float *weights, additive_error *error);

/* --- training ------------------------------------------------------------------------ */

typedef struct additive_progress {
	int64_t step, total_steps;
	int64_t tokens;                /* trained so far */
	double train_loss, valid_loss; /* nats for each label; NaN before the first */
	double learning_rate, tokens_per_second;
	int evaluated; /* 1: valid_loss is new */
} additive_progress;

/* Return 0 to continue; anything else stops the training. `context` is that of additive_train. The progress is valid
 * during the call. The function must not use the device. */
typedef int (*additive_progress_function)(void *context, const additive_progress *progress);

/* Train a model on a text and write it to the folder FOLDER/model, which additive_model_open opens. `recipe` is JSON,
 * the body of POST /v1/fine_tuning/jobs. Its "model" is an architecture or the path of a model folder. Its "additive"
 * holds the training options and the new model's configuration. For example:
 * {"model": "additive", "seed": 1, "additive": {"max_steps": 100, "sequence_length": 64}}. `text` is the path of the
 * training file: plain text or JSON lines; NULL: the recipe's "training_file". Files in the recipe are paths.
 *
 * `progress` may be NULL; it is called after every step and evaluation, on the calling thread. If it stops the
 * training, the last step is saved in FOLDER, and the same call continues there. A run with a seed has the same bits as
 * a job of the service.
 *
 * ADDITIVE_INVALID, ADDITIVE_UNSUPPORTED or ADDITIVE_NOT_FOUND name the recipe's field, such as "additive.batch_size".
 * ADDITIVE_INVALID "recipe": not a JSON object. ADDITIVE_UNSUPPORTED "additive.tokenizer.type": a tokenizer that must
 * be trained; name a tokenizer file. ADDITIVE_CANCELLED: stopped by `progress`. ADDITIVE_CONFLICT: FOLDER has a run of
 * another recipe. ADDITIVE_IO or ADDITIVE_FULL: writing failed. */
additive_code additive_train(additive_device *device, const char *recipe, const char *text, const char *folder,
                             additive_progress_function progress, void *context, additive_error *error);

#ifdef __cplusplus
}
#endif
#endif
