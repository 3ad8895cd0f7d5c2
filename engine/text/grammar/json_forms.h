/* json_forms.h - the parts of JSON texts as nodes of a grammar (internal). They are compact, except for the
 * spaces that `spaced` adds, and decide how long numbers may be. */
#ifndef ENGINE_TEXT_GRAMMAR_JSON_FORMS_H
#define ENGINE_TEXT_GRAMMAR_JSON_FORMS_H

#include "engine/text/grammar/grammar.h"

typedef struct json_forms {
	grammar *g;
	bool spaced;                                                   /* a space follows commas and colons */
	grammar_node character, plain, string, number, integer, value; /* value: a JSON text of any kind */
} json_forms;

/* Some nodes and their number, as arguments. */
#define NODES(...) (grammar_node[]){__VA_ARGS__}, (int)(sizeof(grammar_node[]){__VA_ARGS__} / sizeof(grammar_node))

/* f->g and f->spaced are set: make the other members. */
void json_forms_make(json_forms *f);

grammar_node json_form_text(const json_forms *f, const char *words);
grammar_node json_form_comma(const json_forms *f);
grammar_node json_form_optional(const json_forms *f, grammar_node node);
/* The characters of a string that need no escape, but for those that begin with a byte of `without`. */
grammar_node json_form_plain(const json_forms *f, const byte_set *without);
/* A string of min to max characters. */
grammar_node json_form_string(const json_forms *f, int32_t min, int32_t max);
/* "[" items "]" with min to max of them. */
grammar_node json_form_array(const json_forms *f, grammar_node item, int32_t min, int32_t max);
grammar_node json_form_member(const json_forms *f, grammar_node key, grammar_node value);
/* An object of min to max such members. */
grammar_node json_form_object(const json_forms *f, grammar_node member, int32_t min, int32_t max);

#endif
