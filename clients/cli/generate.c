/* generate.c - stream a continuation. Text goes to stdout as it comes, byte for byte, except that on a
 * terminal control characters are made visible. */
#include "clients/cli/generate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/cli/interactive.h"
#include "gen/options.h"

static const option_row generate_options[] = {
    {"session", OPTION_TEXT, "ID", "continue this session", NULL},
    {"new-session", OPTION_FLAG, NULL, "open a session, and print its id at the end", NULL},
    {"position-policy", OPTION_TEXT, "NAME:error|clamp|wrap",
     "policy of the new session for tokens beyond the model's positions", NULL},
    {"source", OPTION_TEXT, "TEXT", "source text of the new session, which the model's encoder reads", NULL},
    COMPLETION_OPTIONS,
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const option_row chat_options[] = {
    {"system", OPTION_TEXT, "TEXT", "system message, before your first message", NULL},
    CHAT_COMPLETION_OPTIONS,
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

/* --- token weights: the mean over steps of the weights in the chunks ---------------------------------- */

typedef struct weight {
	long long offset;
	char text[64];
	double sum;
} weight;

typedef struct stream {
	const cli *c;
	weight *weights;
	size_t n_weights, room;
	long long steps;
	bool any, ends_line; /* text has arrived; it ends with a newline */
} stream;

static void add_weight(stream *s, const json_t *item)
{
	long long offset = json_integer_value(show_get(item, "token.offset"));
	const char *piece = json_string_value(show_get(item, "token.text"));
	size_t i = 0;

	while (i < s->n_weights && s->weights[i].offset != offset)
		i++;
	if (i == s->room) {
		size_t room = s->room ? 2 * s->room : 64;
		weight *weights = realloc(s->weights, room * sizeof(*weights));

		if (!weights)
			return;
		s->weights = weights;
		s->room = room;
	}
	if (i == s->n_weights) {
		s->weights[s->n_weights++] = (weight){.offset = offset};
		snprintf(s->weights[i].text, sizeof(s->weights[i].text), "%s", piece ? piece : "");
	}
	s->weights[i].sum += json_number_value(json_object_get(item, "weight"));
}

static int heavier(const void *a, const void *b)
{
	const weight *x = a, *y = b;

	return x->sum > y->sum ? -1 : x->sum < y->sum;
}

static void print_weights(stream *s, size_t k)
{
	text out = {0};

	qsort(s->weights, s->n_weights, sizeof(*s->weights), heavier);
	text_format(&out, "\nlargest token weights, mean over %lld steps (a step counts only its %zu largest):\n",
	            s->steps, k);
	for (size_t i = 0; i < s->n_weights && i < k; i++) {
		text_format(&out, "%8.4f  at %-7lld  '", s->weights[i].sum / (double)s->steps, s->weights[i].offset);
		terminal_escape(&out, s->weights[i].text, strlen(s->weights[i].text), false);
		text_string(&out, "'\n");
	}
	fputs(text_get(&out), stderr);
	text_free(&out);
}

/* --- the stream -------------------------------------------------------------------------- */

static void print_text(stream *s, const char *string, size_t n)
{
	if (n == 0)
		return;
	cli_print_text(s->c, string, n);
	s->any = true;
	s->ends_line = string[n - 1] == '\n';
}

static bool take_chunk(void *context, const char *id, const json_t *event, const char *raw)
{
	stream *s = context;
	const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
	const json_t *said = json_object_get(choice, "text"), *delta = json_object_get(choice, "delta");
	const json_t *string = said ? said : json_object_get(delta, "content"),
	             *alpha = json_object_get(choice, "alpha");

	(void)id;
	if (s->c->json) {
		puts(raw);
		return fflush(stdout) == 0;
	}
	print_text(s, json_string_value(string), json_string_length(string));
	for (size_t i = 0; i < json_array_size(alpha); i++)
		add_weight(s, json_array_get(alpha, i));
	s->steps += json_array_size(alpha) > 0;
	return !ferror(stdout);
}

static void generate_finish(stream *s, http_end end)
{
	const char *k = options_text(&s->c->options, "alpha");

	if (s->c->out.tty && !s->ends_line && !s->c->json)
		putchar('\n');
	fflush(stdout);
	if (end == HTTP_DONE && k && s->steps > 0)
		print_weights(s, strtoul(k, NULL, 10));
}

/* --- the request --------------------------------------------------------------------------- */

char *generate_open_session(cli *c, const char *model)
{
	const char *policy = options_text(&c->options, "position-policy"),
	           *source = options_text(&c->options, "source");
	json_t *request = json_pack("{s:s, s:b}", "model", model, "explain", options_flag(&c->options, "alpha"));

	if (policy)
		json_object_set_new(request, "position_policy", json_string(policy));
	if (source)
		json_object_set_new(request, "source", json_string(source));
	json_t *session = http_json(c->http, "POST", "/v1/sessions", request);
	const char *id = json_string_value(json_object_get(session, "id"));
	char *copy = id ? strdup(id) : NULL;
	if (!copy)
		cli_complain(c);
	json_decref(session);
	return copy;
}

/* The messages of a chat; NULL when one is not valid UTF-8. */
static json_t *make_messages(const generate_what *w)
{
	json_t *user = json_pack("{s:s, s:s}", "role", "user", "content", w->text);

	if (!w->system)
		return json_pack("[o]", user);
	return json_pack("[{s:s, s:s}, o]", "role", "system", "content", w->system, user);
}

/* NULL when a text is not valid UTF-8. */
static json_t *make_request(cli *c, const generate_what *w)
{
	json_t *request =
	    w->chat ? json_pack("{s:b, s:i}", "stream", 1, "max_completion_tokens", CHAT_COMPLETION_OPTIONS_MAX_TOKENS)
	            : json_pack("{s:b, s:i}", "stream", 1, "max_tokens", COMPLETION_OPTIONS_MAX_TOKENS);
	json_t *given = !w->text ? NULL : w->chat ? make_messages(w) : json_string(w->text);
	bool whole = !w->text || json_object_set_new(request, w->chat ? "messages" : "prompt", given) == 0;

	if (!request || !whole || !options_fill(&c->options, request)) {
		json_decref(request);
		return NULL;
	}
	if (w->session) /* a session has its model */
		json_object_del(request, "model");
	else
		json_object_set_new(request, "model", json_string(w->model));
	if (w->session && w->chat) {
		/* A session calls the limit of an answer as completions do. */
		json_t *most = json_incref(json_object_get(request, "max_completion_tokens"));

		json_object_del(request, "max_completion_tokens");
		json_object_set_new(request, "max_tokens", most);
	}
	return request;
}

http_end generate_stream(cli *c, const generate_what *what, bool *ends_line)
{
	stream s = {.c = c, .ends_line = true};
	json_t *request = make_request(c, what);
	http_end end = HTTP_STOPPED;

	if (request) {
		const char *path = what->session ? http_path(c->http, "/v1/sessions/%s/generate", what->session)
		                   : what->chat  ? "/v1/chat/completions"
		                                 : "/v1/completions";

		end = http_stream(c->http, "POST", path, request, "", take_chunk, &s);
		generate_finish(&s, end);
	} else {
		cli_fail("the prompt is not valid UTF-8");
	}
	if (s.any)
		*ends_line = s.ends_line;
	free(s.weights);
	return end;
}

static int report(const cli *c, http_end end)
{
	if (end == HTTP_STOPPED) /* said already, or nothing reads any more */
		return CLI_FAILED;
	return end == HTTP_DONE ? CLI_OK : cli_complain(c);
}

static int generate(cli *c, generate_what what)
{
	char *opened = NULL;
	bool ends_line;

	if (options_flag(&c->options, "new-session") && !(what.session = opened = generate_open_session(c, what.model)))
		return CLI_FAILED;
	http_end end = generate_stream(c, &what, &ends_line);
	if (opened)
		cli_note(c, "The session stays open. Go on with: additive generate --session %s", opened);
	free(opened);
	return report(c, end);
}

static bool is_interactive(const cli *c, int argument)
{
	return !cli_argument(c, argument) && !c->json && c->out.tty && isatty(STDIN_FILENO);
}

static int generate_run(cli *c)
{
	const char *session = options_text(&c->options, "session"), *model = options_text(&c->options, "model");
	bool fresh = options_flag(&c->options, "new-session");
	generate_what what = {.session = session, .model = model};

	if (session && (fresh || model))
		return cli_usage("--session has its model already: --model and --new-session do not go with it");
	if (!session && !model)
		return cli_usage("say which --model (additive models list shows them), or --session");
	if (!fresh && options_text(&c->options, "position-policy"))
		return cli_usage("--position-policy is for a --new-session");
	if (!fresh && options_text(&c->options, "source"))
		return cli_usage("--source is for a --new-session; without one PROMPT is the source");
	if (is_interactive(c, 0))
		return interactive_run(c, &what);
	char *prompt = cli_argument_or_stdin(c, 0);
	if (!prompt && !session)
		return cli_usage("give a PROMPT, or pipe one in");
	/* A session may continue without a prompt. */
	what.text = !prompt || (session && !*prompt) ? NULL : prompt;
	int status = generate(c, what);
	free(prompt);
	return status;
}

static int chat_run(cli *c)
{
	generate_what what = {.model = cli_argument(c, 0), .chat = true, .system = options_text(&c->options, "system")};
	bool ends_line;

	if (is_interactive(c, 1))
		return interactive_run(c, &what);
	char *said = cli_argument_or_stdin(c, 1);
	if (!said)
		return cli_usage("give a MESSAGE, or pipe one in");
	what.text = said;
	int status = report(c, generate_stream(c, &what, &ends_line));
	free(said);
	return status;
}

const command generate_commands[] = {
    {"generate", "--model ID [PROMPT]", 0, 1, "continue a text, streaming",
     "Without PROMPT it is read from stdin; at a terminal a conversation begins: what "
     "you type and what the model\n"
     "writes are one text. A session keeps what it has read: it goes on where it "
     "stopped, with PROMPT or without\n"
     "(at a terminal, with an empty one).",
     generate_options, generate_run},
    {"chat", "MODEL [MESSAGE]", 1, 2, "chat with a model, using its chat template",
     "Without MESSAGE it is read from stdin; at a terminal a conversation begins. The service keeps it in a "
     "session, so\n"
     "each turn sends only what is new. Ctrl-C stops an answer.",
     chat_options, chat_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
