/* chat_template.h - conversations as text: what a model reads for messages of a system, a user and an assistant.
 *
 * A template is a form (chat_forms.h): what stands before and behind each message, before everything, and before the
 * answer. It comes from
 *   - "chat_template" in config.json, an object: the form itself (chat_template_declared),
 *   - the `chat_template` that Hugging Face's files of a tokenizer hold, a Jinja program. It is not executed: it is
 *     recognised when it does the same as one of the published programs that chat_forms.c lists (chat_program.h). Any
 *     other is STATUS_UNSUPPORTED, however similar,
 *   - or neither: "User: …", "Assistant: …".
 * Rendered text equals that of Hugging Face's `apply_chat_template` for all conversations that the program accepts;
 * those that it refuses, or of which it would drop a message, are STATUS_INVALID with the message's index.
 *
 * What belongs to the template is reported as ranges, so that only there names of special tokens become those tokens.
 * Immutable and thread-safe once made. */
#ifndef ENGINE_TEXT_CHAT_TEMPLATE_H
#define ENGINE_TEXT_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine/text/tokenizer.h"

enum { CHAT_TEMPLATE_STOPS = 4, CHAT_TEMPLATE_STOP_BYTES = 64 };

typedef struct chat_template chat_template;

/* From the files of a model's folder and its configuration. NULL members: there is none. Errors: as
 * chat_template_declared and chat_template_published. */
typedef struct chat_template_source {
	const json_t *declared;  /* an object */
	const char *program;     /* Jinja */
	const char *begin, *end; /* names of the tokens `bos_token` and `eos_token` */
} chat_template_source;
status chat_template_new(chat_template **out, const chat_template_source *from, error *err);
/* The same, of a model with this tokenizer and configuration (config.json). STATUS_INVALID also: a file of the
 * tokenizer is no JSON. */
status chat_template_open(chat_template **out, const tokenizer *files, const json_t *config, error *err);
void chat_template_free(chat_template *t);

/* "llama-2", "declared", "plain". */
const char *chat_template_name(const chat_template *t);
/* What ends an answer, beside the tokens that end a text: up to CHAT_TEMPLATE_STOPS texts of fewer than
 * CHAT_TEMPLATE_STOP_BYTES bytes, NULL after the last. */
const char *const *chat_template_stops(const chat_template *t);

typedef struct chat_text {
	char *text; /* NUL-terminated; may hold NULs of the messages */
	size_t bytes;
	byte_range *trusted; /* what is the template's, in order; the rest is the messages' */
	size_t n_trusted;
	/* continues: bytes at the beginning that repeat the stop that has ended the answer, if one has */
	size_t closing;
	size_t shared; /* bytes up to the end of the system's message, with which it begins; 0: there is none */
} chat_text;

/* messages: an array of {"role", "content"}, content a string or an array of {"type": "text", "text"}; "developer" is
 * "system". continues: the messages follow an answer that the model has given, and begin with a user's. answers: the
 * model's answer follows. STATUS_TOO_LARGE: the template adds more than 1 MiB and 16 bytes for each of the messages'.
 * STATUS_INVALID names "messages[i].…"; STATUS_NOMEM. On error *out is empty. */
status chat_template_render(const chat_template *t, const json_t *messages, bool continues, bool answers,
                            chat_text *out, error *err);
void chat_text_fini(chat_text *x);

#endif
