/* classify.c - the classes and the vectors of texts, and what fills in their masks. Texts come from the arguments, or
 * one a line from a file or stdin; requests hold BATCH of them, so that a long file needs no memory of its size and its
 * answers come as they are made.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/cli/cli.h"
#include "clients/cli/heat.h"
#include "gen/limits.h"
#include "gen/options.h"

enum { BATCH = 1024, EXPLAINED_BATCH = 16, TOP = 10 };

static const option_row classify_options[] = {
    CLASSIFY_OPTIONS,
    {"pair", OPTION_TEXT, "TEXT", "second text of a pair; TEXT is the first", NULL},
    {"top", OPTION_INTEGER, "K", "with --explain: number of tokens to list for each text (10)", NULL},
    {"file", OPTION_TEXT, "FILE", "classify each line of FILE (-: stdin)", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};
static const option_row fill_mask_options[] = {
    FILL_MASK_OPTIONS,
    {"file", OPTION_TEXT, "FILE", "fill in each line of FILE (-: stdin)", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};
static const option_row embed_options[] = {
    EMBEDDING_OPTIONS,
    {"file", OPTION_TEXT, "FILE", "the vectors of each line of FILE (-: stdin)", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

/* --- inputs -------------------------------------------------------------------------------- */

typedef struct inputs {
	const cli *c;
	FILE *file;       /* NULL: the arguments */
	const char *name; /* name of the file */
	int first;        /* argument that is a text */
	size_t next;      /* texts or lines, so far */
	bool bad;         /* a text cannot be sent, and that has been said */
} inputs;

/* The next line that is not empty. False: there is none. */
static bool next_line(inputs *in, char **line, size_t *room, size_t *bytes)
{
	ssize_t n;

	while ((n = getline(line, room, in->file)) > 0) {
		in->next++;
		while (n > 0 && ((*line)[n - 1] == '\n' || (*line)[n - 1] == '\r'))
			n--;
		if (n > 0) {
			*bytes = (size_t)n;
			return true;
		}
	}
	in->bad = ferror(in->file) != 0;
	if (in->bad)
		cli_fail("cannot read %s: %s", in->name, strerror(errno));
	return false;
}

/* Put a text into the batch, if it is one that can be sent. */
static void add_text(inputs *in, json_t *batch, const char *string, size_t bytes)
{
	const char *kind = in->file ? "line" : "text";

	in->bad = true;
	if (bytes == 0)
		cli_fail("%s %zu is empty", kind, in->next);
	else if (bytes > CLASSIFY_INPUT_MAX_BYTES)
		cli_fail("%s %zu has more than %d bytes", kind, in->next, CLASSIFY_INPUT_MAX_BYTES);
	else if (json_array_append_new(batch, json_stringn(string, bytes)) != 0)
		cli_fail("%s %zu is not valid UTF-8", kind, in->next);
	else
		in->bad = false;
}

/* The next texts: at most BATCH, or fewer if each token has weights; an empty array after the last. */
static json_t *next_batch(inputs *in)
{
	json_t *batch = json_array();
	size_t most = options_flag(&in->c->options, "explain") ? EXPLAINED_BATCH : BATCH;
	char *line = NULL;
	size_t room = 0, bytes = 0;
	const char *argument = NULL;

	while (json_array_size(batch) < most && !in->bad) {
		if (in->file ? !next_line(in, &line, &room, &bytes)
		             : !(argument = cli_argument(in->c, in->first + (int)in->next++)))
			break;
		add_text(in, batch, in->file ? line : argument, in->file ? bytes : strlen(argument));
	}
	free(line);
	return batch;
}

/* --- requests ------------------------------------------------------------------------------- */

/* The request for some texts. */
typedef struct method {
	const char *path;
	int (*show)(cli *c, json_t *answer, const json_t *texts); /* the answer is stolen */
	bool names_model;                                         /* by the first argument; else by --model */
} method;

