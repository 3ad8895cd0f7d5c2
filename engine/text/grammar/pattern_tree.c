#include "engine/text/grammar/pattern_tree.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

enum { MAX_DEPTH = 100, MAX_COUNT = 100000 };

/* --- nodes ---------------------------------------------------------------------------------------- */

status pattern_tree_init(pattern_tree *t)
{
	t->nodes = memory_new(PATTERN_MAX_NODES, sizeof *t->nodes);
	t->sets = memory_new(PATTERN_MAX_SETS, sizeof *t->sets);
	return t->nodes && t->sets ? STATUS_OK : STATUS_NOMEM;
}

int32_t pattern_tree_node(pattern_tree *t, pattern_node node)
{
	if (node.a < 0 || node.b < 0 || t->n_nodes == PATTERN_MAX_NODES)
		return -1;
	t->nodes[t->n_nodes] = node;
	t->work++;
	return t->n_nodes++;
}

static bool same_set(const code_points *a, const code_points *b)
{
	return a->n == b->n && memcmp(a->ranges, b->ranges, (size_t)a->n * sizeof *a->ranges) == 0;
}

int32_t pattern_tree_set(pattern_tree *t, const code_points *s)
{
	uint64_t hash = 0;
	for (int i = 0; i < s->n; i++)
		hash = (hash ^ (uint64_t)s->ranges[i].first << 32 ^ (uint64_t)s->ranges[i].last) *
		       UINT64_C(0x9e3779b97f4a7c15);
	t->work += s->n / 8;
	int16_t *slot = &t->set_slots[(hash >> 32) % PATTERN_SET_SLOTS];
	while (*slot && !same_set(&t->sets[*slot - 1], s)) {
		t->work++;
		slot = slot == t->set_slots + PATTERN_SET_SLOTS - 1 ? t->set_slots : slot + 1;
	}
	if (!*slot) {
		if (t->n_sets == PATTERN_MAX_SETS)
			return -1;
		t->sets[t->n_sets++] = *s;
		*slot = (int16_t)t->n_sets;
	}
	return pattern_tree_node(t, (pattern_node){.kind = PATTERN_CHARACTER, .a = *slot - 1});
}

/* --- parsing --------------------------------------------------------------------------------------- */

typedef struct parser {
	pattern_tree *tree;
	const char *at, *end;
	int depth;
	error *err;
	status problem;
} parser;

/* Returns -1, which every node's number is not. */
static int32_t pattern_tree_refuse(parser *p, status code, const char *words)
{
	if (p->problem == STATUS_OK)
		p->problem = error_set(p->err, code, NULL, "%s", words);
	return -1;
}

static int32_t invalid(parser *p, const char *words)
{
	return pattern_tree_refuse(p, STATUS_INVALID, words);
}

static int32_t unsupported(parser *p, const char *words)
{
	return pattern_tree_refuse(p, STATUS_UNSUPPORTED, words);
}

static int32_t pattern_tree_add(parser *p, pattern_node node)
{
	if (p->problem != STATUS_OK)
		return -1;
	const int32_t added = pattern_tree_node(p->tree, node);
	return added < 0 ? pattern_tree_refuse(p, STATUS_TOO_LARGE, "the regular expression is too long") : added;
}

static int32_t add_set(parser *p, const code_points *s)
{
	if (p->problem != STATUS_OK)
		return -1;
	const int32_t added = pattern_tree_set(p->tree, s);
	return added < 0 ? pattern_tree_refuse(p, STATUS_TOO_LARGE,
	                                       "the regular expression has too many characters or classes")
	                 : added;
}

static int32_t add_character(parser *p, int32_t c)
{
	code_points one = {.n = 0};
	code_points_add(&one, c, c);
	return add_set(p, &one);
}

static bool pattern_tree_take(parser *p, const char *words)
{
	const size_t n = strlen(words);
	if ((size_t)(p->end - p->at) < n || memcmp(p->at, words, n) != 0)
		return false;
	p->at += n;
	return true;
}

