#include "engine/text/grammar/gbnf_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

typedef struct reader {
	gbnf_rules *rules;
	const char *at, *end;
	int line, depth;
	error *err;
	status problem;
} reader;

/* Record the first failure, at the current line. Returns -1. */
static int32_t refuse(reader *p, status code, const char *words)
{
	if (p->problem == STATUS_OK)
		p->problem = error_set(p->err, code, NULL, "line %d: %s", p->line, words);
	return -1;
}

static int32_t gbnf_invalid(reader *p, const char *words)
{
	return refuse(p, STATUS_INVALID, words);
}

static int32_t gbnf_out_of_memory(reader *p)
{
	if (p->problem == STATUS_OK)
		p->problem = STATUS_NOMEM;
	return -1;
}

static bool gbnf_take(reader *p, char c)
{
	if (p->at == p->end || *p->at != c)
		return false;
	p->at++;
	return true;
}

/* Skip blanks and comments, and ends of lines if `lines`. */
static void skip(reader *p, bool lines)
{
	for (; p->at < p->end; p->at++) {
		if (*p->at == '#')
			while (p->at + 1 < p->end && p->at[1] != '\n' && p->at[1] != '\r')
				p->at++;
		else if (*p->at == '\n' && lines)
			p->line++;
		else if (*p->at != ' ' && *p->at != '\t' && !(*p->at == '\r' && lines))
			return;
	}
}

/* --- nodes ---------------------------------------------------------------------------------------- */

static int32_t add_node(reader *p, gbnf_node node)
{
	gbnf_rules *r = p->rules;
	if (p->problem != STATUS_OK)
		return -1;
	node.height = 1;
	for (int32_t k = node.first; k >= 0; k = r->nodes[k].next)
		if (node.height <= r->nodes[k].height)
			node.height = r->nodes[k].height + 1;
	if (node.height > GBNF_MAX_HEIGHT)
		return refuse(p, STATUS_TOO_LARGE, "groups and repetitions are nested more than 400 deep");
	if (!MEMORY_ROOM(r->nodes, r->nodes_capacity, r->n_nodes + 1))
		return gbnf_out_of_memory(p);
	node.next = -1;
	r->nodes[r->n_nodes] = node;
	return r->n_nodes++;
}

/* A sequence or choice of these members, which are linked; a single member is itself. */
static int32_t add_list(reader *p, gbnf_kind kind, int32_t first)
{
	if (first >= 0 && p->problem == STATUS_OK && p->rules->nodes[first].next < 0)
		return first;
	return add_node(p, (gbnf_node){.kind = kind, .first = first});
}

/* --- characters ----------------------------------------------------------------------------------- */

static int32_t gbnf_read_hex(reader *p, int digits)
{
	int32_t x = 0;
	for (int i = 0; i < digits; i++, p->at++) {
		const char c = p->at < p->end ? *p->at : '\0';
		const int value = c >= '0' && c <= '9'   ? c - '0'
		                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
		                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
		                                         : -1;
		if (value < 0 || x > CODE_POINT_LAST)
			return gbnf_invalid(p, "an escape has a wrong hexadecimal digit, or too large a number");
		x = x << 4 | value;
	}
	if (x > CODE_POINT_LAST || (x >= 0xd800 && x <= 0xdfff))
		return gbnf_invalid(p, "an escape is no Unicode character");
	return x;
}

/* After "\". */
static int32_t gbnf_read_escape(reader *p)
{
	static const char letters[] = "tnr\\\"[]", characters[] = "\t\n\r\\\"[]";
	const char c = p->at < p->end ? *p->at++ : '\0';
	const char *found = c ? strchr(letters, c) : NULL;
	if (found)
		return (unsigned char)characters[found - letters];
	if (c == 'x')
		return gbnf_read_hex(p, 2);
	if (c == 'u')
		return gbnf_read_hex(p, 4);
	return c == 'U'
	           ? gbnf_read_hex(p, 8)
	           : gbnf_invalid(p, "an escape is none of \\\\ \\\" \\[ \\] \\n \\r \\t \\xXX \\uXXXX \\UXXXXXXXX");
}

/* The next character, which exists; -1: refused. */
static int32_t read_character(reader *p)
{
	if (gbnf_take(p, '\\'))
		return gbnf_read_escape(p);
	const unsigned char lead = (unsigned char)*p->at++;
	int more = lead < 0xc0 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
	int32_t c = more == 0 ? lead : lead & (0x3f >> more);
	p->line += c == '\n';
	for (; more > 0 && p->at < p->end; more--)
		c = c << 6 | (*p->at++ & 0x3f);
	return c;
}

static void append_character(reader *p, int32_t c)
{
	gbnf_rules *r = p->rules;
	unsigned char bytes[CODE_POINT_BYTES];
	const int n = code_point_encode(bytes, c);
	if (!MEMORY_ROOM(r->text, r->text_capacity, r->n_text + n)) {
		gbnf_out_of_memory(p);
		return;
	}
	memcpy(r->text + r->n_text, bytes, (size_t)n);
	r->n_text += n;
}

