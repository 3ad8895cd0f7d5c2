/* explain.c - why the model predicts what it predicts: contributions, then weights where they are asked for. */
#include "clients/cli/explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/heat.h"
#include "clients/cli/transfer.h"
#include "gen/options.h"

enum { TOP = 10 };

static const option_row explain_options[] = {
    EXPLAIN_OPTIONS,
    {"top", OPTION_INTEGER, "K", "number of tokens to list (10); with --span the answer has only these", NULL},
    {"format", OPTION_TEXT, "NAME:csv|safetensors|json", "write the numbers in this format", NULL},
    {"output", OPTION_TEXT, "FILE", "output file; the default is stdout (-o)", NULL},
    {"compare", OPTION_TEXT, "TEXT", "also explain this text, and show the differences", "compare.input"},
    {"compare-source", OPTION_TEXT, "TEXT", "also explain the text with this source", "compare.source"},
    {"compare-model", OPTION_TEXT, "ID", "also explain a text with this model", "compare.model"},
    {"html", OPTION_TEXT, "FILE", "also write the whole explanation as one page", NULL},
    {"svg", OPTION_TEXT, "FILE", "also write the first view as a picture", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

bool explain_add_kind(const cli *c, json_t *request)
{
	if (!options_text(&c->options, "against") || options_text(&c->options, "kind"))
		return true;
	return json_object_set_new(json_object_get(request, "target"), "kind", json_string("difference")) == 0;
}

/* The service cuts the rows of a span, which have as many numbers as there are tokens before them. */
static bool add_top(const cli *c, json_t *request)
{
	if (!options_text(&c->options, "span") || !options_text(&c->options, "top"))
		return true;
	return json_object_set_new(request, "top", json_integer(options_integer(&c->options, "top", TOP))) == 0;
}

static json_t *make_request(cli *c, const char *input)
{
	json_t *request = json_object();

	if (!options_text(&c->options, "span"))
		json_object_set_new(request, "aggregate", json_string(EXPLAIN_OPTIONS_AGGREGATE));
	if (request && input && json_object_set_new(request, "input", json_string(input)) != 0) {
		json_decref(request);
		return NULL;
	}
	if (request && options_fill(&c->options, request) && explain_add_kind(c, request) && add_top(c, request))
		return request;
	json_decref(request);
	return NULL;
}

static int write_file(cli *c, json_t *request, const char *type, const char *file)
{
	return transfer_answer(c, "POST", "/v1/explain", json_incref(request), type, file);
}

/* Where the option is given, the answer as that type into its file. */
static int write_drawn(cli *c, json_t *request, const char *option, const char *type)
{
	const char *file = options_text(&c->options, option);

	return file ? write_file(c, request, type, file) : CLI_OK;
}

static const struct {
	const char *name, *type;
} formats[] = {{"csv", "text/csv"}, {"safetensors", "application/vnd.safetensors"}, {"json", "application/json"}};

/* The type of --format; NULL: there is none of that name. */
static const char *type_of(const char *format)
{
	for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
		if (strcmp(formats[i].name, format) == 0)
			return formats[i].type;
	return NULL;
}

/* --- the words: pieces of a line, which goes on in the next where the terminal ends --------------------- */

typedef struct words {
	text *out;
	int width, used;
} words;

static void explain_put(words *w, const char *piece)
{
	int columns = terminal_columns(piece, strlen(piece));

	if (w->width > 0 && w->used > 0 && w->used + 1 + columns > w->width) {
		text_string(w->out, "\n");
		w->used = 0;
	}
	if (w->used > 0)
		text_string(w->out, " ");
	w->used += (w->used > 0) + columns;
	terminal_cut(w->out, piece, strlen(piece), w->width > 0 && columns > w->width ? w->width : columns);
}

static void put_number(words *w, const char *format, double number)
{
	char piece[48];

	snprintf(piece, sizeof(piece), format, number);
	explain_put(w, piece);
}

/* A token or a class in quotes. */
static void put_quoted(words *w, const json_t *named, const char *then)
{
	const json_t *label = json_object_get(named, "label");
	const char *string = json_string_value(label ? label : json_object_get(named, "text"));
	text piece = {0};

	text_string(&piece, "'");
	terminal_escape(&piece, string ? string : "", string ? strlen(string) : 0, false);
	text_format(&piece, "'%s", then);
	explain_put(w, text_get(&piece));
	text_free(&piece);
}

static void put_target(words *w, const json_t *target)
{
	const char *kind = json_string_value(json_object_get(target, "kind"));
	bool logit = kind && strcmp(kind, "logit") == 0, difference = kind && strcmp(kind, "difference") == 0;

	explain_put(w, logit ? "the logit of" : "why");
	put_quoted(w, json_object_get(target, "token"), logit || difference ? "" : ",");
	if (difference) {
		explain_put(w, "and not");
		put_quoted(w, json_object_get(target, "other"), "");
	} else if (!logit) {
		explain_put(w, "against all other options");
	}
	put_number(w, "(logit %+.4g,", json_number_value(json_object_get(target, "logit")));
	put_number(w, "probability %.3g %%)", 100 * exp(json_number_value(json_object_get(target, "log_probability"))));
	if (difference && json_is_true(json_object_get(target, "automatic")))
		explain_put(w, "- nearly certain, so against its strongest rival");
}

/* Show all parts of the score for contributions, and the available sums for other methods; reader: NULL if none is
 * separate. */
static void put_sums(words *w, const json_t *parts, const json_t *reader, double reads)
{
	const json_t *sums = json_object_get(parts, "sums"), *difference = json_object_get(parts, "difference");

	put_number(w, sums ? "score %+.4g =" : "score %+.4g;", json_number_value(json_object_get(parts, "score")));
	if (sums)
		put_number(w, "tokens %+.4g,", json_number_value(json_object_get(sums, "tokens")));
	if (reader) {
		explain_put(w, "reader");
		put_quoted(w, reader, "");
		put_number(w, sums || difference ? "%+.4g," : "%+.4g", reads);
	}
	if (json_object_get(sums, "source"))
		put_number(w, "source %+.4g,", json_number_value(json_object_get(sums, "source")));
	if (sums) {
		put_number(w, "positions %+.4g,", json_number_value(json_object_get(sums, "positions")));
		put_number(w, "biases %+.4g,", json_number_value(json_object_get(sums, "biases")));
		put_number(w, "rounding %+.1g", json_number_value(json_object_get(sums, "rounding")));
	}
	if (difference) {
		put_number(w, "from the baseline %+.4g,", json_number_value(difference));
		put_number(w, "completeness error %+.1g",
		           json_number_value(json_object_get(parts, "completeness_error")));
	}
}

/* --- the answer ---------------------------------------------------------------------------------------------- */

static size_t listed(const cli *c)
{
	double k = options_number(&c->options, "top", TOP);

	return k < 0 ? 0 : (size_t)k;
}

/* Contributions, or the signed numbers of another method. */
static const json_t *explain_parts_of(const json_t *answer)
{
	const json_t *contributions = json_object_get(answer, "contributions");
	const json_t *parts = contributions ? contributions : json_object_get(answer, "attribution");

	return json_is_object(parts) ? parts : NULL;
}

/* A number for each token up to the position and to the last that is listed, of parts that have only the largest. */
static json_t *numbers_of_top(const json_t *tokens, const json_t *parts, const json_t *reader)
{
	size_t i, position = (size_t)json_integer_value(json_object_get(parts, "position")), n = position + 1;
	json_t *numbers = json_array(), *pair;

	json_array_foreach(json_object_get(parts, "top"), i, pair)
	{
		size_t end = (size_t)json_integer_value(json_array_get(pair, 0)) + 1;

		n = end > n ? end : n;
	}
	if (n > json_array_size(tokens))
		n = json_array_size(tokens);
	while (json_array_size(numbers) < n && json_array_append_new(numbers, json_real(0)) == 0)
		;
	json_array_foreach(json_object_get(parts, "top"), i, pair)
	    json_array_set(numbers, (size_t)json_integer_value(json_array_get(pair, 0)), json_array_get(pair, 1));
	if (reader && position < n)
		json_array_set_new(numbers, position, json_real(json_number_value(reader)));
	return numbers;
}

/* True if one token reads the others. */
static bool has_reader(const json_t *parts)
{
	const json_t *reader = show_get(parts, "sums.reader");

	return reader ? json_number_value(reader) != 0 : show_get(parts, "target.token.text") != NULL;
}

/* A list of the tokens of a source: numbers with a sign, or weights; nothing where there are none. */
static bool show_source(const cli *c, const json_t *source, const json_t *numbers, bool is_signed, text *out)
{
	heat h;
	bool made = json_array_size(numbers) == 0 ||
	            (is_signed ? heat_new_signed(&h, source, numbers, false) : heat_new(&h, source, numbers));

	if (!made || json_array_size(numbers) == 0)
		return made;
	text_string(out, "\nof the source:\n\n");
	heat_list(&h, listed(c), c->out.colour, c->out.width, out);
	heat_free(&h);
	return true;
}

/* The reader's own number is among the sums. */
static void put_nothing_listed(words *w)
{
	static const char note[] =
	    "no token precedes the one that the model reads here, so none has a number; a longer "
	    "prompt has more to explain";

	for (const char *at = note; *at;) {
		char word[32];
		const size_t n = strcspn(at, " ");

		snprintf(word, sizeof(word), "%.*s", (int)n, at);
		explain_put(w, word);
		at += n + (at[n] == ' ');
	}
	text_string(w->out, "\n");
}

/* The numbers of one prediction at a position; map: with the whole text, in colour. False: they are not such. */
static bool show_parts(const cli *c, const json_t *tokens, const json_t *parts, size_t position, bool map, text *out)
{
	const json_t *reader = show_get(parts, "sums.reader");
	json_t *numbers = json_object_get(parts, "top") ? numbers_of_top(tokens, parts, reader)
	                                                : json_incref(json_object_get(parts, "tokens"));
	bool reads = has_reader(parts);
	size_t n = json_array_size(numbers), at = show_get(parts, "target.token.label") && n > 0 ? n - 1 : position;
	double part = json_number_value(json_array_get(numbers, at));
	words title = {out, c->out.width, 0}, sums = title, note = title;
	heat h;
	bool made = heat_new_signed(&h, tokens, numbers, reads && at + 1 == n);

	if (made) {
		put_target(&title, json_object_get(parts, "target"));
		text_string(out, "\n\n");
		if (h.listed == 0)
			put_nothing_listed(&note);
		else
			(map ? heat_show : heat_list)(&h, listed(c), c->out.colour, c->out.width, out);
		text_string(out, "\n");
		put_sums(&sums, parts, reads && part != 0 ? json_array_get(tokens, at) : NULL, part);
		text_string(out, "\n");
	}
	heat_free(&h);
	json_decref(numbers);
	return made;
}

/* Prediction after prediction. */
static bool show_span(const cli *c, const json_t *answer, text *out)
{
	const json_t *tokens = json_object_get(answer, "tokens"), *rows = show_get(answer, "span.rows"), *row;
	bool whole = true;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		words at = {out, c->out.width, 0};

		text_string(out, i > 0 ? "\n" : "");
		put_number(&at, "position %.0f", json_number_value(json_object_get(row, "position")));
		put_quoted(&at, json_array_get(tokens, (size_t)json_integer_value(json_object_get(row, "position"))),
		           ":");
		text_string(out, "\n");
		whole = whole && show_parts(c, tokens, row,
		                            (size_t)json_integer_value(json_object_get(row, "position")), false, out);
	}
	if (json_is_true(show_get(answer, "span.has_more")))
		cli_note(c, "more predictions follow: --after %lld",
		         (long long)json_integer_value(json_object_get(json_array_get(rows, i - 1), "position")));
	return whole;
}

static bool show_weights(const cli *c, const json_t *answer, text *out)
{
	const json_t *source = show_get(answer, "source.tokens");
	heat h;

	if (!heat_new(&h, json_object_get(answer, "tokens"), show_get(answer, "aggregate.alpha")))
		return false;
	heat_show(&h, listed(c), c->out.colour, c->out.width, out);
	heat_free(&h);
	return show_source(c, source, show_get(answer, "source.aggregate.alpha"), false, out);
}

/* Options that choose among the weights ask for them. */
static bool weights_wanted(const cli *c)
{
	static const char *const choices[] = {"layers", "heads", "rounds", "aggregate"};
	const char *method = options_text(&c->options, "method");

	for (size_t i = 0; i < sizeof(choices) / sizeof(*choices); i++)
		if (!method && options_text(&c->options, choices[i]))
			return true;
	return method && strcmp(method, "alpha") == 0;
}

/* The differences of the tokens that both texts, or both sources, have, at their places in the first; parts: the
 * first's, NULL: its weights are compared. */
static bool show_pairs(const cli *c, const json_t *tokens, const json_t *parts, const json_t *pairs, const char *title,
                       text *out)
{
	json_t *numbers = json_array(), *pair;
	const json_t *of_first = json_object_get(parts, "tokens");
	size_t i, n = json_array_size(of_first ? of_first : tokens);
	heat h;

	while (json_array_size(numbers) < n && json_array_append_new(numbers, json_real(0)) == 0)
		;
	json_array_foreach(pairs, i, pair)
	    json_array_set(numbers, (size_t)json_integer_value(json_array_get(pair, 0)), json_array_get(pair, 2));
	bool made = heat_new_signed(&h, tokens, numbers, parts && has_reader(parts));
	h.unit = parts ? h.unit : "weight";
	if (made) {
		text_format(out, "\n%s:\n\n", title);
		heat_list(&h, listed(c), c->out.colour, c->out.width, out);
	}
	heat_free(&h);
	json_decref(numbers);
	return made;
}

static bool show_differences(const cli *c, const json_t *answer, text *out)
{
	const json_t *parts = explain_parts_of(answer), *of_source = show_get(answer, "compare.same_source_tokens");

	return show_pairs(c, json_object_get(answer, "tokens"), parts, show_get(answer, "compare.same_tokens"),
	                  "The second minus the first, for equal tokens", out) &&
	       (!of_source ||
	        show_pairs(c, show_get(answer, "source.tokens"), json_object_get(parts, "source"), of_source,
	                   "The second minus the first, for equal tokens of the sources", out));
}

static bool show_explanation(cli *c, const json_t *answer, text *out)
{
	const json_t *tokens = json_object_get(answer, "tokens"), *parts = explain_parts_of(answer);
	bool span = json_is_object(json_object_get(answer, "span")), whole = true;
	bool weights = !span && (weights_wanted(c) || !parts);

	if (!parts && !span && !options_text(&c->options, "method"))
		cli_note(c, "the text is too long for contributions: these are weights");
	if (span)
		whole = show_span(c, answer, out);
	else if (parts)
		whole = show_parts(c, tokens, parts, (size_t)json_integer_value(json_object_get(answer, "position")),
		                   true, out) &&
		        show_source(c, show_get(answer, "source.tokens"), show_get(parts, "source.tokens"), true, out);
	if (parts && weights)
		text_string(out, "\n");
	if (weights)
		whole = whole && show_weights(c, answer, out);
	return whole;
}

static void show_side(const char *which, const json_t *answer, text *out)
{
	const char *model = json_string_value(json_object_get(answer, "model"));

	text_format(out, "%s (", which);
	terminal_escape(out, model ? model : "", model ? strlen(model) : 0, false);
	text_string(out, "): ");
}

static int print(cli *c, const json_t *answer)
{
	const json_t *second = json_object_get(answer, "compare");
	text out = {0};

	if (second)
		show_side("First", answer, &out);
	bool whole = show_explanation(c, answer, &out);
	if (second) {
		text_string(&out, "\n");
		show_side("Second", second, &out);
		whole = whole && show_explanation(c, second, &out) && show_differences(c, answer, &out);
	}
	if (whole)
		fputs(text_get(&out), stdout);
	text_free(&out);
	return whole ? CLI_OK : cli_fail("the service's answer is not an explanation");
}

static int show(cli *c, json_t *request)
{
	json_t *answer = http_json(c->http, "POST", "/v1/explain", json_incref(request));
	int status = answer && !c->json ? print(c, answer) : cli_answer(c, json_incref(answer));

	json_decref(answer);
	return status;
}

static int explain_command(cli *c, const char *input)
{
	const char *format = options_text(&c->options, "format"), *file = options_text(&c->options, "output");
	json_t *request = make_request(c, input);

	if (!request)
		return cli_fail("the text is not valid UTF-8");
	int status = format ? write_file(c, request, type_of(format), file ? file : "-") : show(c, request);
	if (status == CLI_OK)
		status = write_drawn(c, request, "html", "text/html");
	if (status == CLI_OK)
		status = write_drawn(c, request, "svg", "image/svg+xml");
	json_decref(request);
	return status;
}

/* The error in the options for output formats; NULL: none. */
static const char *fault(const cli *c)
{
	const char *format = options_text(&c->options, "format");

	if (format && !type_of(format))
		return "--format must be csv, safetensors or json";
	if (!format && options_text(&c->options, "output"))
		return "-o needs a --format: csv, safetensors or json";
	return NULL;
}

static int explain_run(cli *c)
{
	bool session = options_text(&c->options, "session") != NULL;

	if (fault(c))
		return cli_usage("%s", fault(c));
	if (!session && !options_text(&c->options, "model"))
		return cli_usage("say which --model (additive models list shows them), or --session");
	if (session && cli_argument(c, 0))
		return cli_usage("a --session has its text already");
	char *input = session ? NULL : cli_argument_or_stdin(c, 0);
	if (!session && !input)
		return cli_usage("give a TEXT, or pipe one in");
	int status = explain_command(c, input);
	free(input);
	return status;
}

const command explain_commands[] = {
    {"explain", "--model ID [TEXT]", 0, 1, "show why the model predicts what it predicts",
     "Contributions are the signed parts of the tokens in the score of the prediction, in logits: they sum to it with\n"
     "norms, attention weights and gates held fixed, and do not say what would happen without a token. The last "
     "token,\n"
     "the reader, stands among the sums.\n"
     "--method alpha, or an option that chooses layers, heads, rounds or their aggregate, shows weights: the share "
     "with\n"
     "which the model's attention pooled each token. They sum to 1, and do not say why this token was predicted.\n"
     "--span 2,40 explains every prediction from the one behind token 2 to the one behind token 40, and --after and "
     "--limit\n"
     "a page of them.\n"
     "--compare, --compare-source and --compare-model explain a second text, or the text behind a second source or in "
     "a\n"
     "second model, and list how the numbers of the same tokens differ.\n"
     "--format writes all numbers of the answer, -o FILE into a file: a line for each in csv, tensors in safetensors.\n"
     "Without TEXT it is read from stdin.",
     explain_options, explain_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
