/* options.c - see options.h. getopt_long was not taken: its table holds no types and no help, so each
 * command would say everything twice. */
#include "proto/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "proto/nearest.h"

static const option_row *find(const option_row *rows, const char *name, size_t n)
{
	for (const option_row *r = rows; r && r->name; r++)
		if (n && strlen(r->name) == n && memcmp(r->name, name, n) == 0)
			return r;
	return NULL;
}

const option_row *options_find(const option_row *rows, const char *name)
{
	return find(rows, name, strlen(name));
}

/* Integers are read as long long, so that a seed keeps all its digits. */
static bool is_integer(const char *value, const char **end)
{
	char *stop;

	errno = 0;
	strtoll(value, &stop, 10);
	*end = stop;
	return stop != value && errno == 0 && strchr(" \t\n", *value) == NULL;
}

static bool is_integers(const char *value)
{
	const char *end;

	for (;; value = end + 1) {
		if (!is_integer(value, &end) || (*end && *end != ','))
			return false;
		if (!*end)
			return true;
	}
}

static bool is_number(const char *value)
{
	char *end;
	double x = strtod(value, &end);

	return end != value && *end == '\0' && isfinite(x);
}

/* The seconds of "90", "90m", "1h" or "7d"; -1: it is none of these. */
static int64_t duration(const char *value)
{
	static const struct {
		const char *unit;
		int64_t seconds;
	} units[] = {{"", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
	const char *end;
	long long count = is_integer(value, &end) ? strtoll(value, NULL, 10) : -1;

	for (size_t i = 0; count >= 0 && i < sizeof(units) / sizeof(units[0]); i++)
		if (strcmp(end, units[i].unit) == 0 && count <= INT64_MAX / units[i].seconds)
			return count * units[i].seconds;
	return -1;
}

/* True if the value is within a range such as "1 to 64". */
static bool in_range(const char *range, const char *value)
{
	double least, most, x = strtod(value, NULL);

	return sscanf(range, "%lf to %lf", &least, &most) == 2 && x >= least && x <= most;
}

/* The kind of value that a row expects, if `value` is not one; else NULL. The caller adds a range. */
static const char *fault(const option_row *row, const char *value)
{
	const char *end;

	switch (row->type) {
	case OPTION_INTEGER:
		return is_integer(value, &end) && *end == '\0' ? NULL : "an integer";
	case OPTION_COUNT:
		return is_integer(value, &end) && *end == '\0' && in_range(row->field, value) ? NULL
		                                                                              : "an integer from ";
	case OPTION_NUMBER:
		return is_number(value) ? NULL : "a number";
	case OPTION_SECONDS:
		return is_number(value) && in_range(row->field, value) ? NULL : "a number from ";
	case OPTION_INTEGERS:
		return is_integers(value) ? NULL : "integers separated by commas";
	case OPTION_MEMBERS:
		return strchr(value, '=') > value ? NULL : "KEY=VALUE";
	case OPTION_DURATION:
		return duration(value) >= 0 ? NULL : "seconds, or a number with m, h or d";
	case OPTION_SELECTION:
		return strcmp(value, "all") == 0 || is_integers(value) ? NULL
		                                                       : "\"all\" or integers separated by commas";
	default:
		return NULL;
	}
}

static void refuse_unknown(options *o, const char *name, size_t n, const option_row *common, const option_row *own)
{
	const option_row *const tables[] = {own, common};
	char word[NEAREST_BYTES];

	snprintf(word, sizeof(word), "%.*s", (int)(n < sizeof(word) ? n : sizeof(word) - 1), name);
	nearest near = nearest_of(word);
	for (int i = 0; i < 2; i++)
		for (const option_row *r = tables[i]; r && r->name; r++)
			nearest_offer(&near, r->name);
	const char *best = nearest_found(&near);
	snprintf(o->problem, sizeof(o->problem),
	         best ? "unknown option --%s (did you mean --%s?)" : "unknown option --%s", word, best);
}

/* "a, b or c" of "a|b|c". */
static void write_words(FILE *file, const char *words)
{
	for (const char *end; *words; words = end + (*end == '|')) {
		end = words + strcspn(words, "|");
		const char *separator = *end == '\0' ? "" : strchr(end + 1, '|') ? ", " : " or ";
		fprintf(file, "%.*s%s", (int)(end - words), words, separator);
	}
}

/* Like options_words, malloc'ed; NULL: out of memory. */
static char *describe_words(const char *words)
{
	char *out = NULL;
	size_t bytes;
	FILE *file = open_memstream(&out, &bytes);

	if (!file)
		return NULL;
	write_words(file, words);
	return fclose(file) == 0 ? out : NULL;
}

/* The name of a short option; NULL: there is none. */
static const char *long_name(const char *word)
{
	static const char *const names[][2] = {{"-h", "help"}, {"-v", "version"}, {"-o", "output"}};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (strcmp(word, names[i][0]) == 0)
			return names[i][1];
	return NULL;
}

static bool is_flag(const option_row *row)
{
	return row->type == OPTION_FLAG || row->type == OPTION_OFF;
}

bool options_takes_value(const option_row *row)
{
	return !is_flag(row);
}

/* The word after its leading dashes. */
static const char *name_in(const char *word)
{
	return long_name(word) ? long_name(word) : word + 2;
}

const option_row *options_row(const char *word, const option_row *common, const option_row *own)
{
	const char *name = strncmp(word, "--", 2) == 0 || long_name(word) ? name_in(word) : "";
	size_t n = strcspn(name, "=");
	const option_row *row = find(own, name, n);

	return row ? row : find(common, name, n);
}

static bool options_is_word(const char *words, const char *value, size_t bytes)
{
	for (const char *at = words; *at;) {
		const size_t n = strcspn(at, "|");

		if (n == bytes && memcmp(at, value, n) == 0)
			return true;
		at += n + (at[n] == '|');
	}
	return false;
}

/* A value, or an element of a list, that is none of the row's words. *bytes: its length. NULL: there is none. The
 * service judges a field of its request. */
static const char *find_other_word(const option_row *row, const char *value, size_t *bytes)
{
	const char *words = options_words(row);

	if (!words || row->field || (row->type != OPTION_TEXT && row->type != OPTION_WORDS))
		return NULL;
	for (;; value += *bytes + 1) {
		*bytes = row->type == OPTION_WORDS ? strcspn(value, ",") : strlen(value);
		if (!options_is_word(words, value, *bytes))
			return value;
		if (!value[*bytes])
			return NULL;
	}
}

static void refuse_word(const option_row *row, const char *label, const char *value, size_t bytes, char *problem,
                        size_t size)
{
	char given[NEAREST_BYTES], *list = describe_words(options_words(row));

	snprintf(given, sizeof(given), "%.*s", (int)(bytes < sizeof(given) ? bytes : sizeof(given) - 1), value);
	nearest near = nearest_of(given);
	for (const char *at = options_words(row); *at;) {
		char word[NEAREST_BYTES];
		const size_t n = strcspn(at, "|");

		snprintf(word, sizeof(word), "%.*s", (int)n, at);
		nearest_offer(&near, word);
		at += n + (at[n] == '|');
	}
	const char *best = nearest_found(&near);
	snprintf(problem, size,
	         best ? "%s must be %.240s, not \"%s\" (did you mean %s?)" : "%s must be %.240s, not \"%s\"", label,
	         list ? list : options_words(row), given, best);
	free(list);
}

bool options_check(const option_row *row, const char *label, const char *value, char *problem, size_t bytes)
{
	const char *expected = fault(row, value);
	const bool ranged = row->type == OPTION_COUNT || row->type == OPTION_SECONDS;
	size_t length;

	if (expected) {
		snprintf(problem, bytes, "%s %.60s: expected %s%s", label, value, expected, ranged ? row->field : "");
		return false;
	}
	const char *other = find_other_word(row, value, &length);
	if (other)
		refuse_word(row, label, other, length, problem, bytes);
	return !other;
}

/* Take the option at argv[*i] and its value. */
static bool options_take(options *o, int argc, char **argv, int *i, const option_row *common, const option_row *own)
{
	const char *name = name_in(argv[*i]), *equals = strchr(name, '=');
	size_t n = equals ? (size_t)(equals - name) : strlen(name);
	const option_row *row = options_row(argv[*i], common, own);
	const char *value = equals ? equals + 1 : NULL;

	if (!row) {
		refuse_unknown(o, name, n, common, own);
		return false;
	}
	if (is_flag(row) && value) {
		snprintf(o->problem, sizeof(o->problem), "--%s takes no value", row->name);
		return false;
	}
	if (!is_flag(row) && !value && ++*i < argc)
		value = argv[*i];
	if (!is_flag(row) && !value) {
		snprintf(o->problem, sizeof(o->problem), "--%s needs a value: %.100s", row->name,
		         options_words(row) ? options_words(row) : row->value);
		return false;
	}
	char label[NEAREST_BYTES];
	snprintf(label, sizeof(label), "--%s", row->name);
	if (value && !options_check(row, label, value, o->problem, sizeof(o->problem)))
		return false;
	o->given[o->n_given++] = (option_given){.row = row, .value = value ? value : ""};
	return true;
}

bool options_parse(options *o, int argc, char **argv, const option_row *common, const option_row *own)
{
	bool only_arguments = false;
	size_t room = (size_t)(argc > 0 ? argc : 1);

	*o = (options){.given = calloc(room, sizeof(*o->given)), .arguments = calloc(room, sizeof(*o->arguments))};
	if (!o->given || !o->arguments) {
		snprintf(o->problem, sizeof(o->problem), "out of memory");
		o->out_of_memory = true;
		return false;
	}
	for (int i = 0; i < argc; i++) {
		if (only_arguments || argv[i][0] != '-' || argv[i][1] == '\0') {
			o->arguments[o->n_arguments++] = argv[i];
		} else if (strcmp(argv[i], "--") == 0) {
			only_arguments = true;
		} else if (argv[i][1] != '-' && !long_name(argv[i])) {
			snprintf(o->problem, sizeof(o->problem), "unknown option %.60s", argv[i]);
			return false;
		} else if (!options_take(o, argc, argv, &i, common, own)) {
			return false;
		}
	}
	return true;
}

void options_free(options *o)
{
	for (int i = 0; i < o->n_given; i++)
		if (o->given[i].owned)
			free((char *)(uintptr_t)o->given[i].value);
	free(o->given);
	free(o->arguments);
	*o = (options){0};
}

/* The index of the next value for this option, from i on; n_given: there is none. */
static int next_given(const options *o, const char *name, int i)
{
	while (i < o->n_given && strcmp(o->given[i].row->name, name) != 0)
		i++;
	return i;
}

bool options_differ(const options *a, const options *b, const char *name)
{
	for (int i = 0, j = 0;; i++, j++) {
		i = next_given(a, name, i);
		j = next_given(b, name, j);
		if (i == a->n_given || j == b->n_given)
			return i < a->n_given || j < b->n_given;
		if (strcmp(a->given[i].value, b->given[j].value) != 0)
			return true;
	}
}

const char *options_text(const options *o, const char *name)
{
	for (int i = o->n_given; i-- > 0;)
		if (strcmp(o->given[i].row->name, name) == 0)
			return o->given[i].value;
	return NULL;
}

bool options_flag(const options *o, const char *name)
{
	return options_text(o, name) != NULL;
}

double options_number(const options *o, const char *name, double fallback)
{
	const char *value = options_text(o, name);

	return value ? strtod(value, NULL) : fallback;
}

int64_t options_integer(const options *o, const char *name, int64_t fallback)
{
	const char *value = options_text(o, name);

	return value ? strtoll(value, NULL, 10) : fallback;
}

int64_t options_duration(const options *o, const char *name, int64_t fallback)
{
	const char *value = options_text(o, name);

	return value ? duration(value) : fallback;
}

char *options_write(const option_given *given)
{
	const char *value = is_flag(given->row) ? "" : given->value;
	size_t bytes = strlen(given->row->name) + strlen(value) + 4;
	char *out = malloc(bytes);

	if (out)
		snprintf(out, bytes, "--%s%s%s", given->row->name, is_flag(given->row) ? "" : "=", value);
	return out;
}

/* --- requests ---------------------------------------------------------------------- */

static json_t *list_of(const char *value, bool integers)
{
	json_t *list = json_array();

	for (;;) {
		size_t n = strcspn(value, ",");

		json_array_append_new(list, integers ? json_integer(strtoll(value, NULL, 10)) : json_stringn(value, n));
		if (value[n] == '\0')
			return list;
		value += n + 1;
	}
}

/* The members before, and the one that `value` adds or replaces. */
static json_t *members_of(const char *value, json_t *before)
{
	json_t *members = before ? json_incref(before) : json_object();
	const char *equals = strchr(value, '=');
	char *key = strndup(value, (size_t)(equals - value));
	json_t *one = json_loads(equals + 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
	const bool whole = key && json_object_set_new(members, key, one ? one : json_string(equals + 1)) == 0;

	free(key);
	if (whole)
		return members;
	json_decref(members);
	return NULL;
}

/* A row's value as JSON. `before`: the value already present at its path, or NULL. */
static json_t *value_of(const option_given *g, json_t *before)
{
	switch (g->row->type) {
	case OPTION_FLAG:
		return json_true();
	case OPTION_OFF:
		return json_false();
	case OPTION_INTEGER:
		return json_integer(strtoll(g->value, NULL, 10));
	case OPTION_DURATION:
		return json_integer(duration(g->value));
	case OPTION_NUMBER:
		return json_real(strtod(g->value, NULL));
	case OPTION_INTEGERS:
		return list_of(g->value, true);
	case OPTION_WORDS:
		return list_of(g->value, false);
	case OPTION_SELECTION:
		return strcmp(g->value, "all") == 0 ? json_string("all") : list_of(g->value, true);
	case OPTION_MEMBERS:
		return members_of(g->value, before);
	case OPTION_TEXTS: {
		json_t *list = before ? json_incref(before) : json_array();

		json_array_append_new(list, json_string(g->value));
		return list;
	}
	default:
		return json_string(g->value);
	}
}

static bool write_field(json_t *object, const option_given *g)
{
	const char *path = g->row->field, *dot;

	for (; (dot = strchr(path, '.')); path = dot + 1) {
		char name[64];

		snprintf(name, sizeof(name), "%.*s", (int)(dot - path), path);
		if (!json_object_get(object, name) && json_object_set_new(object, name, json_object()) != 0)
			return false;
		object = json_object_get(object, name);
	}
	return json_object_set_new(object, path, value_of(g, json_object_get(object, path))) == 0;
}

bool options_fill(const options *o, json_t *request)
{
	for (int i = 0; i < o->n_given; i++)
		if (o->given[i].row->field && o->given[i].row->type < OPTION_COUNT &&
		    !write_field(request, &o->given[i]))
			return false;
	return true;
}

/* --- help ---------------------------------------------------------------------------- */

const char *options_words(const option_row *row)
{
	const char *colon = row->value ? strchr(row->value, ':') : NULL;

	if (!row->value || !strchr(row->value, '|'))
		return NULL;
	return colon ? colon + 1 : row->value;
}

int options_value_bytes(const option_row *row)
{
	const char *words = options_words(row);

	if (!row->value)
		return 0;
	return words && words != row->value ? (int)(words - 1 - row->value) : (int)strlen(row->value);
}

char *options_describe(const option_row *row)
{
	const char *help = row->help, *words = options_words(row), *tail = strrchr(help, '(');
	char *out;
	size_t bytes;
	FILE *file;

	if (!words || words == row->value)
		return strdup(help);
	/* The default, which is last, stays so. */
	tail = tail && tail > help && tail[-1] == ' ' && help[strlen(help) - 1] == ')' ? tail - 1 : help + strlen(help);
	if (!(file = open_memstream(&out, &bytes)))
		return NULL;
	fprintf(file, "%.*s%s ", (int)(tail - help), help, memchr(help, ':', (size_t)(tail - help)) ? ";" : ":");
	write_words(file, words);
	fputs(tail, file);
	return fclose(file) == 0 ? out : NULL;
}

/* Columns of a terminal; 80 without one. */
static int columns_of(FILE *file)
{
	enum { USUAL = 80, LEAST = 60 };
	struct winsize size;
	const int fd = fileno(file);

	if (fd < 0 || ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
		return USUAL;
	return size.ws_col < LEAST ? LEAST : size.ws_col;
}

static int characters_of(const char *text, size_t bytes)
{
	int n = 0;

	for (size_t i = 0; i < bytes; i++)
		n += ((unsigned char)text[i] & 0xc0) != 0x80;
	return n;
}

void options_wrap(FILE *file, const char *text, int indent)
{
	const int columns = columns_of(file);
	size_t line;

	for (int at = indent; *text;) {
		const size_t bytes = strcspn(text, " \n");
		const int width = characters_of(text, bytes);

		if (at > indent && at + 1 + width > columns) {
			fprintf(file, "\n%*s", indent, "");
			at = indent;
		}
		at += fprintf(file, "%s%.*s", at > indent ? " " : "", (int)bytes, text) - ((int)bytes - width);
		text += bytes;
		for (; *text == '\n' && text[1] == ' '; text += 1 + line) { /* as it is */
			line = strcspn(text + 1, "\n");
			fprintf(file, "\n%*s%.*s", indent, "", (int)line, text + 1);
			at = columns;
		}
		if (*text == '\n' && at > indent && text[1] == '\n') {
			fputs("\n\n", file);
			fprintf(file, "%*s", indent, "");
			at = indent;
		}
		text += strspn(text, " \n");
	}
	fputc('\n', file);
}

void options_help(FILE *file, const option_row *rows)
{
	enum { COLUMN = 28 };

	for (const option_row *r = rows; r->name; r++) {
		if (!*r->name) {
			fprintf(file, "%s%s\n", r == rows ? "" : "\n", r->help);
			continue;
		}
		char *help = options_describe(r);
		int n = fprintf(file, "  --%s%s%.*s", r->name, r->value ? " " : "", options_value_bytes(r),
		                r->value ? r->value : "");

		if (n >= COLUMN)
			n = fprintf(file, "\n") - 1;
		fprintf(file, "%*s", COLUMN - n, "");
		options_wrap(file, help ? help : r->help, COLUMN);
		free(help);
	}
}
