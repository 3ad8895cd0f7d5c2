/* complete.c - the words before the last are read as main.c and options_parse read them; what they leave open is what
 * the last one can be. */
#include "clients/cli/complete.h"

#include <stdlib.h>
#include <string.h>

#include "clients/cli/commands.h"
#include "clients/cli/names.h"

typedef struct line {
	const command *k;          /* NULL: not named yet */
	const char *group;         /* named without its second word, or NULL */
	const option_row *pending; /* its value is the last word, or NULL */
	bool unknown;              /* a word is no command */
	bool helps;                /* the line begins with "help": only commands follow */
	bool only_arguments;       /* after "--" */
	int n_arguments;
} line;

void complete_offer(completion *out, const char *last, const char *name, const char *help)
{
	if (strncmp(name, last + out->kept, strlen(last + out->kept)) == 0)
		text_format(&out->words, "%.*s%s\t%s\n", out->kept, last, name, help);
}

void complete_free(completion *c)
{
	text_free(&c->words);
}

/* --- the words before ------------------------------------------------------------------------- */

static const option_row *complete_row_of(const line *l, const char *word)
{
	return options_row(word, commands_common, l->k ? l->k->options : NULL);
}

static void take_value(completion *out, const option_row *row, const char *value)
{
	if (strcmp(row->name, "url") == 0)
		out->url = value;
	if (strcmp(row->name, "api-key") == 0)
		out->key = value;
	if (strcmp(row->name, "ca") == 0)
		out->issuers = value;
}

/* An option before the last word; returns the words that it takes. */
static int take_option(completion *out, line *l, int left, char **words)
{
	const option_row *row = complete_row_of(l, words[0]);
	const char *equals = strchr(words[0], '=');

	if (!row || !options_takes_value(row))
		return 1;
	if (equals)
		take_value(out, row, equals + 1);
	else if (left == 1)
		l->pending = row;
	else
		take_value(out, row, words[1]);
	return equals || left == 1 ? 1 : 2;
}

/* A word before the last that is no option; returns the words that it takes. */
static int take_word(line *l, int left, char **words)
{
	int taken = 1;

	if (l->k) {
		l->n_arguments++;
	} else if (left == 1 && commands_is_group(words[0])) {
		l->group = words[0];
	} else if (!l->helps && strcmp(words[0], "help") == 0) {
		l->helps = true;
	} else if ((l->k = commands_find(left, words, &taken)) == NULL) {
		l->unknown = true;
		taken = 1;
	}
	return taken;
}

static line read_words(completion *out, int n, char **words)
{
	line l = {0};

	for (int i = 0; i < n;) {
		if (l.only_arguments || words[i][0] != '-' || words[i][1] == '\0') {
			i += take_word(&l, n - i, words + i);
		} else if (strcmp(words[i], "--") == 0) {
			l.only_arguments = true;
			i++;
		} else {
			i += take_option(out, &l, n - i, words + i);
		}
	}
	return l;
}

/* --- the last one -------------------------------------------------------------------------------- */

/* "a|b" */
static void offer_choices(completion *out, const char *last, const char *choices, const char *help)
{
	for (const char *end; *choices; choices = end + (*end == '|')) {
		char *one = strndup(choices, strcspn(choices, "|"));

		end = choices + strcspn(choices, "|");
		if (one)
			complete_offer(out, last, one, help);
		free(one);
	}
}

/* Kind of the word in a usage line: "FILE", "DIR", … */
static complete_kind complete_kind_of(const char *word, size_t n)
{
	static const struct {
		const char *word;
		complete_kind kind;
	} kinds[] = {{"FILE", COMPLETE_FILES},
	             {"DIR", COMPLETE_FOLDERS},
	             {"FOLDER", COMPLETE_FOLDERS},
	             {"TO", COMPLETE_FOLDERS},
	             {"FROM", COMPLETE_FOLDERS}};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strlen(kinds[i].word) == n && memcmp(kinds[i].word, word, n) == 0)
			return kinds[i].kind;
	return COMPLETE_WORDS;
}

/* Words of options whose table has none, since each is a source in a folder of the engine. */
static const char *built_words(const option_row *row)
{
#define OBJECTIVE(name) #name "|"
#define OPTIMIZER(name) #name "|"
	static const char objectives[] =
#include "gen/objectives.def"
	    ;
	static const char optimizers[] =
#include "gen/optimizers.def"
	    ;

	return strcmp(row->name, "objective") == 0   ? objectives
	       : strcmp(row->name, "optimizer") == 0 ? optimizers
	                                             : NULL;
}

/* The value begins after `kept` bytes of the last word. */
static void offer_values(completion *out, const option_row *row, const char *last, int kept)
{
	const char *choices = options_words(row) ? options_words(row) : built_words(row);
	const char *comma = strrchr(last + kept, ',');

	out->kept = row->type == OPTION_WORDS && comma ? (int)(comma + 1 - last) : kept;
	if (choices)
		offer_choices(out, last, choices, row->help);
	out->list = names_of_option(row);
	out->kind = complete_kind_of(row->value, (size_t)options_value_bytes(row));
}

static void offer_options(completion *out, const char *last, const option_row *rows)
{
	for (const option_row *r = rows; r && r->name; r++) {
		text word = {0};

		text_format(&word, "--%s", r->name);
		if (*r->name)
			complete_offer(out, last, text_get(&word), r->help);
		text_free(&word);
	}
}

/* The first words of commands, or the second ones of a group. */
static void offer_commands(completion *out, const char *last, const char *group)
{
	char before[COMMANDS_WORD_BYTES] = "", word[COMMANDS_WORD_BYTES], summary[COMMANDS_SUMMARY_BYTES];
	const command *k;

	for (int i = 0; (k = commands_at(i)); i++) {
		bool same = strcmp(commands_word(k, word), before) == 0;

		strcpy(before, word);
		if (!group && !same)
			complete_offer(out, last, word, commands_summary(k, summary));
		if (group && strcmp(word, group) == 0)
			complete_offer(out, last, k->name + strlen(group) + 1, k->summary);
	}
}

static void offer_argument(completion *out, const line *l, const char *last)
{
	char word[NAMES_WORD_BYTES];

	if (!names_argument(l->k, l->n_arguments, word))
		return;
	if (strchr(word, '|'))
		offer_choices(out, last, word, l->k->summary);
	out->list = names_of_argument(l->k, l->n_arguments);
	out->kind = complete_kind_of(word, strlen(word));
	if (strcmp(word, "DIR") == 0) /* a model is a folder or an archive */
		out->kind = COMPLETE_FILES;
}

static void offer_option(completion *out, const line *l, const char *last)
{
	const char *equals = strchr(last, '=');
	const option_row *row = equals ? complete_row_of(l, last) : NULL;

	if (row && options_takes_value(row))
		offer_values(out, row, last, (int)(equals + 1 - last));
	if (equals)
		return;
	offer_options(out, last, l->k ? l->k->options : NULL);
	offer_options(out, last, commands_common);
}

void complete_line(completion *out, int n, char **words)
{
	const char *last = words[n - 1];

	*out = (completion){0};
	const line l = read_words(out, n - 1, words);
	if (l.pending) {
		offer_values(out, l.pending, last, 0);
	} else if (*last == '-' && !l.only_arguments) {
		offer_option(out, &l, last);
	} else if (l.k) {
		if (!l.helps)
			offer_argument(out, &l, last);
	} else if (!l.unknown) {
		offer_commands(out, last, l.group);
		if (!l.group && !l.helps)
			complete_offer(out, last, "help", "what a command does and takes");
	}
}
