/* tokenize.c - text to tokens and back; tokenizers. One is trained on files of this machine, so that is the engine's:
 * this program becomes the `additived` beside it. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/cli/child.h"
#include "clients/cli/cli.h"
#include "gen/options.h"

static const option_row tokenize_options[] = {TOKENIZE_OPTIONS, {NULL, OPTION_FLAG, NULL, NULL, NULL}};
static const option_row detokenize_options[] = {DETOKENIZE_OPTIONS, {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const option_row train_options[] = {
    {"out", OPTION_TEXT, "DIR", "the folder for the tokenizer's files (required)", NULL},
    {"type", OPTION_TEXT, "TYPE:sentencepiece|bpe", "the kind of tokenizer (sentencepiece)", "type"},
    {"model-type", OPTION_TEXT, "NAME:unigram|bpe|word|char", "how text is split into pieces (unigram)", "model_type"},
    {"vocab-size", OPTION_INTEGER, "N", "number of tokens (8000)", "vocab_size"},
    {"character-coverage", OPTION_NUMBER, "X", "the share of characters that have pieces (0.9995)",
     "character_coverage"},
    {"normalization", OPTION_TEXT, "NAME:nmt_nfkc|nfkc|nmt_nfkc_cf|nfkc_cf|identity",
     "what is done to the text first (nmt_nfkc)", "normalization"},
    {"byte-fallback", OPTION_FLAG, NULL, "characters without a piece become bytes", "byte_fallback"},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int print_pieces(const cli *c, json_t *answer)
{
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},     {"START", "start", SHOW_PLAIN},
	                                      {"END", "end", SHOW_PLAIN},   {"PIECE", "piece", SHOW_PLAIN},
	                                      {"TEXT", "text", SHOW_PLAIN}, {NULL, NULL, SHOW_PLAIN}};

	return cli_table(c, answer, "pieces", columns);
}

static int print_ids(const cli *c, json_t *answer)
{
	const json_t *tokens = json_object_get(answer, "tokens");

	if (!tokens || c->json)
		return cli_answer(c, answer);
	for (size_t i = 0; i < json_array_size(tokens); i++)
		printf("%s%" JSON_INTEGER_FORMAT, i ? " " : "", json_integer_value(json_array_get(tokens, i)));
	printf("\n");
	json_decref(answer);
	return CLI_OK;
}

static int tokenize(cli *c, int (*print)(const cli *c, json_t *answer))
{
	char *string = options_text(&c->options, "model") ? cli_argument_or_stdin(c, 0) : NULL;
	json_t *request = string ? json_pack("{s:s}", "text", string) : NULL;
	int status;

	if (!options_text(&c->options, "model"))
		status = cli_usage("say which --model");
	else if (!string)
		status = cli_usage("give a TEXT, or pipe one in");
	else if (!request || !options_fill(&c->options, request))
		status = cli_fail("the text is not valid UTF-8");
	else
		status = print(c, http_json(c->http, "POST", "/v1/tokenize", json_incref(request)));
	json_decref(request);
	free(string);
	return status;
}

static int tokenize_run(cli *c)
{
	return tokenize(c, print_pieces);
}

static int encode_run(cli *c)
{
	return tokenize(c, print_ids);
}

static int show_run(cli *c)
{
	json_t *answer = http_json(c->http, "GET", http_path(c->http, "/v1/models/%s", cli_argument(c, 0)), NULL);
	json_t *tokenizer = json_object_get(json_object_get(answer, "additive"), "tokenizer");

	if (!tokenizer)
		return cli_answer(c, answer);
	json_incref(tokenizer);
	json_decref(answer);
	return cli_answer(c, tokenizer);
}

static int detokenize_run(cli *c)
{
	const char *model = options_text(&c->options, "model");
	json_t *tokens = json_array();

	for (int i = 0; i < c->options.n_arguments; i++) {
		char *end;
		const char *argument = cli_argument(c, i);

		json_array_append_new(tokens, json_integer(strtoll(argument, &end, 10)));
		if (end == argument || *end) {
			json_decref(tokens);
			return cli_usage("%s is not a token's id", argument);
		}
	}
	if (!model) {
		json_decref(tokens);
		return cli_usage("say which --model");
	}
	json_t *answer =
	    http_json(c->http, "POST", "/v1/detokenize", json_pack("{s:s, s:o}", "model", model, "tokens", tokens));
	const json_t *string = json_object_get(answer, "text");
	if (!string || c->json)
		return cli_answer(c, answer);
	text shown = {0};
	if (c->out.tty)
		terminal_escape(&shown, json_string_value(string), json_string_length(string), true);
	else
		text_append(&shown, json_string_value(string), json_string_length(string));
	printf("%s\n", text_get(&shown));
	text_free(&shown);
	json_decref(answer);
	return CLI_OK;
}

static int become_trainer(cli *c, const char *spec)
{
	const char *const words[] = {
	    "train-tokenizer", "--spec", spec, "--out", options_text(&c->options, "out"), "--"};
	enum { WORDS = sizeof words / sizeof *words };
	char path[PATH_MAX], **argv = calloc((size_t)c->options.n_arguments + WORDS + 2, sizeof *argv);
	size_t n = 1;

	if (!argv)
		return cli_fail("out of memory");
	if (!child_find("additived", path)) {
		free(argv);
		return cli_fail("cannot find additived beside this program");
	}
	argv[0] = path;
	for (int i = 0; i < WORDS; i++)
		argv[n++] = (char *)(uintptr_t)words[i];
	for (int i = 0; i < c->options.n_arguments; i++)
		argv[n++] = (char *)(uintptr_t)cli_argument(c, i);
	execv(path, argv);
	free(argv);
	return cli_fail("cannot start %s: %s", path, strerror(errno));
}

static int train_run(cli *c)
{
	json_t *spec = json_pack("{s:s}", "type", "sentencepiece");
	char *words = NULL;
	int status;

	if (spec && options_fill(&c->options, spec))
		words = json_dumps(spec, JSON_COMPACT);
	if (!options_text(&c->options, "out"))
		status = cli_usage("say where the tokenizer goes: --out DIR");
	else
		status = words ? become_trainer(c, words) : cli_fail("the options are not valid UTF-8");
	free(words);
	json_decref(spec);
	return status;
}

const command tokenize_commands[] = {
    {"tokenize", "--model ID [TEXT]", 0, 1, "show a text's tokens (default: stdin)", NULL, tokenize_options,
     tokenize_run},
    {"detokenize", "--model ID N...", 1, 1 << 20, "show the text of tokens", NULL, detokenize_options, detokenize_run},
    {"tokenizer train", "FILE... --out DIR", 1, 1 << 10, "train a tokenizer on texts of this machine",
     "The files are texts or JSON lines, also compressed. `train --tokenizer` does it on a job's own texts.",
     train_options, train_run},
    {"tokenizer show", "MODEL", 1, 1, "show a model's tokenizer: its type and size", NULL, NULL, show_run},
    {"tokenizer encode", "--model ID [TEXT]", 0, 1, "print the ids of a text's tokens", NULL, tokenize_options,
     encode_run},
    {"tokenizer decode", "--model ID N...", 1, 1 << 20, "show the text of tokens", NULL, detokenize_options,
     detokenize_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
