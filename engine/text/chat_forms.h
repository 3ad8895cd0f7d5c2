/* chat_forms.h - forms of conversations, and the published templates that have them (internal).
 *
 * In a form's texts, CHAT_BEGIN is the name of the token that begins a text, and CHAT_END that of the token that ends
 * it. */
#ifndef ENGINE_TEXT_CHAT_FORMS_H
#define ENGINE_TEXT_CHAT_FORMS_H

#include "engine/text/chat_template.h"

#define CHAT_BEGIN "\x01"
#define CHAT_END "\x02"

typedef enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES } chat_role;

typedef enum chat_rule {
	CHAT_TRIMS = 1,      /* white space around a message is dropped */
	CHAT_ALTERNATES = 2, /* user and assistant alternate, the user first; a system message only before them */
	CHAT_NO_SYSTEM = 4,  /* system messages are not allowed */
	CHAT_FOLDS = 8,      /* a system message is placed within the first user's, before its text */
	CHAT_SKIPS = 16,     /* an empty system message is left out */
} chat_rule;

typedef struct chat_turn {
	const char *prefix, *suffix;
} chat_turn;

/* A NULL text is empty. */
typedef struct chat_form {
	const char *name;
	const char *begin;          /* before everything */
	const char *default_system; /* inserted if the first message is not a system message */
	chat_turn turns[CHAT_ROLES];
	const char *answer;     /* before the model's answer */
	const char *unanswered; /* replaces `answer` if none follows */
	const char *stops[CHAT_TEMPLATE_STOPS + 1];
	unsigned rules;
} chat_form;

extern const chat_form chat_forms_plain;
/* The form of a published template; *out is NULL if it is unknown. STATUS_NOMEM. */
status chat_forms_find(const char *program, const chat_form **out);

#endif