/* The next character of the pattern, which is not at its end. JSON strings are well-formed UTF-8. */
static int32_t next_character(parser *p)
{
	const unsigned char lead = (unsigned char)*p->at++;
	int more = lead < 0xc0 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
	int32_t c = more == 0 ? lead : lead & (0x3f >> more);
	for (; more > 0 && p->at < p->end; more--)
		c = c << 6 | (*p->at++ & 0x3f);
	return c;
}

/* --- escapes -------------------------------------------------------------------------------------- */

/* n hexadecimal digits; -1: there are none such. */
static int32_t read_hex(parser *p, int n)
{
	int32_t x = 0;
	for (int i = 0; i < n; i++) {
		static const char digits[] = "0123456789abcdef";
		const char c = p->at < p->end ? *p->at++ : '\0';
		const char *found = c ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;
		if (!found)
			return invalid(p, "has an escape with a wrong hexadecimal digit");
		x = x << 4 | (int32_t)(found - digits);
	}
	return x;
}

/* After "\u": XXXX, a pair of surrogates, or {X…}. */
static int32_t read_unicode(parser *p)
{
	int32_t c = 0;
	if (pattern_tree_take(p, "{")) {
		int digits = 0;
		while (digits < 6 && p->at < p->end && *p->at != '}') {
			const int32_t digit = read_hex(p, 1);
			if (digit < 0)
				return -1;
			c = c << 4 | digit;
			digits++;
		}
		return digits > 0 && pattern_tree_take(p, "}") && c <= CODE_POINT_LAST
		           ? c
		           : invalid(p, "has a wrong \\u{…}");
	}
	c = read_hex(p, 4);
	if (c < 0xd800 || c > 0xdbff || !pattern_tree_take(p, "\\u"))
		return c;
	const int32_t low = read_hex(p, 4);
	return low >= 0xdc00 && low <= 0xdfff ? 0x10000 + ((c - 0xd800) << 10) + low - 0xdc00
	                                      : invalid(p, "has half a surrogate pair");
}

/* A character after "\" that is no class; -1: refused. */
static int32_t read_escape(parser *p)
{
	static const char letters[] = "tnrfv0", characters[] = "\t\n\r\f\v";
	if (p->at == p->end)
		return invalid(p, "ends with a backslash");
	const int32_t c = next_character(p);
	const char *found = c > 0 && c < 0x80 ? strchr(letters, c) : NULL;
	if (c == '0' && p->at < p->end && *p->at >= '0' && *p->at <= '9')
		return unsupported(p, "has an octal escape, which is not implemented");
	if (found)
		return (unsigned char)characters[found - letters];
	if (c == 'x')
		return read_hex(p, 2);
	if (c == 'u')
		return read_unicode(p);
	if (c >= 0x80 || c < ' ')
		return invalid(p, "escapes a character that has no escape");
	if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '<' || c == '>') {
		if (p->problem == STATUS_OK)
			p->problem = error_set(p->err, STATUS_UNSUPPORTED, NULL,
			                       "has \\%c, which is not implemented in regular expressions", (char)c);
		return -1;
	}
	return c;
}

/* d, D, w, W, s or S after "\"; 0: no class. */
static char take_class(parser *p)
{
	if (p->end - p->at < 2 || p->at[0] != '\\' || !strchr("dDwWsS", p->at[1]) || !p->at[1])
		return '\0';
	p->at += 2;
	return p->at[-1];
}

/* --- classes -------------------------------------------------------------------------------------- */

/* One character of a class. */
static int32_t read_member(parser *p)
{
	if (p->at == p->end)
		return invalid(p, "has a [ without a ]");
	return pattern_tree_take(p, "\\") ? (pattern_tree_take(p, "b") ? '\b' : read_escape(p)) : next_character(p);
}

static bool read_members(parser *p, code_points *set, bool negative)
{
	bool room = true;
	while (p->problem == STATUS_OK && p->at < p->end && *p->at != ']' && room) {
		const char name = take_class(p);
		if (name) {
			room = code_points_add_class(set, name, negative);
			continue;
		}
		if (pattern_tree_take(p, "[:") || pattern_tree_take(p, "&&") || pattern_tree_take(p, "~~")) {
			unsupported(p, "has an operation of classes ([:, &&, ~~), which is not implemented");
			break;
		}
		const int32_t first = read_member(p);
		int32_t last = first;
		if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
			p->at++;
			if (take_class(p)) {
				invalid(p, "has a range that ends in a class");
				break;
			}
			last = read_member(p);
		}
		if (first > last && last >= 0)
			invalid(p, "has a range whose ends are in the wrong order");
		room = code_points_add(set, first, last);
	}
	if (!room)
		pattern_tree_refuse(p, STATUS_TOO_LARGE, "has a class with too many ranges");
	return p->problem == STATUS_OK;
}