/* Send all texts, and show each answer with its texts. */
static int send_all(cli *c, inputs *in, const method *m)
{
	const char *pair = options_text(&c->options, "pair");
	int status = CLI_OK;

	for (bool sent = false; status == CLI_OK; sent = true) {
		json_t *texts = next_batch(in);
		json_t *request = m->names_model ? json_pack("{s:s}", "model", cli_argument(c, 0)) : json_object();

		if (in->bad) {
			status = CLI_FAILED;
		} else if (json_array_size(texts) == 0) {
			json_decref(texts);
			json_decref(request);
			return sent ? status : cli_fail("there is no text");
		} else if ((pair ? json_object_set_new(
		                       request, "input",
		                       json_pack("{s:O, s:s}", "text", json_array_get(texts, 0), "text_pair", pair))
		                 : json_object_set(request, "input", texts)) != 0 ||
		           !options_fill(&c->options, request)) {
			status = cli_fail("a text is not valid UTF-8");
		} else {
			json_t *answer = http_json(c->http, "POST", m->path, json_incref(request));

			status = answer && !c->json ? m->show(c, answer, texts) : cli_answer(c, answer);
		}
		json_decref(texts);
		json_decref(request);
	}
	return status;
}

static int classify_call(cli *c, const method *m)
{
	const char *file = options_text(&c->options, "file");
	inputs in = {.c = c, .first = m->names_model};

	if (!m->names_model && !options_text(&c->options, "model"))
		return cli_usage("say which --model (additive models list shows them)");
	if (file && cli_argument(c, in.first))
		return cli_usage("give TEXT or a --file, not both");
	if (options_text(&c->options, "pair") && (!cli_argument(c, 0) || cli_argument(c, 1)))
		return cli_usage("--pair goes with one TEXT");
	if (!file && !cli_argument(c, in.first)) {
		if (isatty(STDIN_FILENO))
			return cli_usage("give a TEXT or a --file, or pipe lines in");
		file = "-";
	}
	in.name = file;
	if (file)
		in.file = strcmp(file, "-") == 0 ? stdin : fopen(file, "r");
	if (file && !in.file)
		return cli_fail("cannot read %s: %s", file, strerror(errno));
	int status = send_all(c, &in, m);
	if (in.file && in.file != stdin)
		fclose(in.file);
	return status;
}

/* --- answers --------------------------------------------------------------------------------- */

/* Show the weights from which the classes of each text follow. False: the answer has no explanation. */
static bool show_weights(const cli *c, const json_t *data)
{
	heat h;
	text out = {0};
	bool all = true;
	size_t n = json_array_size(data);
	double k = options_number(&c->options, "top", TOP);

	for (size_t i = 0; i < n && all; i++) {
		const json_t *explanation = json_object_get(json_array_get(data, i), "explanation");

		text_string(&out, "\n");
		if (n > 1)
			text_format(&out, "text %zu\n", i + 1);
		all = heat_new(&h, json_object_get(explanation, "tokens"), show_get(explanation, "aggregate.alpha")) &&
		      h.n > 0;
		heat_show(&h, k < 0 ? 0 : (size_t)k, c->out.colour, c->out.width, &out);
		heat_free(&h);
	}
	fputs(text_get(&out), stdout);
	text_free(&out);
	return all;
}