/* After the quotation mark. */
static int32_t read_literal(reader *p)
{
	const int32_t from = p->rules->n_text;
	while (p->problem == STATUS_OK && p->at < p->end && *p->at != '"') {
		const int32_t c = read_character(p);
		if (c >= 0)
			append_character(p, c);
	}
	if (!gbnf_take(p, '"'))
		return gbnf_invalid(p, "a text has no closing quotation mark");
	return add_node(p, (gbnf_node){.kind = GBNF_TEXT, .first = -1, .a = from, .b = p->rules->n_text - from});
}

static int32_t gbnf_add_set(reader *p, const code_points *set)
{
	gbnf_rules *r = p->rules;
	int32_t i = 0;
	if (p->problem != STATUS_OK)
		return -1;
	while (i < r->n_sets && (r->sets[i].n != set->n ||
	                         memcmp(r->sets[i].ranges, set->ranges, (size_t)set->n * sizeof *set->ranges) != 0))
		i++;
	if (i == GBNF_MAX_SETS)
		return refuse(p, STATUS_TOO_LARGE, "the grammar has more than 1024 classes of characters");
	if (i == r->n_sets) {
		if (!MEMORY_ROOM(r->sets, r->sets_capacity, r->n_sets + 1))
			return gbnf_out_of_memory(p);
		r->sets[r->n_sets++] = *set;
	}
	return add_node(p, (gbnf_node){.kind = GBNF_SET, .first = -1, .a = i});
}

/* After "[". */
static int32_t read_class(reader *p)
{
	code_points set = {.n = 0};
	const bool negative = gbnf_take(p, '^');
	bool room = true;
	if (p->at < p->end && *p->at == ']')
		return gbnf_invalid(p, "a class of characters is empty");
	while (p->problem == STATUS_OK && room && p->at < p->end && *p->at != ']') {
		const int32_t first = read_character(p);
		int32_t last = first;
		if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
			p->at++;
			last = read_character(p);
		}
		if (first > last && last >= 0)
			gbnf_invalid(p, "a range has its ends in the wrong order");
		room = p->problem != STATUS_OK || code_points_add(&set, first, last);
	}
	if (p->problem == STATUS_OK && room && !gbnf_take(p, ']'))
		return gbnf_invalid(p, "a class of characters has no ]");
	if (!room || (negative && !code_points_negate(&set)))
		return refuse(p, STATUS_TOO_LARGE, "a class of characters has more than 128 ranges");
	return gbnf_add_set(p, &set);
}

/* --- rules ------------------------------------------------------------------------------------------ */

static bool is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* The index of the rule whose name is next; -1: refused. */
static int32_t read_name(reader *p)
{
	gbnf_rules *r = p->rules;
	const char *name = p->at;
	while (p->at < p->end && is_name(*p->at))
		p->at++;
	const size_t bytes = (size_t)(p->at - name);
	for (int32_t i = 0; i < r->n_rules; i++)
		if (r->rules[i].bytes == bytes && memcmp(r->rules[i].name, name, bytes) == 0)
			return i;
	if (bytes == 0)
		return gbnf_invalid(p, "a rule, a text, a class or a group is expected");
	if (r->n_rules == GBNF_MAX_RULES)
		return refuse(p, STATUS_TOO_LARGE, "the grammar has more than 1024 rules");
	if (!MEMORY_ROOM(r->rules, r->rules_capacity, r->n_rules + 1))
		return gbnf_out_of_memory(p);
	r->rules[r->n_rules] = (gbnf_rule){name, bytes, -1, p->line};
	return r->n_rules++;
}

static int32_t read_choice(reader *p, bool within);

static int32_t gbnf_read_group(reader *p)
{
	if (p->depth == GBNF_MAX_DEPTH)
		return refuse(p, STATUS_TOO_LARGE, "groups are nested more than 100 deep");
	p->depth++;
	skip(p, true);
	const int32_t node = read_choice(p, true);
	p->depth--;
	if (p->problem == STATUS_OK && !gbnf_take(p, ')'))
		return gbnf_invalid(p, "a ( has no )");
	return node;
}

static int32_t read_item(reader *p)
{
	if (gbnf_take(p, '"'))
		return read_literal(p);
	if (gbnf_take(p, '['))
		return read_class(p);
	if (gbnf_take(p, '('))
		return gbnf_read_group(p);
	if (gbnf_take(p, '.'))
		return gbnf_add_set(p, &(code_points){{{0, CODE_POINT_LAST}}, 1});
	if (p->at < p->end && (*p->at == '<' || *p->at == '!'))
		return refuse(p, STATUS_UNSUPPORTED, "tokens as symbols (<...>) are not implemented");
	const int32_t rule = read_name(p);
	return rule < 0 ? -1 : add_node(p, (gbnf_node){.kind = GBNF_RULE, .first = -1, .a = rule});
}

static int32_t gbnf_read_count(reader *p)
{
	int32_t n = 0;
	if (p->at == p->end || *p->at < '0' || *p->at > '9')
		return gbnf_invalid(p, "a number is expected within {}");
	for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
		if ((n = n * 10 + *p->at - '0') > GBNF_MAX_COUNT)
			return refuse(p, STATUS_TOO_LARGE, "a repetition is of more than 100000 times");
	return n;
}