/* After "[". */
static int32_t read_set(parser *p)
{
	code_points set = {.n = 0};
	const bool negative = pattern_tree_take(p, "^");
	if (p->at < p->end && *p->at == ']')
		return unsupported(p, "has an empty class, which dialects read in different ways");
	if (!read_members(p, &set, negative))
		return -1;
	if (!pattern_tree_take(p, "]"))
		return invalid(p, "has a [ without a ]");
	if (negative && !code_points_negate(&set))
		return pattern_tree_refuse(p, STATUS_TOO_LARGE, "has a class with too many ranges");
	return add_set(p, &set);
}

static int32_t read_dot(parser *p)
{
	code_points set = {.n = 0};
	code_points_add(&set, '\n', '\n');
	code_points_add(&set, '\r', '\r');
	code_points_add(&set, 0x2028, 0x2029);
	code_points_negate(&set);
	return add_set(p, &set);
}

/* --- the tree -------------------------------------------------------------------------------------- */

static int32_t read_either(parser *p);

static int32_t close_group(parser *p)
{
	if (++p->depth > MAX_DEPTH)
		return pattern_tree_refuse(p, STATUS_TOO_LARGE, "has groups that are nested too deep");
	const int32_t node = read_either(p);
	p->depth--;
	return p->problem != STATUS_OK || pattern_tree_take(p, ")") ? node : invalid(p, "has a ( without a )");
}

/* After "(". */
static int32_t read_group(parser *p)
{
	if (!pattern_tree_take(p, "?") || pattern_tree_take(p, ":"))
		return close_group(p);
	pattern_tree_take(p, "P");
	if (p->end - p->at < 2 || *p->at != '<' || p->at[1] == '=' || p->at[1] == '!')
		return unsupported(p, "has look-around or flags in a place where they are not implemented");
	while (p->at < p->end && *p->at != '>')
		p->at++;
	return pattern_tree_take(p, ">") ? close_group(p) : invalid(p, "has a group whose name does not end");
}

static int32_t read_atom(parser *p)
{
	const char name = take_class(p);
	code_points set = {.n = 0};
	if (name)
		return code_points_add_class(&set, name, false) ? add_set(p, &set) : invalid(p, "has too many ranges");
	if (pattern_tree_take(p, "^"))
		return pattern_tree_add(p, (pattern_node){.kind = PATTERN_BEGIN});
	if (pattern_tree_take(p, "$"))
		return pattern_tree_add(p, (pattern_node){.kind = PATTERN_END});
	if (pattern_tree_take(p, "("))
		return read_group(p);
	if (pattern_tree_take(p, "["))
		return read_set(p);
	if (pattern_tree_take(p, "."))
		return read_dot(p);
	if (strchr("*+?{}]", *p->at) && *p->at)
		return invalid(p, "has *, +, ?, {, } or ] without a backslash in a place that gives it no meaning");
	const int32_t c = pattern_tree_take(p, "\\") ? read_escape(p) : next_character(p);
	return c < 0 ? -1 : add_character(p, c);
}

