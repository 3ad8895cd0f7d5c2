/* generation_answer.h - a whole answer of generated text in OpenAI's forms, from the EVENTs and the RESULT of a
 * generation (PROTOCOL.md).
 *
 * The front end answers requests with it, and the engine the lines of a batch, so both have the same form. One thread
 * uses an answer. */
#ifndef PROTO_GENERATION_ANSWER_H
#define PROTO_GENERATION_ANSWER_H

#include "proto/answer_calls.h"

enum { GENERATION_ANSWER_ID_BYTES = 64, GENERATION_ANSWER_ITEM_BYTES = 96, GENERATION_ANSWER_FINGERPRINT_BYTES = 24, GENERATION_ANSWER_CHOICES = 4096 };

typedef enum generation_form { GENERATION_COMPLETION, GENERATION_CHAT, GENERATION_RESPONSE } generation_form;

/* One choice so far. */
typedef struct generation_text {
	grown_text text;
	answer_calls calls;
	json_t *logprobs, *alpha, *prompt_logprobs; /* arrays concatenated; NULL: none came */
} generation_text;

/* Zero-initialise, then generation_answer_begin; free with generation_answer_fini. */
typedef struct generation_answer {
	generation_form form;
	char id[GENERATION_ANSWER_ID_BYTES];
	char message[GENERATION_ANSWER_ID_BYTES]; /* id of a response's message */
	char fingerprint[GENERATION_ANSWER_FINGERPRINT_BYTES];
	json_int_t created;
	bool timings, prompt_logprobs; /* requested */
	json_t *model;                 /* a string; NULL while unknown */
	json_t *repeated;              /* members of the request that a response repeats */
	generation_text *choices;
	size_t n_choices;
} generation_answer;

/* Prefix of the ids of a form's answers. */
const char *generation_answer_prefix(generation_form form);
/* Write the fingerprint of an engine that greets with this HELLO. */
void generation_answer_fingerprint(char out[GENERATION_ANSWER_FINGERPRINT_BYTES], const char *hello, size_t bytes);

/* Read from the request's body what the answer depends on. The caller sets the ids, fingerprint and created.
 * False: out of memory. */
bool generation_answer_begin(generation_answer *a, generation_form form, const json_t *body);
void generation_answer_fini(generation_answer *a);

/* Take the model that an EVENT or the RESULT names, if it names one. */
void generation_answer_take_model(generation_answer *a, const json_t *from);

typedef enum generation_added { GENERATION_ADDED, GENERATION_NO_MEMORY, GENERATION_MALFORMED } generation_added;
/* Add an EVENT. */
generation_added generation_answer_add(generation_answer *a, const json_t *event);
/* Return the answer that the RESULT completes (new reference); result NULL: a completion or chat so far. NULL: out of
 * memory. */
json_t *generation_answer_whole(generation_answer *a, const json_t *result);

/* For streams: the members around the choices of a completion, chat completion or chunk. choices is taken over. */
json_t *generation_answer_envelope(const generation_answer *a, const char *object, json_t *choices);
/* A response, so far or after the RESULT. Its output has a message, unless the answer has calls only, and then the calls,
 * each an item. Returned values are new references; NULL: out of memory. */

/* Make a part of a message, and a message; text, logprobs and content are taken over. */
json_t *generation_answer_part(json_t *text, json_t *logprobs);
json_t *generation_answer_message(const generation_answer *a, const char *status, json_t *content);
/* The part with all of the text. */
json_t *generation_answer_text_part(const generation_answer *a);
/* Item i of the output, which it has, and its id. */
json_t *generation_answer_item(const generation_answer *a, size_t i, const char *status);
void generation_answer_item_id(const generation_answer *a, size_t i, char out[GENERATION_ANSWER_ITEM_BYTES]);
/* All items; status: of the last one. */
json_t *generation_answer_output(const generation_answer *a, const char *status);
/* The response with this output, which is taken over; NULL: none. result: NULL until the end. */
json_t *generation_answer_response(const generation_answer *a, const char *status, json_t *output,
                                   const json_t *result);
/* The event in the RESULT that ends the text (borrowed; NULL: none), and the response's status after it. */
const json_t *generation_answer_last(const json_t *result);
const char *generation_answer_status(const json_t *result);

#endif