/* After "{". */
static void read_counts(reader *p, int32_t *min, int32_t *max, bool within)
{
	skip(p, within);
	*max = *min = gbnf_read_count(p);
	skip(p, within);
	if (p->problem == STATUS_OK && gbnf_take(p, ',')) {
		skip(p, within);
		*max = p->at < p->end && *p->at == '}' ? GBNF_NO_BOUND : gbnf_read_count(p);
		skip(p, within);
	}
	if (p->problem == STATUS_OK && !gbnf_take(p, '}'))
		gbnf_invalid(p, "a { has no }");
	if (p->problem == STATUS_OK && *max != GBNF_NO_BOUND && *max < *min)
		gbnf_invalid(p, "a repetition has its bounds in the wrong order");
}

/* Repetitions of a node, as many as there are. within: a group, where lines do not end a rule. */
static int32_t read_repeats(reader *p, int32_t node, bool within)
{
	for (int n = 0; p->problem == STATUS_OK; n++) {
		int32_t min = 0, max = GBNF_NO_BOUND;
		skip(p, within);
		if (gbnf_take(p, '+'))
			min = 1;
		else if (gbnf_take(p, '?'))
			max = 1;
		else if (gbnf_take(p, '{'))
			read_counts(p, &min, &max, within);
		else if (!gbnf_take(p, '*'))
			break;
		if (n == GBNF_MAX_DEPTH)
			return refuse(p, STATUS_TOO_LARGE, "repetitions are nested more than 100 deep");
		node = add_node(p, (gbnf_node){.kind = GBNF_REPEAT, .first = node, .a = min, .b = max});
	}
	return node;
}

static int32_t read_sequence(reader *p, bool within)
{
	int32_t first = -1, last = -1;
	while (p->problem == STATUS_OK && p->at < p->end && !strchr("|)\r\n", *p->at)) {
		const int32_t node = read_repeats(p, read_item(p), within);
		if (p->problem != STATUS_OK)
			return -1;
		if (last >= 0)
			p->rules->nodes[last].next = node;
		first = first < 0 ? node : first;
		last = node;
	}
	return add_list(p, GBNF_SEQUENCE, first);
}

static int32_t read_choice(reader *p, bool within)
{
	int32_t first = read_sequence(p, within), last = first;
	while (p->problem == STATUS_OK && gbnf_take(p, '|')) {
		skip(p, true);
		const int32_t node = read_sequence(p, within);
		if (p->problem != STATUS_OK)
			return -1;
		p->rules->nodes[last].next = node;
		last = node;
	}
	return add_list(p, GBNF_CHOICE, first);
}

static void read_rule(reader *p)
{
	const int32_t rule = read_name(p);
	skip(p, false);
	if (p->problem != STATUS_OK)
		return;
	if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0) {
		gbnf_invalid(p, "::= is expected after the name of a rule");
		return;
	}
	if (p->rules->rules[rule].body >= 0) {
		gbnf_invalid(p, "a rule is defined twice");
		return;
	}
	p->at += 3;
	skip(p, true);
	const int32_t body = read_choice(p, false);
	if (p->problem == STATUS_OK && p->at < p->end && *p->at == ')')
		gbnf_invalid(p, "a ) has no (");
	p->rules->rules[rule].body = body;
}

static void check_rules(reader *p)
{
	gbnf_rules *r = p->rules;
	r->root = -1;
	for (int32_t i = 0; i < r->n_rules && p->problem == STATUS_OK; i++) {
		if (r->rules[i].body < 0)
			p->problem = error_set(p->err, STATUS_INVALID, NULL, "line %d: the rule %.*s is not defined",
			                       r->rules[i].line, r->rules[i].bytes < 64 ? (int)r->rules[i].bytes : 64,
			                       r->rules[i].name);
		if (r->rules[i].bytes == 4 && memcmp(r->rules[i].name, "root", 4) == 0)
			r->root = i;
	}
	if (p->problem == STATUS_OK && r->root < 0)
		p->problem = error_set(p->err, STATUS_INVALID, NULL, "the grammar has no rule root");
}

status gbnf_rules_parse(gbnf_rules *r, const char *text, size_t bytes, error *err)
{
	reader p = {.rules = r, .at = text, .end = text + bytes, .line = 1, .err = err};
	if (bytes > GBNF_MAX_BYTES)
		return error_set(err, STATUS_TOO_LARGE, NULL, "the grammar is longer than %d bytes", GBNF_MAX_BYTES);
	for (skip(&p, true); p.problem == STATUS_OK && p.at < p.end; skip(&p, true))
		read_rule(&p);
	if (p.problem == STATUS_OK)
		check_rules(&p);
	return p.problem;
}

void gbnf_rules_fini(gbnf_rules *r)
{
	free(r->nodes);
	free(r->rules);
	free(r->sets);
	free(r->text);
	*r = (gbnf_rules){0};
}