static bool read_count(parser *p, int32_t *out)
{
	const char *from = p->at;
	for (*out = 0; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
		if ((*out = *out * 10 + *p->at - '0') > MAX_COUNT) {
			pattern_tree_refuse(p, STATUS_TOO_LARGE, "repeats more than 100000 times");
			return false;
		}
	return p->at > from;
}

static bool read_quantifier(parser *p, int32_t *min, int32_t *max)
{
	*min = 0;
	*max = PATTERN_NO_BOUND;
	if (pattern_tree_take(p, "*"))
		return true;
	if (pattern_tree_take(p, "+")) {
		*min = 1;
		return true;
	}
	if (pattern_tree_take(p, "?")) {
		*max = 1;
		return true;
	}
	if (!pattern_tree_take(p, "{"))
		return false;
	bool good = read_count(p, min);
	*max = *min;
	if (good && pattern_tree_take(p, ",") && p->at < p->end && *p->at == '}')
		*max = PATTERN_NO_BOUND;
	else if (good && p->at[-1] == ',')
		good = read_count(p, max);
	if (!good || !pattern_tree_take(p, "}") || (*max != PATTERN_NO_BOUND && *max < *min))
		invalid(p, "has a wrong {…}");
	return true;
}

static int32_t read_repeat(parser *p)
{
	int32_t min, max, node = read_atom(p);
	if (node < 0 || !read_quantifier(p, &min, &max))
		return node;
	const pattern_kind kind = p->tree->nodes[node].kind;
	pattern_tree_take(p, "?"); /* lazy: the same strings */
	if (p->at < p->end && strchr("*+?{", *p->at) && *p->at)
		return invalid(p, "repeats a repetition");
	if (kind == PATTERN_BEGIN || kind == PATTERN_END)
		return invalid(p, "repeats ^ or $");
	return pattern_tree_add(p, (pattern_node){.kind = PATTERN_REPEAT, .a = node, .min = min, .max = max});
}

static int32_t read_sequence(parser *p, int32_t node)
{
	while (p->problem == STATUS_OK && p->at < p->end && *p->at != '|' && *p->at != ')') {
		const int32_t next = read_repeat(p);
		node = node < 0 ? next
		                : pattern_tree_add(p, (pattern_node){.kind = PATTERN_SEQUENCE, .a = node, .b = next});
	}
	return node < 0 ? pattern_tree_add(p, (pattern_node){.kind = PATTERN_EMPTY}) : node;
}

static int32_t read_either(parser *p)
{
	int32_t node = read_sequence(p, -1);
	while (pattern_tree_take(p, "|"))
		node =
		    pattern_tree_add(p, (pattern_node){.kind = PATTERN_EITHER, .a = node, .b = read_sequence(p, -1)});
	return node;
}

static void read_looks(parser *p, int32_t begin)
{
	pattern_tree *t = p->tree;
	for (bool negative = false;
	     p->problem == STATUS_OK && ((negative = pattern_tree_take(p, "(?!")) || pattern_tree_take(p, "(?="));) {
		if (t->n_looks == PATTERN_MAX_LOOKS) {
			pattern_tree_refuse(p, STATUS_TOO_LARGE, "has too many look-aheads");
			return;
		}
		const int32_t inner = close_group(p);
		const int32_t root =
		    pattern_tree_add(p, (pattern_node){.kind = PATTERN_SEQUENCE, .a = begin, .b = inner});
		t->looks[t->n_looks++] = (pattern_look){root, negative};
	}
}

static void read_all(parser *p)
{
	pattern_tree *t = p->tree;
	const char *from = p->at;
	const int32_t begin =
	    pattern_tree_take(p, "^") ? pattern_tree_add(p, (pattern_node){.kind = PATTERN_BEGIN}) : -1;
	if (begin >= 0)
		read_looks(p, begin);
	if (t->n_looks == 0) {
		p->at = from;
		t->root = read_either(p);
	} else {
		t->root = read_sequence(p, begin);
		if (p->at < p->end && *p->at == '|')
			unsupported(p, "has look-ahead beside an alternative, which is not implemented");
	}
	if (p->problem == STATUS_OK && p->at < p->end)
		invalid(p, "has a ) without a (");
}

status pattern_tree_parse(pattern_tree *t, const char *pattern, size_t bytes, error *err)
{
	parser p = {.tree = t, .at = pattern, .end = pattern + bytes, .err = err};
	if (bytes > PATTERN_MAX_BYTES)
		return error_set(err, STATUS_TOO_LARGE, NULL, "the regular expression is longer than %d bytes",
		                 PATTERN_MAX_BYTES);
	TRY(pattern_tree_init(t));
	read_all(&p);
	return p.problem;
}

void pattern_tree_fini(pattern_tree *t)
{
	free(t->nodes);
	free(t->sets);
	*t = (pattern_tree){0};
}
