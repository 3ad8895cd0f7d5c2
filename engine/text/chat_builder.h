/* chat_builder.h - the text of a conversation while it is rendered (internal). */
#ifndef ENGINE_TEXT_CHAT_BUILDER_H
#define ENGINE_TEXT_CHAT_BUILDER_H

#include "engine/text/chat_forms.h"

typedef struct chat_builder {
	const chat_form *form;
	const char *begin, *end; /* names of the tokens that begin and end a text */
	chat_text out;
	size_t room, ranges_room;
	size_t given, added; /* bytes of messages, and of the template */
	bool failed, grown;  /* grown: failed, since the template adds too much */
} chat_builder;

/* Make room for `bytes` more. False: an append has failed, or this does. */
bool chat_builder_reserve(chat_builder *b, size_t bytes);
/* Append a text of the form, with the names of the tokens that begin and end a text. NULL is empty. */
void chat_builder_markup(chat_builder *b, const char *text);
/* Bytes that the text from `first` on has in common with a text of the form. */
size_t chat_builder_common(const chat_builder *b, size_t first, const char *text);
/* Append text of a message. trims: without the white space at its beginning. */
void chat_builder_append(chat_builder *b, const char *text, size_t bytes, bool trims);
/* Drop the white space at the end of what was built from `first` on. */
void chat_builder_trim_end(chat_builder *b, size_t first);

#endif