/* The answer is stolen. All classes of one text; the likeliest of each of several, with its text. */
static int show_classes(cli *c, json_t *answer, const json_t *texts)
{
	static const show_column all[] = {
	    {"LABEL", "label", SHOW_PLAIN}, {"PROBABILITY", "probability", SHOW_PLAIN}, {NULL, NULL, SHOW_PLAIN}};
	static const show_column first[] = {{"LABEL", "label", SHOW_PLAIN},
	                                    {"PROBABILITY", "probability", SHOW_PLAIN},
	                                    {"TEXT", "text", SHOW_PLAIN},
	                                    {NULL, NULL, SHOW_PLAIN}};
	const json_t *data = json_object_get(answer, "data");
	size_t n = json_array_size(data), cut = 0;

	for (size_t i = 0; i < n; i++) {
		json_t *item = json_array_get(data, i);

		cut += json_is_true(json_object_get(item, "truncated"));
		json_object_set(item, "text", json_array_get(texts, i));
	}
	show_table(stdout, c->out.width, n == 1 ? json_object_get(json_array_get(data, 0), "labels") : data,
	           n == 1 ? all : first);
	if (cut > 0)
		cli_note(c, "%zu of %zu texts were too long for the model and have been cut.", cut, n);
	bool shown = !options_flag(&c->options, "explain") || show_weights(c, data);
	json_decref(answer);
	return shown ? CLI_OK : cli_fail("the service's answer is not an explanation");
}

/* A line of numbers for each text. The answer is stolen. */
static int show_vectors(cli *c, json_t *answer, const json_t *texts)
{
	const json_t *data = json_object_get(answer, "data");

	(void)c;
	(void)texts;
	for (size_t i = 0; i < json_array_size(data); i++) {
		const json_t *vector = json_object_get(json_array_get(data, i), "embedding");

		for (size_t k = 0; k < json_array_size(vector); k++)
			printf("%s%.9g", k ? " " : "", json_number_value(json_array_get(vector, k)));
		putchar('\n');
	}
	json_decref(answer);
	return CLI_OK;
}

/* Each text filled in, then the candidates of each of its masks. The answer is stolen. */
static int show_masks(cli *c, json_t *answer, const json_t *texts)
{
	static const show_column filled[] = {{"FILLED IN", "text", SHOW_PLAIN}, {NULL, NULL, SHOW_PLAIN}};
	static const show_column candidates[] = {{"TOKEN", "token", SHOW_PLAIN},
	                                         {"PROBABILITY", "probability", SHOW_PLAIN},
	                                         {"TEXT", "text", SHOW_PLAIN},
	                                         {NULL, NULL, SHOW_PLAIN}};
	const json_t *data = json_object_get(answer, "data");

	(void)texts;
	show_table(stdout, c->out.width, data, filled);
	for (size_t i = 0; i < json_array_size(data); i++) {
		const json_t *masks = json_object_get(json_array_get(data, i), "masks");
		size_t n = json_array_size(masks);

		for (size_t m = 0; m < n; m++) {
			putchar('\n');
			if (json_array_size(data) > 1)
				printf("text %zu, ", i + 1);
			printf("mask %zu of %zu\n", m + 1, n);
			show_table(stdout, c->out.width, json_object_get(json_array_get(masks, m), "candidates"),
			           candidates);
		}
	}
	json_decref(answer);
	return CLI_OK;
}

static int classify_run(cli *c)
{
	return classify_call(c, &(method){"/v1/classify", show_classes, false});
}

static int embed_run(cli *c)
{
	return classify_call(c, &(method){"/v1/embeddings", show_vectors, false});
}

static int fill_mask_run(cli *c)
{
	return classify_call(c, &(method){"/v1/fill-mask", show_masks, true});
}

const command classify_commands[] = {
    {"classify", "--model ID [TEXT...]", 0, 1 << 20, "show the classes of texts",
     "One text: all classes with their probabilities. Several texts: the likeliest class of each. Without TEXT each "
     "line of stdin is "
     "a text. "
     "With --explain also the tokens with the largest attention weights.",
     classify_options, classify_run},
    {"embed", "--model ID [TEXT...]", 0, 1 << 20, "print the vectors of texts",
     "A line of numbers for each text. Without TEXT each line of stdin is a text.", embed_options, embed_run},
    {"fill-mask", "MODEL [TEXT...]", 1, 1 << 20, "fill in the masks of texts",
     "Each \"[MASK]\" in TEXT, or what the model's tokenizer calls its mask token, is a token to be guessed from those "
     "on both sides. Without TEXT each line of stdin is a text.",
     fill_mask_options, fill_mask_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
