/* grammar_texts - answer questions about grammars, one line of JSON each on standard input:
 *   {"schema": …, "draw": N, "seed": S, "longest": BYTES, "texts": [TEXT…]}
 * In place of "schema" it may have "regex", "grammar" (GBNF), "choice", or "tools": functions, one of which each text
 * calls, as {"name": …, "arguments": …}. The answer: {"drawn": [TEXT…], "fits": [true
 * or false for each of the texts]}, where drawn texts are made by random choices among the bytes that may follow; or
 * {"refused": STATUS, "param": …, "message": …}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/philox.h"
#include "engine/text/grammar/call_grammar.h"
#include "engine/text/grammar/gbnf.h"
#include "engine/text/grammar/json_grammar.h"
#include "engine/text/grammar/plain_grammar.h"
#include "tests/unit/support/grammar_reader.h"

enum { LONGEST = 4000, CLOSES_AFTER = 120 };

/* Random numbers of one question. */
typedef struct draws {
	uint64_t seed, at;
} draws;

static uint32_t draw(draws *d, uint32_t below)
{
	return philox(d->seed, 3, 0, d->at++).word[0] % below;
}

/* One of the bytes that are in the set and in the list; -1: none. `list` NULL: one of the set. */
static int draw_byte(draws *d, const byte_set *set, const char *list)
{
	int all[256], n = 0;
	for (int byte = 0; byte < 256; byte++)
		if (byte_set_has(set, (unsigned char)byte) && (!list || (byte && strchr(list, byte))))
			all[n++] = byte;
	return n ? all[draw(d, (uint32_t)n)] : -1;
}

static int choose(draws *d, const byte_set *set, size_t written)
{
	static const char closing[] = "\"]}", readable[] = "abcXYZ 0123456789-.:T{[";
	const uint32_t kind = written > CLOSES_AFTER ? 0 : draw(d, 8);
	int byte = -1;
	if (kind == 0)
		byte = draw_byte(d, set, closing);
	else if (kind < 4)
		byte = draw_byte(d, set, readable);
	return byte >= 0 ? byte : draw_byte(d, set, NULL);
}

/* Draw a text; NULL: it got longer than `longest` bytes. */
static json_t *draw_text(const grammar *g, draws *d, size_t longest)
{
	static grammar_reader r;
	char text[LONGEST];
	size_t n = 0;
	bool ends = false;
	byte_set set;
	grammar_reader_start(&r, g);
	for (; n < longest; n++) {
		grammar_reader_next(&r, &set, &ends);
		const int byte = ends && (n > CLOSES_AFTER || draw(d, 3) == 0) ? -1 : choose(d, &set, n);
		if (byte < 0)
			break;
		if (!grammar_reader_push(&r, (unsigned char)byte))
			abort();
		text[n] = (char)byte;
	}
	grammar_reader_fini(&r);
	return ends && n < longest ? json_stringn(text, n) : NULL;
}

static status read_grammar(grammar **out, const json_t *question, error *err)
{
	const json_t *regex = json_object_get(question, "regex"), *gbnf = json_object_get(question, "grammar");
	const json_t *choice = json_object_get(question, "choice"), *tools = json_object_get(question, "tools");
	const call_rules rules = {
	    .form = {"", "", "", "arguments", "", "", true}, .tools = tools, .choice = CALLS_REQUIRED};
	if (tools)
		return call_grammar_new(out, &rules, err);
	if (regex)
		return regex_grammar_new(out, json_string_value(regex), json_string_length(regex), err);
	if (gbnf)
		return gbnf_grammar_new(out, json_string_value(gbnf), json_string_length(gbnf), err);
	return choice ? choice_grammar_new(out, choice, err)
	              : json_grammar_new(out, json_object_get(question, "schema"), err);
}

static json_t *answer(const json_t *question)
{
	error err = ERROR_INIT;
	grammar *g;
	const status s = read_grammar(&g, question, &err);
	const size_t bound = (size_t)json_integer_value(json_object_get(question, "longest"));
	if (s != STATUS_OK)
		return json_pack("{s:s, s:s, s:s}", "refused", status_name(s), "param", err.param, "message",
		                 error_message(&err));
	draws d = {(uint64_t)json_integer_value(json_object_get(question, "seed")), 0};
	json_t *drawn = json_array(), *fits = json_array(), *text;
	size_t i;
	for (json_int_t k = json_integer_value(json_object_get(question, "draw")); k > 0; k--)
		if ((text = draw_text(g, &d, bound > 0 && bound < LONGEST ? bound : LONGEST)))
			json_array_append_new(drawn, text);
	json_array_foreach(json_object_get(question, "texts"), i, text) json_array_append_new(
	    fits, json_boolean(grammar_reader_accepts(g, json_string_value(text), json_string_length(text))));
	grammar_free(g);
	return json_pack("{s:o, s:o}", "drawn", drawn, "fits", fits);
}

int main(void)
{
	char *line = NULL;
	size_t size = 0;
	ssize_t n;
	while ((n = getline(&line, &size, stdin)) > 0) {
		json_error_t where;
		json_t *question = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &where);
		json_t *said = question ? answer(question) : json_pack("{s:s}", "broken", where.text);
		json_dumpf(said, stdout, JSON_COMPACT);
		putchar('\n');
		fflush(stdout);
		json_decref(said);
		json_decref(question);
	}
	free(line);
	return 0;
}
