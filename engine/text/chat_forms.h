/* chat_forms.h - forms of conversations, and the published templates that have them (internal).
 *
 * In a form's texts, CHAT_BEGIN is the name of the token that begins a text, and CHAT_END that of the token that ends
 * it. */
#ifndef ENGINE_TEXT_CHAT_FORMS_H
#define ENGINE_TEXT_CHAT_FORMS_H

#include "engine/text/chat_template.h"

#define CHAT_BEGIN "\x01"
#define CHAT_END "\x02"

typedef enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES, CHAT_TOOL = CHAT_ROLES } chat_role;

typedef enum chat_rule {
	CHAT_TRIMS = 1,          /* white space around a message is dropped */
	CHAT_ALTERNATES = 2,     /* user and assistant alternate, the user first; a system message only before them */
	CHAT_NO_SYSTEM = 4,      /* system messages are not allowed */
	CHAT_FOLDS = 8,          /* a system message is placed within the first user's, before its text */
	CHAT_SKIPS = 16,         /* an empty system message is left out */
	CHAT_THINKS = 32,        /* answers begin with their reasoning (chat_thinking.h) */
	CHAT_TRIMS_ANSWERS = 64, /* white space around an answer is dropped */
	CHAT_FOLDS_LAST = 128,   /* as CHAT_FOLDS, but within the last message, which is the user's */
} chat_rule;

typedef struct chat_turn {
	const char *prefix, *suffix;
} chat_turn;

/* Functions, their calls and results. A call is {"name": NAME, KEY: ARGUMENTS} between the texts of `call`. */
typedef struct chat_tools {
	const char *preamble;  /* begins the system's message */
	const char *gap;       /* before the list, after text of the system */
	chat_turn list;        /* around all functions */
	chat_turn tool;        /* around each */
	const char *separator; /* between two */
	int indent;            /* spaces for each level of that JSON; 0: one line */
	enum {
		CHAT_TOOL_JSON,
		CHAT_TOOL_MEMBERS,  /* the members of "function", whose texts are not escaped */
		CHAT_TOOL_SIGNATURE /* chat_signature.h */
	} form;                     /* form of each function in the list */
	bool before_all;            /* the list is a message of its own, before all others */
	bool with_user;             /* the list begins the first message of the user; otherwise it ends the system's */
	bool before_user;           /* the list precedes the last message of the user, and each equal one */
	bool alone;                 /* an answer is a text or calls; so it is if `single` */
	chat_turn calls;     /* around all calls of an answer, which are one JSON array; prefix NULL: they are not */
	chat_turn call;      /* prefix NULL: an answer that begins with the JSON of a call is one */
	const char *key;     /* "arguments" */
	const char *id;      /* after the arguments, before the id of the call; NULL: calls have no id */
	const char *between; /* before a call, after text or another call */
	bool single;         /* an answer is a text or one call */
	chat_turn results;   /* around successive results */
	chat_turn result;
	const char *after_result; /* after each but the last message of a conversation */
	const char *result_id;    /* after the text of a result, before the id of its call; NULL: without */
	bool json_results;        /* a result is a JSON string */
	const char *stop;         /* ends an answer, in addition to the form's stops */
} chat_tools;

/* A NULL text is empty. */
typedef struct chat_form {
	const char *name;
	const char *begin;          /* before everything */
	const char *preamble;       /* begins the first system message */
	const char *default_system; /* text of a system message, inserted if the first message is not one; NULL: none */
	chat_turn turns[CHAT_ROLES];
	const char *answer;     /* before the model's answer */
	const char *unanswered; /* replaces `answer` if none follows */
	const char *stops[CHAT_TEMPLATE_STOPS + 1];
	unsigned rules;
	const chat_tools *tools; /* NULL: the form has none */
} chat_form;

extern const chat_form chat_forms_plain;
/* The form of a published template; *out is NULL if it is unknown. functions: for conversations with functions alone.
 * STATUS_NOMEM. */
status chat_forms_find(const char *program, bool functions, const chat_form **out);

#endif
