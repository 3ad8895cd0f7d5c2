/* chat_template.h - conversations as text: the model's input for messages of a system, a user and an assistant.
 *
 * A template is a form (chat_forms.h): the texts before and after each message, before everything, and before the
 * answer. It comes from one of these:
 *
 * - "chat_template" in config.json, an object: the form itself.
 * - The `chat_template` in Hugging Face's files of a tokenizer, a Jinja program. It is not executed: it is recognised
 *   if it does the same as one of the published programs that chat_forms.c lists (chat_program.h). Any other is
 *   STATUS_UNSUPPORTED, however similar.
 *   A second program called "tool_use" renders the conversations with functions; without a form for it they are
 * refused.
 * - Neither: "User: …", "Assistant: …".
 *
 * Rendered text equals that of Hugging Face's own renderer for all conversations that the program accepts. Where a
 * program asks for the date, the text has the one that the program falls back on: it is the same every day.
 * Conversations that it refuses, or of which it would drop a message, are STATUS_INVALID with the message's index.
 *
 * The template's own parts are reported as ranges, so that names of special tokens become tokens only there. Immutable
 * and thread-safe once made. */
#ifndef ENGINE_TEXT_CHAT_TEMPLATE_H
#define ENGINE_TEXT_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine/text/tokenizer.h"

enum { CHAT_TEMPLATE_STOPS = 4, CHAT_TEMPLATE_STOP_BYTES = 64, CHAT_SHORT_ID = 9 };

typedef struct chat_template chat_template;

/* Parts of a model's folder and its configuration that define a template. NULL members are absent. */
typedef struct chat_template_source {
	const json_t *declared;   /* an object */
	const char *program;      /* Jinja */
	const char *tool_program; /* for conversations with functions; NULL: `program` */
	const char *begin, *end;  /* names of the tokens `bos_token` and `eos_token` */
} chat_template_source;
status chat_template_new(chat_template **out, const chat_template_source *from, error *err);
/* The template of a model with this tokenizer and configuration (config.json). STATUS_INVALID also if a file of the
 * tokenizer is not JSON. */
status chat_template_open(chat_template **out, const tokenizer *files, const json_t *config, error *err);
void chat_template_free(chat_template *t);

/* "llama-2", "declared", "plain". */
const char *chat_template_name(const chat_template *t);
/* Texts that end an answer, in addition to the tokens that end a text: up to CHAT_TEMPLATE_STOPS texts of fewer than
 * CHAT_TEMPLATE_STOP_BYTES bytes, NULL after the last. */
const char *const *chat_template_stops(const chat_template *t);

/* The calls of functions in an answer: `open` {"name": NAME, KEY: ARGUMENTS} `close`. */
typedef struct chat_call_form {
	const char *lead;         /* before a call that begins an answer */
	const char *open, *close; /* open "": only an answer that begins with a call has one */
	const char *key;
	const char *between; /* between calls */
	const char *stop;    /* ends an answer; "": none */
	bool single;         /* an answer has one call at most */
	bool first;          /* calls begin an answer, or it has none */
	/* The calls are one array between `open` and `end`, which is the whole answer. Otherwise `open` precedes each.
	 */
	bool array;
	const char *end;
	bool short_ids; /* ids of calls have CHAT_SHORT_ID characters */
} chat_call_form;
/* Check functions as chat_template_render does, with the same errors. */
status chat_template_check_tools(const chat_template *t, const json_t *tools, error *err);
/* False: the template has no form for functions. */
bool chat_template_calls(const chat_template *t, chat_call_form *out);

typedef struct chat_text {
	char *text; /* NUL-terminated; may contain NULs of the messages */
	size_t bytes;
	byte_range *trusted; /* the template's parts, in order; the rest are the messages' */
	size_t n_trusted;
	/* continues: bytes at the beginning that repeat the stop text that ended the answer, if any */
	size_t closing;
	size_t shared;       /* bytes up to the end of the system message at the beginning; 0: there is none */
	byte_range *answers; /* for each message, if it is the assistant's: what the model writes after a prompt */
} chat_text;

/* messages: an array of {"role", "content"}, content a string or an array of {"type": "text", "text"}; "developer" is
 * "system". An assistant's message may have "tool_calls", which messages of the role "tool" must follow, one for each
 * call. tools: functions to be listed, as OpenAI's chat completions have them, or NULL. continues: the messages follow
 * an answer of the model, and begin with a user's or with results; tools are checked and not listed again. answers: the
 * model's answer follows. STATUS_TOO_LARGE: the template adds more than 1 MiB and 16 bytes for each of the messages'
 * bytes. STATUS_INVALID names "messages[i].…" or "tools…"; STATUS_NOMEM. On error *out is empty. */
status chat_template_render(const chat_template *t, const json_t *messages, const json_t *tools, bool continues,
                            bool answers, chat_text *out, error *err);
void chat_text_fini(chat_text *x);

#endif
