#include "engine/text/grammar/json_forms.h"

#include <string.h>

enum { DIGITS = 15 };

grammar_node json_form_text(const json_forms *f, const char *words)
{
	return grammar_text(f->g, words, strlen(words));
}

/* One of these characters; "a-f" is a range. */
static grammar_node json_form_one_of(const json_forms *f, const char *bytes)
{
	byte_set set = {{0}};
	for (const char *p = bytes; *p; p++) {
		const bool range = p[1] == '-' && p[2];
		byte_set_add(&set, (unsigned char)*p, (unsigned char)(range ? p[2] : *p));
		p += range ? 2 : 0;
	}
	return grammar_set(f->g, &set);
}

grammar_node json_form_comma(const json_forms *f)
{
	return json_form_text(f, f->spaced ? ", " : ",");
}

grammar_node json_form_optional(const json_forms *f, grammar_node node)
{
	return grammar_repeat(f->g, node, 0, 1);
}

grammar_node json_form_plain(const json_forms *f, const byte_set *without)
{
	static const unsigned char leads[][6] = {
	    /* first lead, last lead, least and largest second byte, number of further bytes */
	    {0xc2, 0xdf, 0x80, 0xbf, 1}, {0xe0, 0xe0, 0xa0, 0xbf, 2}, {0xe1, 0xec, 0x80, 0xbf, 2},
	    {0xed, 0xed, 0x80, 0x9f, 2}, {0xee, 0xef, 0x80, 0xbf, 2}, {0xf0, 0xf0, 0x90, 0xbf, 3},
	    {0xf1, 0xf3, 0x80, 0xbf, 3}, {0xf4, 0xf4, 0x80, 0x8f, 3}};
	enum { LEADS = sizeof leads / sizeof *leads };
	grammar_node all[LEADS + 1];
	const grammar_node rest = grammar_range(f->g, 0x80, 0xbf);
	byte_set ascii = {{0}};
	byte_set_add(&ascii, 0x20, 0x7f);
	byte_set_remove(&ascii, '"');
	byte_set_remove(&ascii, '\\');
	for (int i = 0; i < 4; i++)
		ascii.bits[i] &= ~without->bits[i];
	all[0] = grammar_set(f->g, &ascii);
	for (size_t i = 0; i < LEADS; i++) {
		byte_set lead = {{0}};
		byte_set_add(&lead, leads[i][0], leads[i][1]);
		for (int k = 0; k < 4; k++)
			lead.bits[k] &= ~without->bits[k];
		const grammar_node parts[] = {grammar_set(f->g, &lead), grammar_range(f->g, leads[i][2], leads[i][3]),
		                              rest, rest};
		all[i + 1] = grammar_sequence(f->g, parts, 1 + leads[i][4]);
	}
	return grammar_choice(f->g, all, LEADS + 1);
}

static grammar_node escapes(const json_forms *f)
{
	const grammar_node hex = json_form_one_of(f, "0-9a-fA-F"), d = json_form_one_of(f, "dD");
	const grammar_node high = grammar_sequence(f->g, NODES(d, json_form_one_of(f, "89abAB"), hex, hex));
	const grammar_node low = grammar_sequence(f->g, NODES(d, json_form_one_of(f, "c-fC-F"), hex, hex));
	const grammar_node other = grammar_choice(
	    f->g, NODES(grammar_sequence(f->g, NODES(json_form_one_of(f, "0-9a-cA-CefEF"), hex, hex, hex)),
	                grammar_sequence(f->g, NODES(d, json_form_one_of(f, "0-7"), hex, hex))));
	const grammar_node pair = grammar_sequence(f->g, NODES(high, json_form_text(f, "\\u"), low));
	const grammar_node code = grammar_choice(f->g, NODES(other, pair));
	return grammar_sequence(
	    f->g, NODES(json_form_text(f, "\\"),
	                grammar_choice(f->g, NODES(json_form_one_of(f, "\"\\/bfnrt"),
	                                           grammar_sequence(f->g, NODES(json_form_text(f, "u"), code))))));
}

grammar_node json_form_string(const json_forms *f, int32_t min, int32_t max)
{
	const grammar_node quote = json_form_text(f, "\"");
	return grammar_sequence(f->g, NODES(quote, grammar_repeat(f->g, f->character, min, max), quote));
}

/* Min to max nodes with commas between them, in brackets. */
static grammar_node list(const json_forms *f, const char *open, grammar_node one, const char *close, int32_t min,
                         int32_t max)
{
	const bool bound = max != GRAMMAR_NO_BOUND;
	const grammar_node more = grammar_sequence(f->g, NODES(json_form_comma(f), one));
	const grammar_node rest =
	    grammar_repeat(f->g, more, min > 1 ? min - 1 : 0, bound ? (max > 1 ? max - 1 : 0) : max);
	const grammar_node some = grammar_sequence(f->g, NODES(one, rest));
	const grammar_node all = grammar_repeat(f->g, some, min > 0 ? 1 : 0, bound && max < 1 ? 0 : 1);
	return grammar_sequence(f->g, NODES(json_form_text(f, open), all, json_form_text(f, close)));
}

grammar_node json_form_array(const json_forms *f, grammar_node item, int32_t min, int32_t max)
{
	return list(f, "[", item, "]", min, max);
}

grammar_node json_form_member(const json_forms *f, grammar_node key, grammar_node value)
{
	return grammar_sequence(f->g, NODES(key, json_form_text(f, f->spaced ? ": " : ":"), value));
}

grammar_node json_form_object(const json_forms *f, grammar_node member, int32_t min, int32_t max)
{
	return list(f, "{", member, "}", min, max);
}

void json_forms_make(json_forms *f)
{
	grammar *g = f->g;
	const byte_set none = {{0}};
	const grammar_node digit = json_form_one_of(f, "0-9"), digits = grammar_repeat(g, digit, 1, DIGITS + 1);
	f->plain = json_form_plain(f, &none);
	f->character = grammar_choice(g, NODES(f->plain, escapes(f)));
	f->string = json_form_string(f, 0, GRAMMAR_NO_BOUND);
	const grammar_node whole = grammar_choice(
	    g, NODES(json_form_text(f, "0"),
	             grammar_sequence(g, NODES(json_form_one_of(f, "1-9"), grammar_repeat(g, digit, 0, DIGITS)))));
	const grammar_node fraction = grammar_sequence(g, NODES(json_form_text(f, "."), digits));
	const grammar_node exponent =
	    grammar_sequence(g, NODES(json_form_one_of(f, "eE"), json_form_optional(f, json_form_one_of(f, "+-")),
	                              grammar_repeat(g, digit, 1, 2)));
	f->integer = grammar_sequence(g, NODES(json_form_optional(f, json_form_text(f, "-")), whole));
	f->number =
	    grammar_sequence(g, NODES(f->integer, json_form_optional(f, fraction), json_form_optional(f, exponent)));
	f->value = grammar_forward(g);
	const grammar_node object = json_form_object(f, json_form_member(f, f->string, f->value), 0, GRAMMAR_NO_BOUND);
	const grammar_node array = json_form_array(f, f->value, 0, GRAMMAR_NO_BOUND);
	grammar_define(g, f->value,
	               grammar_choice(g, NODES(f->string, f->number, object, array, json_form_text(f, "true"),
	                                       json_form_text(f, "false"), json_form_text(f, "null"))));
}
